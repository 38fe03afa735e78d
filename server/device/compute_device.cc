#include "server/device/compute_device.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "kernels/reduce/gradient_sum.h"
#include "server/device/cpu_arithmetic.h"
#include "server/device/cuda_devices.h"

namespace paramshard::server {
namespace {

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
  absl::StatusOr<Memory> Adopt(const std::string& name, int64_t size_bytes, wire::FileDescriptor fd) override {
    return Memory::Adopt(name, size_bytes, std::move(fd));
  }
  int64_t AvailableBytes() const override { return AvailableHostBytes(); }
  absl::StatusOr<std::unique_ptr<Memory::Owner>> OpenHostMemory(const Memory&) override { return nullptr; }

  absl::Status ReadTo(const uint8_t* data, int64_t size_bytes, Sink sink) const override {
    RETURN_IF_ERROR(health().status());
    sink(absl::MakeConstSpan(data, static_cast<size_t>(size_bytes)));
    return absl::OkStatus();
  }

  absl::StatusOr<HostView> Read(const uint8_t* data, int64_t size_bytes) const override {
    return HostView(absl::MakeConstSpan(data, size_bytes));
  }
  absl::Status Write(uint8_t* data, absl::Span<const uint8_t> bytes) const override {
    std::copy(bytes.begin(), bytes.end(), data);
    return absl::OkStatus();
  }

  absl::StatusOr<std::unique_ptr<ShardArithmetic>> MakeArithmetic(std::vector<ExtentTensors> tensors,
                                                                  StateMoves moves) override {
    RETURN_IF_ERROR(CheckMoves(tensors, moves));
    return MakeCpuArithmetic(std::move(tensors), std::move(moves));
  }

  int64_t MuonBytes(absl::Span<const MuonExtent> extents, absl::Span<const BandStart>) const override {
    return HostMuonMemory(extents).Total();
  }

  absl::StatusOr<std::unique_ptr<DeviceQueue>> MakeQueue() override { return std::make_unique<CpuQueue>(); }
};

}  // namespace

std::vector<MuonExtent> MuonExtentsOf(absl::Span<const ExtentTensors> tensors) {
  std::vector<MuonExtent> extents;
  for (const ExtentTensors& each : tensors) extents.push_back({{each.rows, each.columns}, each.muon});
  return extents;
}

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
      absl::StrCat("sum gradients: want ", sums.size(), " sums of whole extents that have gradients, got ", count));
}

absl::Status CheckMoves(absl::Span<const ExtentTensors> tensors, const StateMoves& moves) {
  std::vector<MatrixShape> shapes;
  for (const ExtentTensors& extent : tensors) {
    shapes.push_back({extent.rows, extent.columns});
    if (moves.bands.empty() || extent.state.remainder == nullptr || extent.state.weights != nullptr) continue;
    return absl::InvalidArgumentError(
        "state moves: a master with a remainder needs weights apart from its row-wise plane");
  }
  RETURN_IF_ERROR(CheckBands(shapes, moves.bands));
  const bool has_distance = moves.distance > 0 && moves.distance % kMoveUnit == 0;
  if (moves.bands.empty() ? moves.distance != 0 : !has_distance) {
    return absl::InvalidArgumentError(absl::StrCat("moves of a state: want a distance that is a multiple of ",
                                                   kMoveUnit, " bytes, above 0 if there are bands, got ",
                                                   moves.distance));
  }
  if (moves.position == 0 || moves.position == moves.distance) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("moves of a state: want position 0 or ", moves.distance, ", got ", moves.position));
}

std::unique_ptr<ComputeDevice> MakeCpuDevice(int index) { return std::make_unique<CpuDevice>(index); }

absl::StatusOr<std::vector<std::unique_ptr<ComputeDevice>>> OpenDevices(absl::Span<const Device> devices) {
  const auto is_cuda = [](const Device& device) { return device.kind == DeviceKind::kCuda; };
  if (std::any_of(devices.begin(), devices.end(), is_cuda)) {
    if (!std::all_of(devices.begin(), devices.end(), is_cuda)) {
      return absl::InvalidArgumentError("devices: want either cpu or cuda devices, got both");
    }
    return OpenCudaDevices(devices);
  }
  std::vector<std::unique_ptr<ComputeDevice>> opened;
  for (const Device& device : devices) opened.push_back(MakeCpuDevice(device.index));
  return opened;
}

}  // namespace paramshard::server
