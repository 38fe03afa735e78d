#include "kernels/optim/banded_step_cuda.h"

#include <cstdint>
#include <utility>

#include "kernels/base/status_macros.h"
#include "kernels/gpu/status.h"

namespace paramshard::gpu {
namespace {

static_assert(kBandLanes == 2, "one stream is the caller's, and one a BandedStep's");
constexpr int kWaitsFor = kBandLanes + 1;  // bands before

// Makes work enqueued on the stream from now on wait for the event.
absl::Status Await(const Event& event, cudaStream_t stream) {
  return ToStatus(cudaStreamWaitEvent(stream, event.get(), 0), "let a stream wait for another");
}

}  // namespace

absl::StatusOr<BandedStep> BandedStep::Create(int device) {
  ASSIGN_OR_RETURN(const BandMarks marks, BandMarks::Create(device));
  BandedStep step(device, marks);
  ASSIGN_OR_RETURN(step.other_, Stream::Create(device));
  for (int i = 0; i <= kWaitsFor; ++i) {
    ASSIGN_OR_RETURN(Event end, Event::Create(device));
    step.ends_.push_back(std::move(end));
  }
  return step;
}

absl::Status BandedStep::Run(FusedStepPlan& plan, bool forward, const StepProgress& progress, cudaStream_t stream,
                             const std::function<absl::Status(int)>& before_band) {
  const DeviceScope scope(device_);
  absl::Status status = RunBands(plan, forward, progress, stream, before_band);
  // Joins after an error too: work on the other stream must end before the caller's stream does.
  status.Update(Join(stream));
  return status;
}

absl::Status BandedStep::RunBands(FusedStepPlan& plan, bool forward, const StepProgress& progress, cudaStream_t stream,
                                  const std::function<absl::Status(int)>& before_band) {
  const cudaStream_t streams[kBandLanes] = {stream, before_band ? stream : other_.get()};
  // The first bands have no bands before them: they wait for this point of the stream.
  for (Event& end : ends_) RETURN_IF_ERROR(end.Record(stream));
  RETURN_IF_ERROR(Await(ends_.front(), other_.get()));
  for (int n = 0; n < plan.band_count(); ++n) {
    if (progress.HasDone(n)) continue;
    const StepProgress::Lane& words = progress.lanes[n % kBandLanes];
    const uint64_t word = progress.WordOf(n / kBandLanes + 1);
    const cudaStream_t lane = streams[n % kBandLanes];
    if (n >= kWaitsFor) RETURN_IF_ERROR(Await(EndOf(n - kWaitsFor), lane));
    RETURN_IF_ERROR(marks_.Write(words.begun, word, lane));
    if (before_band) RETURN_IF_ERROR(before_band(n));
    RETURN_IF_ERROR(plan.StepBand(BandAt(n, plan.band_count(), forward), lane));
    RETURN_IF_ERROR(marks_.Write(words.done, word, lane));
    RETURN_IF_ERROR(EndOf(n).Record(lane));
  }
  return absl::OkStatus();
}

absl::Status BandedStep::Join(cudaStream_t stream) {
  RETURN_IF_ERROR(ends_.front().Record(other_.get()));
  return Await(ends_.front(), stream);
}

}  // namespace paramshard::gpu
