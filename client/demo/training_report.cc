#include "client/demo/training_report.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace paramshard::demo {

absl::StatusOr<TrainingReport> TrainingReport::Open(const std::string& file) {
  TrainingReport report;
  if (file.empty()) return report;
  report.out_.open(file, std::ios::app);
  if (report.out_.is_open()) return report;
  return absl::NotFoundError(absl::StrCat("report ", file, ": failed to open the file"));
}

void TrainingReport::Event(absl::string_view event, nlohmann::json fields) {
  if (!out_.is_open()) return;
  fields["event"] = std::string(event);
  fields["time"] = absl::ToDoubleSeconds(absl::Now() - absl::UnixEpoch());
  out_ << fields.dump() << std::endl;
}

void TrainingReport::Progress(const TrainingProgress& progress) {
  Event("progress", {{"step", progress.step},
                     {"epoch", progress.epoch},
                     {"loss", progress.loss},
                     {"validation_loss", progress.validation_loss},
                     {"accuracy", progress.accuracy},
                     {"commit_number", progress.commit_number},
                     {"gathered_bytes_per_step", progress.gathered_bytes_per_step},
                     {"bf16_bytes_per_step", progress.bf16_bytes_per_step},
                     {"steps_per_second", progress.steps_per_second}});
}

}  // namespace paramshard::demo
