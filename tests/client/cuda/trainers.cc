#include "tests/client/cuda/trainers.h"

#include <atomic>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/cuda.h"
#include "kernels/base/check.h"
#include "kernels/base/status_macros.h"
#include "kernels/formats/bfloat16.h"
#include "kernels/gpu/status.h"
#include "kernels/gpu/stream.h"
#include "kernels/gpu/word_operations.h"

namespace paramshard {
namespace {

constexpr int64_t kRows = 480;
constexpr int64_t kColumns = 352;
constexpr float kLearningRate = 0.01f;

std::string WeightOf(const std::string& unit) { return unit + ".w"; }
std::string BiasOf(const std::string& unit) { return unit + ".bias"; }

// Small multiples of 2^-6, different everywhere: their sums are exact.
std::vector<float> GradientValues(int rank, int step, const std::string& parameter, int64_t count) {
  std::vector<float> values(count);
  uint32_t state = 0x9e3779b9u * static_cast<uint32_t>(1 + rank) + 0x85ebca6bu * static_cast<uint32_t>(1 + step) +
                   static_cast<uint32_t>(parameter.front());
  for (float& value : values) {
    state = state * 1664525u + 1013904223u;
    value = static_cast<float>(static_cast<int>(state >> 24) - 128) / 64.0f;
  }
  return values;
}

// One gather of a step: its unit and phase.
struct Read {
  std::string unit;
  Phase phase;
};
std::vector<Read> Reads() {
  return {{"a", Phase::kForward}, {"b", Phase::kForward}, {"b", Phase::kBackward}, {"a", Phase::kBackward}};
}

absl::Status Append(const Matrix& matrix, std::vector<float>& planes) {
  planes.resize(planes.size() + matrix.rows * matrix.columns);
  return matrix.Decode(planes.data() + planes.size() - matrix.rows * matrix.columns);
}

// Odd steps push by one call.
bool PushesAtOnce(int step) { return step % 2 == 1; }

absl::Status PushByHost(Model& model, const std::string& unit, int step) {
  if (PushesAtOnce(step) && model.gpu() < 0) {
    const std::vector<float> weight = GradientValues(model.rank(), step, WeightOf(unit), kRows * kColumns);
    const std::vector<float> bias = GradientValues(model.rank(), step, BiasOf(unit), kRows);
    return model.PushGradients(unit, {weight.data(), bias.data()});
  }
  ASSIGN_OR_RETURN(UnitGradients gradients, model.Gradients(unit));
  for (const std::string& parameter : {WeightOf(unit), BiasOf(unit)}) {
    ASSIGN_OR_RETURN(const GradientView view, gradients.Get(parameter));
    RETURN_IF_ERROR(view.Write(GradientValues(model.rank(), step, parameter, view.rows * view.columns)));
  }
  return gradients.Push();
}

}  // namespace

ModelSpec TwoUnits(Format format) {
  ModelSpec spec;
  spec.name = "two";
  for (const char* name : {"a", "b"}) {
    ParameterSpec weight;
    weight.name = WeightOf(name);
    weight.shape = {kRows, kColumns};
    weight.encoding.format = format;
    weight.initial_value = {Initializer::kNormal, 0.0f, 0.1f};
    if (*name == 'b') {
      weight.gradient_type = GradientType::kBF16;
      weight.placement = Placement::kOwned;
    }
    ParameterSpec bias;
    bias.name = BiasOf(name);
    bias.shape = {kRows};
    bias.initial_value = {Initializer::kConstant, 0.25f};
    spec.units.push_back({.name = name, .parameters = {weight, bias}});
  }
  spec.small_parameter_bytes = 4096;
  return spec;
}

absl::StatusOr<Seen> TrainByHost(Model& model) {
  Seen seen;
  for (int step = 0; step < kSteps; ++step) {
    for (const Read& read : Reads()) {
      ASSIGN_OR_RETURN(GatheredUnit unit, model.Gather(read.unit, read.phase));
      RETURN_IF_ERROR(unit.Wait());
      for (const std::string& parameter : {WeightOf(read.unit), BiasOf(read.unit)}) {
        ASSIGN_OR_RETURN(const Matrix matrix, unit.Get(parameter));
        RETURN_IF_ERROR(Append(matrix, seen.planes));
      }
      if (read.phase == Phase::kBackward) RETURN_IF_ERROR(PushByHost(model, read.unit, step));
    }
    ASSIGN_OR_RETURN(PendingCommit commit, model.Commit({.learning_rate = kLearningRate, .max_grad_norm = 1.0f}));
    ASSIGN_OR_RETURN(const StepResult result, commit.Wait());
    seen.gradient_norms.push_back(result.gradient_norm);
  }
  return seen;
}

absl::StatusOr<gpu::DeviceMemory> DeviceFloats(int gpu, int64_t count) {
  return gpu::DeviceMemory::Create(gpu, count * static_cast<int64_t>(sizeof(float)), {gpu}, /*shareable=*/false);
}

namespace {

// The training on streams: gathers arrive on one, one unit ahead, and everything else is done on the other. Until the
// last commit's answer the host waits for nothing.
class StreamTrainer {
 public:
  static absl::StatusOr<StreamTrainer> Create(Model& model);

