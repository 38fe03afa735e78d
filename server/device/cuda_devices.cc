#include "server/device/cuda_devices.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <functional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "kernels/formats/format.h"
#include "kernels/gpu/batch_copy.h"
#include "kernels/gpu/faults.h"
#include "kernels/gpu/memory.h"
#include "kernels/gpu/nccl.h"
#include "kernels/gpu/staging.h"
#include "kernels/gpu/status.h"
#include "kernels/gpu/stream.h"
#include "kernels/optim/band_marks_cuda.h"
#include "kernels/optim/banded_step_cuda.h"
#include "kernels/optim/fused_step_cuda.h"
#include "kernels/optim/master_remainder_cuda.h"
#include "kernels/optim/moved_state.h"
#include "kernels/random/initial_values_cuda.h"
#include "kernels/reduce/gradient_sum_cuda.h"
#include "server/device/cuda_muon.h"

namespace paramshard::server {
namespace {

// Frees `Resource` at its end, except on a broken device: that would wait for work that may never end, and the daemon
// must be restarted anyway.
template <typename Resource>
class OwnerOf final : public Memory::Owner {
 public:
  OwnerOf(int device, Resource resource) : device_(device), resource_(std::move(resource)) {}
  ~OwnerOf() override {
    if (gpu::FaultOf(device_).ok()) resource_.~Resource();
  }

 private:
  const int device_;
  union {  // so that only the destructor above ends it
    Resource resource_;
  };
};

// Number of staging buffers: as many as the threads of a save for one device. With smaller buffers the link waits
// between copies.
constexpr int kStagingLanes = 12;
constexpr int64_t kStagingBufferBytes = int64_t{4} << 20;

using GpuRange = OwnerOf<gpu::DeviceMemory>;
using OpenHostRange = OwnerOf<gpu::HostRegistration>;

static_assert(kMostSumSources == gpu::kMaxGradientSources);

absl::StatusOr<gpu::GradientSumTask> ToGpuTask(const SumTask& task) {
  if (task.sources.size() > gpu::kMaxGradientSources) {
    return absl::InvalidArgumentError(
        absl::StrCat("sum gradients: want at most ", gpu::kMaxGradientSources, " sources, got ", task.sources.size()));
  }
  gpu::GradientSumTask sum;
  std::copy(task.sources.begin(), task.sources.end(), sum.sources);
  sum.source_count = static_cast<int>(task.sources.size());
  sum.type = task.type;
  sum.count = task.count;
  sum.overwrite = task.overwrite;
  sum.accumulator = task.accumulator;
  return sum;
}

class CudaShardArithmetic final : public ShardArithmetic {
 public:
  static absl::StatusOr<std::unique_ptr<ShardArithmetic>> Create(int device, std::vector<ExtentTensors> tensors,
                                                                 const StateMoves& moves) {
    RETURN_IF_ERROR(CheckMoves(tensors, moves));
    ASSIGN_OR_RETURN(gpu::Stream stream, gpu::Stream::Create(device));
    ASSIGN_OR_RETURN(std::unique_ptr<CudaMuon> muon, CudaMuon::Create(device, stream.get(), tensors, moves.bands));
    std::vector<gpu::StepExtent> extents;
    int64_t elements = 0;
    for (size_t i = 0; i < tensors.size(); ++i) {
      const ExtentTensors extent = muon == nullptr ? tensors[i] : muon->ForFusedStep(tensors[i], i);
      extents.push_back({extent.gradient, extent.state, extent.rows, extent.columns, extent.encoding, extent.row_wise,
                         extent.column_wise});
      elements += extent.elements();
    }
    ASSIGN_OR_RETURN(gpu::FusedStepPlan plan, gpu::FusedStepPlan::Create(device, extents, moves.bands));
    ASSIGN_OR_RETURN(gpu::BandedStep bands, gpu::BandedStep::Create(device));
    ASSIGN_OR_RETURN(const gpu::BandMarks marks, gpu::BandMarks::Create(device));
    ASSIGN_OR_RETURN(gpu::SquareSummer squares,
                     gpu::SquareSummer::Create(device, static_cast<int64_t>(tensors.size()), elements));
    plan.SetPosition(moves.position);
    return std::unique_ptr<ShardArithmetic>(new CudaShardArithmetic(std::move(tensors), moves, std::move(stream),
                                                                    std::move(muon), std::move(plan), std::move(bands),
                                                                    marks, std::move(squares)));
  }

