// A trainer's report: a file of JSON lines, one per event.
#ifndef PARAMSHARD_CLIENT_DEMO_TRAINING_REPORT_H_
#define PARAMSHARD_CLIENT_DEMO_TRAINING_REPORT_H_

#include <cstdint>
#include <fstream>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "nlohmann/json.hpp"

namespace paramshard::demo {

// Progress over the steps since the last report. Bytes and speed exclude the evaluation.
struct TrainingProgress {
  int64_t step = 0;            // steps trained in all
  double epoch = 0;            // passes over the data in all
  double loss = 0;             // mean over this rank's predictions
  double validation_loss = 0;  // mean over the held-out samples
  double accuracy = 0;         // on the held-out samples
  int64_t commit_number = 0;
  int64_t gathered_bytes_per_step = 0;
  int64_t bf16_bytes_per_step = 0;  // the same with BF16 weights
  double steps_per_second = 0;
};

// Events, besides "progress": "attached", "committed" (the first commit after it), "ended" (another trainer left, or
// another transient error), "rolled back" (the daemon came back with fewer commits), "kill" (this trainer is about to
// die), "holding" (it waits in the middle of a step) and "finished". Every line has the event's wall-clock time in
// seconds. A loss that is not finite is null.
class TrainingReport {
 public:
  // Appends to the file; an empty name writes nothing. NOT_FOUND if it cannot be opened.
  static absl::StatusOr<TrainingReport> Open(const std::string& file);

  void Event(absl::string_view event, nlohmann::json fields = nlohmann::json::object());
  void Progress(const TrainingProgress& progress);

 private:
  std::ofstream out_;
};

}  // namespace paramshard::demo

#endif  // PARAMSHARD_CLIENT_DEMO_TRAINING_REPORT_H_
