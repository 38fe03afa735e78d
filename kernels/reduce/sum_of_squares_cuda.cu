#include "kernels/reduce/sum_of_squares_cuda.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "kernels/base/check.h"
#include "kernels/base/float_bits.h"
#include "kernels/base/status_macros.h"
#include "kernels/gpu/memory.h"
#include "kernels/gpu/pinned_memory.h"
#include "kernels/gpu/status.h"
#include "kernels/gpu/stream.h"

namespace paramshard::gpu {
namespace {

constexpr int kLanes = 256;
constexpr int kRounds = 16;
constexpr int64_t kChunk = int64_t{kLanes} * kRounds;
constexpr int kWarp = 32;

// An array that one level sums chunk by chunk: the extent's floats, then the chunk sums of the level before.
struct LevelArray {
  const void* values;
  int64_t count;
  // One per chunk; of the last level, the result's.
  double* sums;
  uint32_t extent;
};

// What one block sums.
struct Chunk {
  uint32_t array;
  uint32_t index;
};

// The square of a float is exact in double, so one fused operation rounds as the addition alone.
__device__ double AddTerm(double lane, float value) {
  const double wide = static_cast<double>(value);
  return fma(wide, wide, lane);
}
__device__ double AddTerm(double lane, double chunk_sum) { return lane + chunk_sum; }

__device__ int CountNonFinite(float value) {
  return (FloatBits(value) & kFloatMagnitudeMask) >= kFloatInfinityBits ? 1 : 0;
}
__device__ int CountNonFinite(double) { return 0; }

// The tree of step 3 in sum_of_squares.h. The result is thread 0's.
__device__ double CombineLanes(double lane) {
  __shared__ double lanes[kLanes];
  lanes[threadIdx.x] = lane;
  for (int width = kLanes / 2; width >= kWarp; width /= 2) {
    __syncthreads();
    if (threadIdx.x < width) lanes[threadIdx.x] = lanes[threadIdx.x] + lanes[threadIdx.x + width];
  }
  __syncwarp();
  lane = lanes[threadIdx.x];
  for (int width = kWarp / 2; width > 0; width /= 2) lane = lane + __shfl_down_sync(~0u, lane, width);
  return lane;
}

template <typename Value>
__global__ __launch_bounds__(kLanes) void SumChunksKernel(const LevelArray* arrays, const Chunk* chunks,
                                                          const uint8_t* active, SquareSum* results) {
  const Chunk chunk = chunks[blockIdx.x];
  const LevelArray array = arrays[chunk.array];
  if (!active[array.extent]) return;
  const int64_t first = int64_t{chunk.index} * kChunk + threadIdx.x;
  const Value* const values = static_cast<const Value*>(array.values) + first;
  Value loaded[kRounds];
#pragma unroll
  for (int round = 0; round < kRounds; ++round) {
    if (first + round * kLanes < array.count) loaded[round] = values[round * kLanes];
  }
  double lane = 0;
  int non_finite = 0;
#pragma unroll
  for (int round = 0; round < kRounds; ++round) {
    if (first + round * kLanes < array.count) {
      lane = AddTerm(lane, loaded[round]);
      non_finite += CountNonFinite(loaded[round]);
    }
  }
  const double sum = CombineLanes(lane);
  if (threadIdx.x == 0) array.sums[chunk.index] = sum;
  if (non_finite > 0) {
    atomicAdd(reinterpret_cast<unsigned long long*>(&results[array.extent].non_finite),
              static_cast<unsigned long long>(non_finite));
  }
}

int64_t ChunksIn(int64_t count) { return (count + kChunk - 1) / kChunk; }

// The arrays of one level and the chunks that they are cut into.
struct Level {
  std::vector<LevelArray> arrays;
  std::vector<Chunk> chunks;
};

void AddArray(const LevelArray& array, Level& level) {
  const auto index = static_cast<uint32_t>(level.arrays.size());
  level.arrays.push_back(array);
  for (int64_t i = 0; i < ChunksIn(array.count); ++i) level.chunks.push_back({index, static_cast<uint32_t>(i)});
}

template <typename T>
absl::StatusOr<DeviceMemory> Upload(int device, const std::vector<T>& values) {
  const int accessors[] = {device};
  ASSIGN_OR_RETURN(DeviceMemory memory,
                   DeviceMemory::Create(device, static_cast<int64_t>(values.size() * sizeof(T)), accessors, false));
  const DeviceScope scope(device);
  RETURN_IF_ERROR(ToStatus(cudaMemcpy(memory.data(), values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice),
                           "upload a table"));
  // A copy from memory that is not pinned may return before its last bytes have arrived.
  RETURN_IF_ERROR(AwaitStream(device, nullptr));
  return memory;
}

// A level on the device.
struct DeviceLevel {
  DeviceMemory arrays;
  DeviceMemory chunks;
  int64_t chunk_count = 0;
};

}  // namespace

class SquareSumPlan::Impl {
 public:
  Impl(int device, int64_t extent_count) : device_(device), extent_count_(extent_count) {}

  absl::Status Allocate(absl::Span<const SquareSumExtent> extents);
  absl::Status AddLevels(absl::Span<const SquareSumExtent> extents);
  absl::StatusOr<std::vector<SquareSum>> Run(const std::vector<bool>& active, cudaStream_t stream);

 private:
  absl::Status AddLevel(const Level& level);
  absl::Status Launch(size_t level, cudaStream_t stream);

  SquareSum* results() const { return reinterpret_cast<SquareSum*>(results_.data()); }
  double* ResultSum(uint32_t extent) const { return &results()[extent].sum; }