  std::string products() const override { return muon_ == nullptr ? "" : muon_->products(); }
  int64_t muon_bytes() const override { return muon_ == nullptr ? 0 : muon_->size_bytes(); }

  absl::Status Fill(uint64_t seed, absl::Span<const Initial> initials) override {
    const gpu::DeviceScope scope(stream_.device());
    int64_t scratch_elements = 0;
    for (const ExtentTensors& extent : tensors_) {
      if (HasRemainder(extent)) scratch_elements = std::max(scratch_elements, extent.elements());
    }
    const int64_t scratch_bytes = std::min(scratch_elements, kFillElements) * static_cast<int64_t>(sizeof(float));
    ASSIGN_OR_RETURN(gpu::DeviceMemory scratch,
                     gpu::DeviceMemory::Create(stream_.device(), scratch_bytes, {stream_.device()}, false));
    auto* const values = reinterpret_cast<float*>(scratch.data());
    const GpuRange scratch_owner(stream_.device(), std::move(scratch));
    absl::Status status;
    for (size_t i = 0; status.ok() && i < tensors_.size(); ++i) {
      const ExtentTensors& extent = tensors_[i];
      status = HasRemainder(extent) ? FillSplit(seed, initials[i], WhereItLies(extent), values)
                                    : gpu::FillInitialValues(initials[i].value, seed, initials[i].parameter_index,
                                                             initials[i].first_element, extent.elements(),
                                                             MovedBy(extent.state.master, position()), stream_.get());
    }
    // Waits for the kernels that use the scratch memory.
    status.Update(stream_.Synchronize());
    return status;
  }

  absl::Status EncodePlanes(absl::Span<const TensorScaling> scalings, CancelCheck check_cancelled) override {
    RETURN_IF_ERROR(check_cancelled());
    const gpu::DeviceScope scope(stream_.device());
    RETURN_IF_ERROR(plan_.Encode(scalings, stream_.get()));
    return stream_.Synchronize();
  }

  absl::Status EncodeAfterAmax(const std::vector<bool>& active, absl::Span<const TensorScaling> scalings) override {
    const gpu::DeviceScope scope(stream_.device());
    RETURN_IF_ERROR(plan_.EncodeAfterAmax(active, scalings, stream_.get()));
    return stream_.Synchronize();
  }

  absl::StatusOr<std::vector<float>> MeasureAmaxes(CancelCheck check_cancelled) override {
    RETURN_IF_ERROR(check_cancelled());
    const gpu::DeviceScope scope(stream_.device());
    RETURN_IF_ERROR(plan_.MeasureAmaxes(stream_.get()));
    return plan_.Amaxes(stream_.get());
  }

  absl::StatusOr<std::vector<SquareSum>> SumSquares(const std::vector<bool>& active,
                                                    absl::Span<const SumTask> sums) override {
    ASSIGN_OR_RETURN(const std::vector<const SumTask*> sum_of, MatchSums(tensors_, active, sums));
    std::vector<gpu::GradientSumTask> tasks;
    for (size_t i = 0; i < tensors_.size(); ++i) {
      if (!active[i]) continue;
      gpu::GradientSumTask& task = tasks.emplace_back();
      task.count = tensors_[i].elements();
      task.accumulator = tensors_[i].gradient;
      if (sum_of[i] == nullptr) continue;
      ASSIGN_OR_RETURN(task, ToGpuTask(*sum_of[i]));
    }
    const gpu::DeviceScope scope(stream_.device());
    ASSIGN_OR_RETURN(const std::vector<SquareSum> found, squares_.Run(tasks, stream_.get()));
    std::vector<SquareSum> squares(tensors_.size());
    auto next = found.begin();
    for (size_t i = 0; i < squares.size(); ++i) {
      if (active[i]) squares[i] = *next++;
    }
    return squares;
  }

  absl::StatusOr<std::vector<float>> Step(absl::Span<const std::optional<OptimizerStep>> steps,
                                          absl::Span<const TensorScaling> scalings,
                                          const StepProgress& progress) override {
    const gpu::DeviceScope scope(stream_.device());
    const bool steps_any = std::any_of(steps.begin(), steps.end(), [](const auto& step) { return step.has_value(); });
    if (plan_.band_count() > 0 && steps_any) {
      RETURN_IF_ERROR(MoveByBands(steps, scalings, progress));
    } else {
      RETURN_IF_ERROR(StepInPlace(steps, scalings, progress));
    }
    if (needs_amax_) return plan_.Amaxes(stream_.get());
    RETURN_IF_ERROR(stream_.Synchronize());
    return std::vector<float>();
  }

