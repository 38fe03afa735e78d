#include "lab/bench/block_calls.h"

#include <algorithm>
#include <deque>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/cuda.h"
#include "kernels/gpu/memory.h"
#include "kernels/gpu/status.h"
#include "kernels/gpu/stream.h"
#include "lab/bench/or_die.h"
#include "lab/bench/plain_adamw.h"

namespace paramshard {
namespace {

constexpr size_t kAhead = 2;

class ClientCalls final : public BlockCalls {
 public:
  ClientCalls(Model& model, int blocks, bool pushes, cudaStream_t stream)
      : model_(model),
        plan_(PlanStep(blocks)),
        pushes_(pushes),
        compute_(stream),
        prefetch_(OrDie(gpu::Stream::Create(model.gpu()), "stream")) {}

  void BeginStep() override { next_ = 0; }

  // Keeps kAhead gathers in front of the one that is computed with.
  void Await(size_t /*use*/) override {
    while (units_.size() <= kAhead && next_ < plan_.size()) {
      const BlockUse& use = plan_[next_++];
      units_.push_back(OrDie(model_.Gather(absl::StrCat("block", use.block), use.phase), "gather"));
      OrDie(cuda::WaitOn(units_.back(), prefetch_.get()), "wait");
    }
    OrDie(cuda::WaitOn(units_.front(), compute_), "wait");
  }

  void Release() override {
    OrDie(cuda::Release(units_.front(), compute_), "release");
    units_.pop_front();
  }

  void BeginGradients(int block) override {
    if (!pushes_) return;
    unit_ = absl::StrCat("block", block);
    gradients_ = OrDie(cuda::Gradients(model_, unit_, compute_, cuda::SlotContent::kUndefined), "gradients");
  }

  void* Gradient(int weight) override {
    if (!pushes_) return nullptr;
    return OrDie(gradients_->Get(absl::StrCat(unit_, ".", kBlockWeights[weight].name)), "gradient").data.data();
  }

  void EndGradients(int /*block*/) override {
    if (pushes_) OrDie(cuda::Push(*gradients_, compute_), "push");
    gradients_.reset();
  }

  void EndStep() override {
    if (pushes_) commit_ = OrDie(model_.Commit({.learning_rate = 1e-4f, .max_grad_norm = 1.0f}), "commit");
  }

  void Finish() override {
    if (commit_.has_value()) OrDie(commit_->Wait().status(), "commit");
  }

 private:
  Model& model_;
  const std::vector<BlockUse> plan_;
  const bool pushes_;
  const cudaStream_t compute_;
  const gpu::Stream prefetch_;
  size_t next_ = 0;
  std::deque<GatheredUnit> units_;
  std::string unit_;
  std::optional<UnitGradients> gradients_;
  std::optional<PendingCommit> commit_;
};

// An event that streams pass on.
class Mark {
 public:
  Mark() { cudaEventCreateWithFlags(&event_, cudaEventDisableTiming); }
  Mark(const Mark&) = delete;
  Mark& operator=(const Mark&) = delete;
  ~Mark() { cudaEventDestroy(event_); }
  void Record(cudaStream_t stream) { cudaEventRecord(event_, stream); }
  void Await(cudaStream_t stream) { cudaStreamWaitEvent(stream, event_); }

 private:
  cudaEvent_t event_ = nullptr;
};

class NcclCalls final : public BlockCalls {
 public:
  NcclCalls(const NcclCallsOptions& options, cudaStream_t stream)
      : options_(options),
        plan_(PlanStep(options.blocks)),
        compute_(stream),
        gathers_(MakeStream()),
        reductions_(MakeStream()),
        gather_(NcclRank::Kind::kKernels, options.gather_id, options.rank, options.ranks),
        reduce_(NcclRank::Kind::kKernels, options.reduce_id, options.rank, options.ranks) {
    for (auto& buffer : weights_) buffer = gather_.Allocate(BlockElements() * WeightBytes());
    for (auto& buffer : gradients_) buffer = reduce_.Allocate(BlockElements() * 2);
    step_.count = ShardElements() * options.blocks;
    step_.eight_bit_weight = options.eight_bit_weights;
    shard_gradient_ = Zeroed<uint16_t>(step_.count);
    step_.gradient = shard_gradient_;
    step_.parameter = Zeroed<float>(step_.count);
    step_.exp_avg = Zeroed<float>(step_.count);
    step_.exp_avg_sq = Zeroed<float>(step_.count);
    shard_weight_ = Zeroed<uint8_t>(step_.count * WeightBytes());
    step_.weight = shard_weight_;
    step_.square_sum = Zeroed<double>(1);
    OrDie(gpu::ToStatus(cudaDeviceSynchronize(), "fill"), "fill");
  }

