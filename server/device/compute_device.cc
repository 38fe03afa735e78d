#include "server/device/compute_device.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "kernels/optim/master_remainder.h"
#include "server/device/cuda_devices.h"

namespace paramshard::server {
namespace {

class CpuShardArithmetic final : public ShardArithmetic {
 public:
  explicit CpuShardArithmetic(std::vector<ExtentTensors> tensors)
      : tensors_(std::move(tensors)),
        needs_amax_(std::any_of(tensors_.begin(), tensors_.end(),
                                [](const ExtentTensors& extent) { return NeedsAmax(extent.encoding.format); })) {}

  absl::Status Fill(uint64_t seed, absl::Span<const Initial> initials) override {
    for (size_t i = 0; i < tensors_.size(); ++i) {
      const ExtentTensors& extent = tensors_[i];
      if (HasRemainder(extent)) {
        FillSplit(seed, initials[i], extent);
      } else {
        FillInitialValues(initials[i].value, seed, initials[i].parameter_index, initials[i].first_element,
                          extent.elements(), extent.state.master);
      }
    }
    return absl::OkStatus();
  }

  absl::Status EncodePlanes(absl::Span<const TensorScaling> scalings) override {
    for (size_t i = 0; i < tensors_.size(); ++i) Encode(i, scalings[i]);
    return absl::OkStatus();
  }

  absl::Status EncodeAfterAmax(const std::vector<bool>& active, absl::Span<const TensorScaling> scalings) override {
    for (size_t i = 0; i < tensors_.size(); ++i) {
      if (active[i]) Encode(i, scalings[i]);
    }
    return absl::OkStatus();
  }

  absl::StatusOr<std::vector<float>> MeasureAmaxes() override {
    std::vector<float> amaxes(tensors_.size(), 0.0f);
    for (size_t i = 0; i < tensors_.size(); ++i) {
      const ExtentTensors& extent = tensors_[i];
      if (NeedsAmax(extent.encoding.format)) amaxes[i] = Amax(extent.state.master, extent.elements());
    }
    return amaxes;
  }

  absl::StatusOr<std::vector<SquareSum>> SumSquares(const std::vector<bool>& active,
                                                    absl::Span<const SumTask> sums) override {
    ASSIGN_OR_RETURN(const std::vector<const SumTask*> sum_of, MatchSums(tensors_, active, sums));
    std::vector<SquareSum> squares(tensors_.size());
    for (size_t i = 0; i < tensors_.size(); ++i) {
      if (!active[i]) continue;
      const SumTask* const sum = sum_of[i];
      squares[i] = sum == nullptr
                       ? SumOfSquares(tensors_[i].gradient, tensors_[i].elements())
                       : SumGradientsAndSquares(sum->sources, sum->type, sum->count, sum->overwrite, sum->accumulator);
    }
    return squares;
  }

  absl::StatusOr<std::vector<float>> Step(absl::Span<const std::optional<AdamStep>> steps,
                                          absl::Span<const TensorScaling> scalings) override {
    std::vector<float> amaxes(tensors_.size(), 0.0f);
    for (size_t i = 0; i < tensors_.size(); ++i) {
      const ExtentTensors& extent = tensors_[i];
      if (!steps[i].has_value()) continue;
      amaxes[i] = FusedAdam(*steps[i], extent.gradient, extent.state, extent.rows, extent.columns, extent.encoding,
                            extent.row_wise, extent.column_wise, scalings[i]);
    }
    return needs_amax_ ? amaxes : std::vector<float>();
  }

 private:
  static bool HasRemainder(const ExtentTensors& extent) { return extent.state.remainder != nullptr; }

  static void FillSplit(uint64_t seed, const Initial& initial, const ExtentTensors& extent) {
    std::vector<float> values(std::min(extent.elements(), kFillElements));
    for (int64_t first = 0; first < extent.elements(); first += kFillElements) {
      const int64_t count = std::min(extent.elements() - first, kFillElements);
      FillInitialValues(initial.value, seed, initial.parameter_index, initial.first_element + first, count,
                        values.data());
      SplitMasters(values.data(), count, extent.row_wise.data + first * sizeof(uint16_t),
                   extent.state.remainder + first);
    }
  }

