#include "server/world/node_reports.h"

#include <utility>
#include <variant>

namespace paramshard::server {

void NodeReports::Note(const FromNode& message) {
  const Overloaded note = {
      [this](const ModelReport& report) { reports_[report.model] = report; },
      [this](const ModelDeleted& deleted) { reports_.erase(deleted.model); },
      [this](const server::EndEpoch& end) { EndEpoch(end.model, end.epoch); },
      [](const auto&) {},
  };
  std::visit(note, message);
}

void NodeReports::Note(const ToNode& message) {
  const Overloaded note = {
      [this](const EpochStart& start) {
        running_[start.model] = start.epoch;
        // An earlier report is outdated by the epoch's first commit, and is not sent again.
        reports_.erase(start.model);
      },
      [this](const EpochEnded& ended) { EndEpoch(ended.model, ended.epoch); },
      [this](const EpochRefused& refused) { ForgetAttached(refused.model); },
      [](const auto&) {},
  };
  std::visit(note, message);
}

std::map<std::string, int64_t> NodeReports::EndEpochs() {
  for (const auto& [model, epoch] : running_) ForgetAttached(model);
  return std::exchange(running_, {});
}

void NodeReports::ForgetAttached(const std::string& model) {
  const auto report = reports_.find(model);
  if (report != reports_.end()) report->second.attached_ranks.clear();
}

void NodeReports::EndEpoch(const std::string& model, int64_t epoch) {
  const auto running = running_.find(model);
  if (running == running_.end() || running->second != epoch) return;
  running_.erase(running);
  ForgetAttached(model);
}

}  // namespace paramshard::server