  // Constant after Create().
  int device_;
  int64_t extent_count_;
  std::vector<DeviceLevel> levels_;
  std::vector<DeviceMemory> partial_sums_;
  DeviceMemory active_;
  DeviceMemory results_;
  PinnedArray<uint8_t> host_active_;
  PinnedArray<SquareSum> host_results_;
};

absl::Status SquareSumPlan::Impl::Allocate(absl::Span<const SquareSumExtent> extents) {
  const int accessors[] = {device_};
  const auto count = static_cast<int64_t>(extents.size());
  ASSIGN_OR_RETURN(active_, DeviceMemory::Create(device_, count, accessors, false));
  ASSIGN_OR_RETURN(results_, DeviceMemory::Create(device_, count * sizeof(SquareSum), accessors, false));
  ASSIGN_OR_RETURN(host_active_, PinnedArray<uint8_t>::Create(count));
  ASSIGN_OR_RETURN(host_results_, PinnedArray<SquareSum>::Create(count));
  return AddLevels(extents);
}

absl::Status SquareSumPlan::Impl::AddLevels(absl::Span<const SquareSumExtent> extents) {
  // The arrays of the level below, whose `sums` are not decided yet.
  Level level;
  for (size_t i = 0; i < extents.size(); ++i) {
    if (extents[i].count == 0) continue;
    AddArray({extents[i].values, extents[i].count, nullptr, static_cast<uint32_t>(i)}, level);
  }
  while (!level.arrays.empty()) {
    int64_t sum_count = 0;
    for (const LevelArray& array : level.arrays) sum_count += ChunksIn(array.count);
    const int accessors[] = {device_};
    ASSIGN_OR_RETURN(DeviceMemory sums,
                     DeviceMemory::Create(device_, sum_count * static_cast<int64_t>(sizeof(double)), accessors, false));
    double* next = reinterpret_cast<double*>(sums.data());
    Level above;
    for (LevelArray& array : level.arrays) {
      const int64_t count = ChunksIn(array.count);
      array.sums = count == 1 ? ResultSum(array.extent) : next;
      if (count > 1) AddArray({array.sums, count, nullptr, array.extent}, above);
      next += count;
    }
    RETURN_IF_ERROR(AddLevel(level));
    partial_sums_.push_back(std::move(sums));
    level = std::move(above);
  }
  return absl::OkStatus();
}

absl::Status SquareSumPlan::Impl::AddLevel(const Level& level) {
  DeviceLevel uploaded;
  ASSIGN_OR_RETURN(uploaded.arrays, Upload(device_, level.arrays));
  ASSIGN_OR_RETURN(uploaded.chunks, Upload(device_, level.chunks));
  uploaded.chunk_count = static_cast<int64_t>(level.chunks.size());
  levels_.push_back(std::move(uploaded));
  return absl::OkStatus();
}

absl::Status SquareSumPlan::Impl::Launch(size_t level, cudaStream_t stream) {
  const DeviceLevel& tables = levels_[level];
  const auto blocks = static_cast<unsigned int>(tables.chunk_count);
  const auto* const arrays = reinterpret_cast<const LevelArray*>(tables.arrays.data());
  const auto* const chunks = reinterpret_cast<const Chunk*>(tables.chunks.data());
  if (level == 0) {
    SumChunksKernel<float><<<blocks, kLanes, 0, stream>>>(arrays, chunks, active_.data(), results());
  } else {
    SumChunksKernel<double><<<blocks, kLanes, 0, stream>>>(arrays, chunks, active_.data(), results());
  }
  return LaunchStatus("sum squares");
}

absl::StatusOr<std::vector<SquareSum>> SquareSumPlan::Impl::Run(const std::vector<bool>& active, cudaStream_t stream) {
  PARAMSHARD_CHECK(static_cast<int64_t>(active.size()) == extent_count_);
  std::vector<SquareSum> sums(extent_count_);
  if (levels_.empty()) return sums;
  const DeviceScope scope(device_);
  const size_t result_bytes = extent_count_ * sizeof(SquareSum);
  std::copy(active.begin(), active.end(), host_active_.data());
  RETURN_IF_ERROR(
      ToStatus(cudaMemcpyAsync(active_.data(), host_active_.data(), extent_count_, cudaMemcpyHostToDevice, stream),
               "upload the active extents"));
  RETURN_IF_ERROR(ToStatus(cudaMemsetAsync(results_.data(), 0, result_bytes, stream), "clear sums of squares"));
  for (size_t level = 0; level < levels_.size(); ++level) RETURN_IF_ERROR(Launch(level, stream));
  RETURN_IF_ERROR(
      ToStatus(cudaMemcpyAsync(host_results_.data(), results_.data(), result_bytes, cudaMemcpyDeviceToHost, stream),
               "download sums of squares"));
  RETURN_IF_ERROR(AwaitStream(device_, stream));
  std::copy_n(host_results_.data(), extent_count_, sums.begin());
  return sums;
}

absl::StatusOr<SquareSumPlan> SquareSumPlan::Create(int device, absl::Span<const SquareSumExtent> extents) {
  auto impl = std::make_unique<Impl>(device, static_cast<int64_t>(extents.size()));
  RETURN_IF_ERROR(impl->Allocate(extents));
  return SquareSumPlan(std::move(impl));
}

SquareSumPlan::SquareSumPlan(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
SquareSumPlan::SquareSumPlan(SquareSumPlan&& other) noexcept = default;
SquareSumPlan& SquareSumPlan::operator=(SquareSumPlan&& other) noexcept = default;
SquareSumPlan::~SquareSumPlan() = default;

absl::StatusOr<std::vector<SquareSum>> SquareSumPlan::Run(const std::vector<bool>& active, cudaStream_t stream) {
  return impl_->Run(active, stream);
}

}  // namespace paramshard::gpu