  void Encode(size_t index, const TensorScaling& scaling) const {
    const ExtentTensors& extent = tensors_[index];
    if (HasRemainder(extent)) return;
    paramshard::EncodePlanes(extent.encoding, extent.state.master, extent.rows, extent.columns, extent.row_wise,
                             extent.column_wise, scaling);
  }

  const std::vector<ExtentTensors> tensors_;
  const bool needs_amax_;
};

class CpuQueue final : public DeviceQueue {
 public:
  absl::Status Run(absl::Span<const CopyTask> copies, absl::Span<const SumTask> sums) override {
    for (const CopyTask& task : copies) std::memcpy(task.target, task.source, task.size_bytes);
    for (const SumTask& task : sums) {
      SumGradients(task.sources, task.type, task.count, task.overwrite, task.accumulator);
    }
    return absl::OkStatus();
  }
};

class CpuDevice final : public ComputeDevice {
 public:
  explicit CpuDevice(int index) : ComputeDevice({.kind = DeviceKind::kCpu, .index = index}) {}

  absl::StatusOr<Memory> Allocate(const std::string& name, int64_t size_bytes, Sharing sharing) override {
    return Memory::Allocate(name, size_bytes, sharing);
  }
  int64_t AvailableBytes() const override { return AvailableHostBytes(); }
  absl::StatusOr<std::unique_ptr<Memory::Owner>> OpenHostMemory(const Memory&) override { return nullptr; }

  absl::StatusOr<HostView> Read(const uint8_t* data, int64_t size_bytes) const override {
    return HostView(absl::MakeConstSpan(data, size_bytes));
  }
  absl::Status Write(uint8_t* data, absl::Span<const uint8_t> bytes) const override {
    std::copy(bytes.begin(), bytes.end(), data);
    return absl::OkStatus();
  }

  absl::StatusOr<std::unique_ptr<ShardArithmetic>> MakeArithmetic(std::vector<ExtentTensors> tensors) override {
    return std::make_unique<CpuShardArithmetic>(std::move(tensors));
  }

  absl::StatusOr<std::unique_ptr<DeviceQueue>> MakeQueue() override { return std::make_unique<CpuQueue>(); }
};

}  // namespace

absl::StatusOr<std::vector<const SumTask*>> MatchSums(absl::Span<const ExtentTensors> tensors,
                                                      const std::vector<bool>& active, absl::Span<const SumTask> sums) {
  absl::flat_hash_map<const void*, const SumTask*> sum_of;
  for (const SumTask& sum : sums) sum_of[sum.accumulator.data] = &sum;
  std::vector<const SumTask*> matched(tensors.size(), nullptr);
  size_t count = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (!active[i] || tensors[i].elements() == 0) continue;
    const auto found = sum_of.find(tensors[i].gradient.data);
    if (found == sum_of.end() || found->second->count != tensors[i].elements()) continue;
    matched[i] = found->second;
    ++count;
  }
  if (count == sums.size()) return matched;
  return absl::InvalidArgumentError(
      absl::StrCat("sum gradients: sums of whole extents that have gradients expected, got ", sums.size(), " of which ",
                   count, " are"));
}

std::unique_ptr<ComputeDevice> MakeCpuDevice(int index) { return std::make_unique<CpuDevice>(index); }

absl::StatusOr<std::vector<std::unique_ptr<ComputeDevice>>> OpenDevices(absl::Span<const Device> devices) {
  const auto is_cuda = [](const Device& device) { return device.kind == DeviceKind::kCuda; };
  if (std::any_of(devices.begin(), devices.end(), is_cuda)) {
    if (!std::all_of(devices.begin(), devices.end(), is_cuda)) {
      return absl::InvalidArgumentError("devices: either cpu or cuda devices expected, got both");
    }
    return OpenCudaDevices(devices);
  }
  std::vector<std::unique_ptr<ComputeDevice>> opened;
  for (const Device& device : devices) opened.push_back(MakeCpuDevice(device.index));
  return opened;
}

}  // namespace paramshard::server