  void BeginStep() override {
    stepped_.Await(gathers_.get());  // of the step before
    next_ = 0;
  }

  void Await(size_t use) override {
    while (next_ <= use + kAhead && next_ < plan_.size()) Gather(next_++);
    gathered_[use % kBuffers].Await(compute_);
    read_ = use;
  }

  void Release() override { released_[read_ % kBuffers].Record(compute_); }

  void BeginGradients(int block) override { reduced_[block % kGradientBuffers].Await(compute_); }

  void* Gradient(int weight) override {
    int64_t offset = 0;
    for (int i = 0; i < weight; ++i) offset += kBlockWeights[i].rows * kBlockWeights[i].columns;
    return gradients_[plan_[read_].block % kGradientBuffers] + offset * 2;
  }

  void EndGradients(int block) override {
    const int buffer = block % kGradientBuffers;
    filled_[buffer].Record(compute_);
    filled_[buffer].Await(reductions_.get());
    reduce_.ReduceScatter(gradients_[buffer], shard_gradient_ + block * ShardElements(), ShardElements(),
                          reductions_.get());
    reduced_[buffer].Record(reductions_.get());
  }

  void EndStep() override {
    OrDie(gpu::ToStatus(cudaMemsetAsync(step_.square_sum, 0, sizeof(double), reductions_.get()), "clear"), "clear");
    AddSquares(step_, reductions_.get());
    reduce_.SumOverRanks(step_.square_sum, reductions_.get());
    StepAdamW(step_, reductions_.get());
    ++step_.step;
    stepped_.Record(reductions_.get());
  }

  void Finish() override { stepped_.Await(compute_); }

 private:
  static constexpr int kBuffers = kAhead + 2;
  static constexpr int kGradientBuffers = 2;

  static gpu::Stream MakeStream() {
    int device = 0;
    cudaGetDevice(&device);
    return OrDie(gpu::Stream::Create(device), "stream");
  }

  template <typename T>
  static T* Zeroed(int64_t count) {
    void* data = nullptr;
    OrDie(gpu::ToStatus(cudaMalloc(&data, count * sizeof(T)), "allocate"), "allocate");
    OrDie(gpu::ToStatus(cudaMemset(data, 0, count * sizeof(T)), "fill"), "fill");
    return static_cast<T*>(data);
  }

  int64_t WeightBytes() const { return options_.eight_bit_weights ? 1 : 2; }
  int64_t ShardElements() const { return BlockElements() / options_.ranks; }

  // This rank's part is copied into the buffer first, as FSDP does.
  void Gather(size_t use) {
    const int buffer = static_cast<int>(use % kBuffers);
    const int64_t bytes = ShardElements() * WeightBytes();
    released_[buffer].Await(gathers_.get());
    cudaMemcpyAsync(weights_[buffer] + options_.rank * bytes, shard_weight_ + plan_[use].block * bytes, bytes,
                    cudaMemcpyDeviceToDevice, gathers_.get());
    gather_.AllGather(weights_[buffer], bytes, gathers_.get());
    gathered_[buffer].Record(gathers_.get());
  }

  const NcclCallsOptions options_;
  const std::vector<BlockUse> plan_;
  const cudaStream_t compute_;
  const gpu::Stream gathers_, reductions_;
  const NcclRank gather_, reduce_;
  uint8_t* weights_[kBuffers];
  uint8_t* gradients_[kGradientBuffers];
  uint16_t* shard_gradient_;
  uint8_t* shard_weight_;
  PlainAdamW step_;
  Mark gathered_[kBuffers], released_[kBuffers], filled_[kGradientBuffers], reduced_[kGradientBuffers], stepped_;
  size_t next_ = 0;
  size_t read_ = 0;
};

}  // namespace

std::vector<BlockUse> PlanStep(int blocks) {
  std::vector<BlockUse> plan;
  for (int block = 0; block < blocks; ++block) plan.push_back({block, Phase::kForward});
  for (int block = blocks - 1; block >= 0; --block) plan.push_back({block, Phase::kBackward});
  return plan;
}

std::unique_ptr<BlockCalls> MakeClientCalls(Model& model, int blocks, bool pushes, cudaStream_t stream) {
  return std::make_unique<ClientCalls>(model, blocks, pushes, stream);
}

std::unique_ptr<BlockCalls> MakeNcclCalls(const NcclCallsOptions& options, cudaStream_t stream) {
  return std::make_unique<NcclCalls>(options, stream);
}

}  // namespace paramshard