  absl::StatusOr<Seen> Train();

 private:
  explicit StreamTrainer(Model& model) : model_(&model) {}

  absl::Status UploadGradients();
  absl::Status DecodeAll(const Read& read, const GatheredUnit& unit);
  absl::Status Push(const std::string& unit, int step);

  int64_t PlaneValues() const { return kSteps * static_cast<int64_t>(Reads().size()) * kRows * (kColumns + 1); }
  // Offset of a step's gradient of a parameter in upload_.
  int64_t UploadOffset(int step, const std::string& parameter) const {
    const int64_t unit_bytes = kRows * (kColumns + 1) * static_cast<int64_t>(sizeof(float));
    const bool is_bias = parameter == BiasOf(parameter.substr(0, 1));
    return (step * 2 + (parameter.front() == 'b' ? 1 : 0)) * unit_bytes +
           (is_bias ? kRows * kColumns * static_cast<int64_t>(sizeof(float)) : 0);
  }

  Model* model_;
  // Streams end before the memory that they write.
  gpu::DeviceMemory upload_, decoded_;
  gpu::Stream gathering_, computing_;
  int64_t decoded_count_ = 0;
};

absl::StatusOr<StreamTrainer> StreamTrainer::Create(Model& model) {
  StreamTrainer trainer(model);
  ASSIGN_OR_RETURN(trainer.upload_, DeviceFloats(model.gpu(), kSteps * 2 * kRows * (kColumns + 1)));
  ASSIGN_OR_RETURN(trainer.decoded_, DeviceFloats(model.gpu(), trainer.PlaneValues()));
  ASSIGN_OR_RETURN(trainer.gathering_, gpu::Stream::Create(model.gpu()));
  ASSIGN_OR_RETURN(trainer.computing_, gpu::Stream::Create(model.gpu()));
  RETURN_IF_ERROR(trainer.UploadGradients());
  return trainer;
}

absl::Status StreamTrainer::UploadGradients() {
  for (int step = 0; step < kSteps; ++step) {
    for (const std::string& parameter : {WeightOf("a"), BiasOf("a"), WeightOf("b"), BiasOf("b")}) {
      const int64_t count = parameter == BiasOf(parameter.substr(0, 1)) ? kRows : kRows * kColumns;
      const std::vector<float> values = GradientValues(model_->rank(), step, parameter, count);
      std::vector<uint16_t> rounded;
      for (float value : values) rounded.push_back(EncodeBFloat16(value));
      const bool is_bf16 = parameter == WeightOf("b");
      const void* source = is_bf16 ? static_cast<const void*>(rounded.data()) : values.data();
      RETURN_IF_ERROR(gpu::ToStatus(cudaMemcpy(upload_.data() + UploadOffset(step, parameter), source,
                                               count * (is_bf16 ? 2 : 4), cudaMemcpyHostToDevice),
                                    "upload gradients"));
    }
  }
  return absl::OkStatus();
}

absl::Status StreamTrainer::DecodeAll(const Read& read, const GatheredUnit& unit) {
  for (const std::string& parameter : {WeightOf(read.unit), BiasOf(read.unit)}) {
    ASSIGN_OR_RETURN(const Matrix matrix, unit.Get(parameter));
    float* const out = reinterpret_cast<float*>(decoded_.data()) + decoded_count_;
    RETURN_IF_ERROR(cuda::Decode(matrix, cuda::DecodedType::kFP32, out, computing_.get()));
    decoded_count_ += matrix.rows * matrix.columns;
  }
  return absl::OkStatus();
}

absl::Status StreamTrainer::Push(const std::string& unit, int step) {
  if (PushesAtOnce(step)) {
    const auto values = [&](const std::string& parameter) { return upload_.data() + UploadOffset(step, parameter); };
    const GradientType type = unit == "b" ? GradientType::kBF16 : GradientType::kFP32;
    return cuda::PushGradients(
        *model_, unit, {{values(WeightOf(unit)), type}, {values(BiasOf(unit)), GradientType::kFP32}}, computing_.get());
  }
  ASSIGN_OR_RETURN(UnitGradients gradients, cuda::Gradients(*model_, unit, computing_.get()));
  for (const std::string& parameter : {WeightOf(unit), BiasOf(unit)}) {
    ASSIGN_OR_RETURN(const GradientView view, gradients.Get(parameter));
    RETURN_IF_ERROR(gpu::ToStatus(cudaMemcpyAsync(view.data.data(), upload_.data() + UploadOffset(step, parameter),
                                                  view.data.size(), cudaMemcpyDeviceToDevice, computing_.get()),
                                  "write gradients"));
  }
  return cuda::Push(gradients, computing_.get());
}

absl::StatusOr<Seen> StreamTrainer::Train() {
  const gpu::DeviceScope scope(model_->gpu());
  std::vector<PendingCommit> commits;
  for (int step = 0; step < kSteps; ++step) {
    for (const Read& read : Reads()) {
      ASSIGN_OR_RETURN(GatheredUnit unit, model_->Gather(read.unit, read.phase));
      if (PushesAtOnce(step)) {
        RETURN_IF_ERROR(cuda::WaitAloneOn(unit, computing_.get()));
      } else {
        RETURN_IF_ERROR(cuda::WaitOn(unit, gathering_.get()));
        RETURN_IF_ERROR(cuda::WaitOn(unit, computing_.get()));
      }
      RETURN_IF_ERROR(DecodeAll(read, unit));
      RETURN_IF_ERROR(cuda::Release(unit, computing_.get()));
      if (read.phase == Phase::kBackward) RETURN_IF_ERROR(Push(read.unit, step));
    }
    ASSIGN_OR_RETURN(PendingCommit commit, model_->Commit({.learning_rate = kLearningRate, .max_grad_norm = 1.0f}));
    commits.push_back(std::move(commit));
  }
  Seen seen;
  for (PendingCommit& commit : commits) {
    ASSIGN_OR_RETURN(const StepResult result, commit.Wait());
    seen.gradient_norms.push_back(result.gradient_norm);
  }
  RETURN_IF_ERROR(computing_.Synchronize());
  RETURN_IF_ERROR(model_->status());
  seen.planes.resize(decoded_count_);
  RETURN_IF_ERROR(gpu::ToStatus(
      cudaMemcpy(seen.planes.data(), decoded_.data(), seen.planes.size() * sizeof(float), cudaMemcpyDeviceToHost),
      "read what was decoded"));
  return seen;
}

}  // namespace

absl::StatusOr<Seen> TrainOnStreams(Model& model) {
  ASSIGN_OR_RETURN(StreamTrainer trainer, StreamTrainer::Create(model));
  return trainer.Train();
}

Gate::Gate() {
  void* word = nullptr;
  PARAMSHARD_CHECK(cudaHostAlloc(&word, sizeof(uint32_t), cudaHostAllocPortable | cudaHostAllocMapped) == cudaSuccess);
  word_ = static_cast<uint32_t*>(word);
  *word_ = 0;
}

Gate::~Gate() {
  Open();
  cudaFreeHost(word_);
}

absl::Status Gate::Await(cudaStream_t stream) {
  gpu::WordOperations operations;
  operations.Await(word_, 1);
  return operations.Enqueue(stream);
}

void Gate::Open() { std::atomic_ref<uint32_t>(*word_).store(1, std::memory_order_release); }

}  // namespace paramshard