 private:
  static bool HasRemainder(const ExtentTensors& extent) { return extent.state.remainder != nullptr; }

  // Leaves no amaxes if the step is already done, or if no extent takes it.
  absl::Status StepInPlace(absl::Span<const std::optional<OptimizerStep>> steps,
                           absl::Span<const TensorScaling> scalings, const StepProgress& progress) {
    const bool is_left = !progress.HasDone(0);
    std::vector<std::optional<OptimizerStep>> left(steps.size());
    if (is_left) std::copy(steps.begin(), steps.end(), left.begin());
    const bool steps_any = std::any_of(left.begin(), left.end(), [](const auto& step) { return step.has_value(); });
    if (steps_any) progress.MarkBegun(0);
    if (steps_any && muon_ != nullptr) {
      muon_->BeginStep(left, position(), /*distance=*/0, progress);
      RETURN_IF_ERROR(muon_->EnqueueBand(0));
    }
    RETURN_IF_ERROR(plan_.Step(left, scalings, stream_.get()));
    return steps_any ? marks_.Write(progress.lanes[0].done, progress.WordOf(1), stream_.get()) : absl::OkStatus();
  }

  absl::Status MoveByBands(absl::Span<const std::optional<OptimizerStep>> steps,
                           absl::Span<const TensorScaling> scalings, const StepProgress& progress) {
    const bool forward = position() == 0;
    const int64_t distance = forward ? distance_ : -distance_;
    RETURN_IF_ERROR(plan_.BeginStep(steps, scalings, distance, stream_.get()));
    std::function<absl::Status(int)> before_band;
    if (muon_ != nullptr) {
      muon_->BeginStep(steps, position(), distance, progress);
      before_band = [this](int n) { return muon_->EnqueueBand(n); };
    }
    RETURN_IF_ERROR(bands_.Run(plan_, forward, progress, stream_.get(), before_band));
    set_position(position() + distance);
    plan_.SetPosition(position());
    return absl::OkStatus();
  }

  ExtentTensors WhereItLies(ExtentTensors extent) const {
    extent.state = MovedBy(extent.state, position());
    return extent;
  }

  // Enqueues filling a master that has a remainder, by way of `values`.
  absl::Status FillSplit(uint64_t seed, const Initial& initial, const ExtentTensors& extent, float* values) const {
    uint16_t* const weights =
        extent.state.weights == nullptr ? reinterpret_cast<uint16_t*>(extent.row_wise.data) : extent.state.weights;
    for (int64_t first = 0; first < extent.elements(); first += kFillElements) {
      const int64_t count = std::min(extent.elements() - first, kFillElements);
      RETURN_IF_ERROR(gpu::FillInitialValues(initial.value, seed, initial.parameter_index,
                                             initial.first_element + first, count, values, stream_.get()));
      RETURN_IF_ERROR(gpu::SplitMaster(values, count, weights + first, extent.state.remainder + first, stream_.get()));
    }
    return absl::OkStatus();
  }

  CudaShardArithmetic(std::vector<ExtentTensors> tensors, const StateMoves& moves, gpu::Stream stream,
                      std::unique_ptr<CudaMuon> muon, gpu::FusedStepPlan plan, gpu::BandedStep bands,
                      const gpu::BandMarks& marks, gpu::SquareSummer squares)
      : ShardArithmetic(moves.position),
        tensors_(std::move(tensors)),
        distance_(moves.distance),
        needs_amax_(std::any_of(tensors_.begin(), tensors_.end(),
                                [](const ExtentTensors& extent) { return NeedsAmax(extent.encoding.format); })),
        stream_(std::move(stream)),
        muon_(std::move(muon)),
        plan_(std::move(plan)),
        bands_(std::move(bands)),
        marks_(marks),
        squares_(std::move(squares)) {}

  const std::vector<ExtentTensors> tensors_;
  const int64_t distance_;
  const bool needs_amax_;
  const gpu::Stream stream_;
  // Refers to tensors_, whose place has not changed since Create(). Null without Muon.
  const std::unique_ptr<CudaMuon> muon_;
  gpu::FusedStepPlan plan_;
  gpu::BandedStep bands_;
  const gpu::BandMarks marks_;
  gpu::SquareSummer squares_;
};

class CudaQueue final : public DeviceQueue {
 public:
  explicit CudaQueue(gpu::Stream stream) : stream_(std::move(stream)) {}

