#include "tests/faults/busy_gpu.h"

#include <utility>
#include <vector>

#include "kernels/base/polling.h"
#include "kernels/base/status_macros.h"
#include "kernels/gpu/memory.h"
#include "kernels/gpu/stream.h"
#include "tests/faults/bad_access.h"

namespace paramshard::test {
namespace {

constexpr int kStreams = 4;
// Kernels of a stream in a batch: while one batch runs the next one is queued.
constexpr int kBatch = 16;
constexpr double kKernelSeconds = 0.002;
constexpr int64_t kFloats = int64_t{1} << 20;

struct Lane {
  gpu::Stream stream;
  gpu::Event queued;  // behind the batch before the last one
};

absl::StatusOr<Lane> CreateLane(int gpu) {
  ASSIGN_OR_RETURN(gpu::Stream stream, gpu::Stream::Create(gpu));
  ASSIGN_OR_RETURN(gpu::Event queued, gpu::Event::Create(gpu));
  return Lane{.stream = std::move(stream), .queued = std::move(queued)};
}

absl::Status Refill(Lane& lane, float* floats) {
  ASSIGN_OR_RETURN(const bool is_done,
                   Poll({.timeout = gpu::kStreamTimeout}, [&lane] { return lane.queued.IsDone(); }));
  if (!is_done) return absl::DeadlineExceededError("a batch of kernels is not done");
  RETURN_IF_ERROR(lane.queued.Record(lane.stream.get()));
  for (int i = 0; i < kBatch; ++i) {
    RETURN_IF_ERROR(KeepWriting(floats, kFloats, kKernelSeconds, lane.stream.get()));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status KeepBusy(int gpu, const std::function<void()>& on_busy) {
  const gpu::DeviceScope scope(gpu);
  ASSIGN_OR_RETURN(const gpu::DeviceMemory memory,
                   gpu::DeviceMemory::Create(gpu, kFloats * sizeof(float), {gpu}, /*shareable=*/false));
  std::vector<Lane> lanes;
  for (int i = 0; i < kStreams; ++i) {
    ASSIGN_OR_RETURN(Lane lane, CreateLane(gpu));
    lanes.push_back(std::move(lane));
  }
  for (int round = 0;; ++round) {
    for (Lane& lane : lanes) RETURN_IF_ERROR(Refill(lane, reinterpret_cast<float*>(memory.data())));
    if (round == 2) on_busy();
  }
}

}  // namespace paramshard::test