  absl::Status Run(absl::Span<const CopyTask> copies, absl::Span<const SumTask> sums) override {
    gpu::BatchCopy batch;
    for (const CopyTask& task : copies) batch.Add(task.target, task.source, task.size_bytes);
    std::vector<gpu::GradientSumTask> tasks;
    for (const SumTask& sum : sums) {
      ASSIGN_OR_RETURN(tasks.emplace_back(), ToGpuTask(sum));
    }
    const gpu::DeviceScope scope(stream_.device());
    RETURN_IF_ERROR(batch.Enqueue(stream_.get()));
    RETURN_IF_ERROR(gpu::SumGradients(tasks, stream_.get()));
    return stream_.Synchronize();
  }

 private:
  const gpu::Stream stream_;
};

class CudaDevice final : public ComputeDevice {
 public:
  // `group` are the indices of all devices of the daemon.
  CudaDevice(const Device& id, std::vector<int> group, std::string uuid, std::unique_ptr<gpu::StagingLanes> lanes)
      : ComputeDevice(id), group_(std::move(group)), uuid_(std::move(uuid)), lanes_(std::move(lanes)) {}
  // Leaves the lanes of a broken device to the end of the process.
  ~CudaDevice() override {
    if (!gpu::FaultOf(this->id().index).ok()) static_cast<void>(lanes_.release());
  }

  std::string gpu_uuid() const override { return uuid_; }

  absl::StatusOr<Memory> Allocate(const std::string& name, int64_t size_bytes, Sharing sharing) override {
    RETURN_IF_ERROR(health().status());
    const bool shared = sharing != Sharing::kPrivate;
    const bool alone = !shared || sharing == Sharing::kKept;
    auto memory =
        gpu::DeviceMemory::Create(id().index, size_bytes, alone ? std::vector<int>{id().index} : group_, shared);
    if (!memory.ok()) {
      return absl::Status(memory.status().code(),
                          absl::StrCat("allocate ", name, ": ", size_bytes, " bytes needed, ", AvailableBytes(),
                                       " free on ", Name(), ": ", memory.status().message()));
    }
    wire::FileDescriptor fd;
    if (shared && size_bytes > 0) {
      ASSIGN_OR_RETURN(const int exported, memory->Export());
      fd = wire::FileDescriptor(exported);
    }
    uint8_t* const data = memory->data();
    return Memory(data, size_bytes, std::move(fd), std::make_unique<GpuRange>(id().index, *std::move(memory)));
  }

  absl::StatusOr<Memory> Adopt(const std::string& name, int64_t size_bytes, wire::FileDescriptor fd) override {
    RETURN_IF_ERROR(health().status());
    auto memory = gpu::DeviceMemory::Import(id().index, fd.get(), size_bytes, /*read_only=*/false);
    if (memory.ok()) RETURN_IF_ERROR(memory->CheckPlace());
    if (absl::IsResourceExhausted(memory.status())) return memory.status();
    // Any other error of the driver means that the memory behind the descriptor is lost.
    if (!memory.ok()) return absl::DataLossError(absl::StrCat("adopt ", name, ": ", memory.status().message()));
    uint8_t* const data = memory->data();
    return Memory(data, size_bytes, std::move(fd), std::make_unique<GpuRange>(id().index, *std::move(memory)));
  }

  int64_t AvailableBytes() const override {
    const gpu::DeviceScope scope(id().index);
    size_t available = 0;
    size_t total = 0;
    return cudaMemGetInfo(&available, &total) == cudaSuccess ? static_cast<int64_t>(available) : 0;
  }

  absl::StatusOr<std::unique_ptr<Memory::Owner>> OpenHostMemory(const Memory& page) override {
    RETURN_IF_ERROR(health().status());
    if (page.size_bytes() == 0) return nullptr;
    const gpu::DeviceScope scope(id().index);
    ASSIGN_OR_RETURN(gpu::HostRegistration registration,
                     gpu::HostRegistration::Register(page.data(), page.size_bytes()));
    return std::make_unique<OpenHostRange>(id().index, std::move(registration));
  }

  absl::StatusOr<HostView> Read(const uint8_t* data, int64_t size_bytes) const override {
    // The array is not initialised: every byte is copied.
    std::unique_ptr<uint8_t[]> copy(new uint8_t[size_bytes]);
    uint8_t* next = copy.get();
    RETURN_IF_ERROR(ReadTo(data, size_bytes, [&next](absl::Span<const uint8_t> bytes) {
      next = std::copy(bytes.begin(), bytes.end(), next);
    }));
    return HostView(std::move(copy), size_bytes);
  }

  absl::Status ReadTo(const uint8_t* data, int64_t size_bytes, Sink sink) const override {
    RETURN_IF_ERROR(health().status());
    return lanes_->Read(data, size_bytes, sink);
  }

  absl::Status Write(uint8_t* data, absl::Span<const uint8_t> bytes) const override {
    RETURN_IF_ERROR(health().status());
    return lanes_->Write(data, bytes);
  }

  absl::StatusOr<std::unique_ptr<ShardArithmetic>> MakeArithmetic(std::vector<ExtentTensors> tensors,
                                                                  StateMoves moves) override {
    RETURN_IF_ERROR(health().status());
    return CudaShardArithmetic::Create(id().index, std::move(tensors), moves);
  }

  int64_t MuonBytes(absl::Span<const MuonExtent> extents, absl::Span<const BandStart> bands) const override {
    return CudaMuon::BytesFor(id().index, extents, bands);
  }

  absl::StatusOr<std::unique_ptr<DeviceQueue>> MakeQueue() override {
    RETURN_IF_ERROR(health().status());
    ASSIGN_OR_RETURN(gpu::Stream stream, gpu::Stream::Create(id().index));
    return std::make_unique<CudaQueue>(std::move(stream));
  }

 private:
  const std::vector<int> group_;
  const std::string uuid_;
  std::unique_ptr<gpu::StagingLanes> lanes_;
  // The last member, because it calls health().
  const gpu::FaultWatch watch_{id().index, [this](const absl::Status& why) { health().Break(why); }};
};

absl::Status CheckPeers(const std::vector<int>& group) {
  for (int device : group) {
    for (int peer : group) {
      int reachable = 1;
      if (device != peer) {
        RETURN_IF_ERROR(
            gpu::ToStatus(cudaDeviceCanAccessPeer(&reachable, device, peer), absl::StrCat("device cuda:", device)));
      }
      if (reachable == 0) {
        return absl::FailedPreconditionError(absl::StrCat(
            "devices: cuda:", device, " cannot reach the memory of cuda:", peer, "; serve them by two daemons"));
      }
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<ComputeDevice>> OpenCudaDevice(const Device& id, const std::vector<int>& group) {
  const gpu::DeviceScope scope(id.index);
  cudaDeviceProp properties;
  RETURN_IF_ERROR(gpu::ToStatus(cudaGetDeviceProperties(&properties, id.index), absl::StrCat("device ", id.Name())));
  // Threads that wait for the device sleep instead of spinning.
  RETURN_IF_ERROR(gpu::ToStatus(cudaInitDevice(id.index, cudaDeviceScheduleBlockingSync, cudaInitDeviceFlagsAreValid),
                                absl::StrCat("open ", id.Name())));
  ASSIGN_OR_RETURN(auto lanes, gpu::StagingLanes::Create(id.index, kStagingLanes, kStagingBufferBytes));
  return std::make_unique<CudaDevice>(id, group, std::string(properties.uuid.bytes, sizeof(properties.uuid.bytes)),
                                      std::move(lanes));
}

}  // namespace

absl::StatusOr<std::vector<std::unique_ptr<ComputeDevice>>> OpenCudaDevices(absl::Span<const Device> devices) {
  gpu::SetNcclEnvironment();
  int count = 0;
  RETURN_IF_ERROR(gpu::ToStatus(cudaGetDeviceCount(&count), absl::StrCat("device ", devices.front().Name())));
  std::vector<int> group;
  for (const Device& device : devices) {
    if (device.index >= count) {
      return absl::FailedPreconditionError(
          absl::StrCat("device ", device.Name(), ": this process sees ", count, " GPUs (CUDA_VISIBLE_DEVICES?)"));
    }
    group.push_back(device.index);
  }
  RETURN_IF_ERROR(CheckPeers(group));
  std::vector<std::unique_ptr<ComputeDevice>> opened;
  for (const Device& device : devices) {
    ASSIGN_OR_RETURN(opened.emplace_back(), OpenCudaDevice(device, group));
  }
  return opened;
}

}  // namespace paramshard::server
