#include "server/models/left_readers.h"

#include <algorithm>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "server/base/thread.h"

namespace paramshard::server {

std::vector<LeftReader> LeftReaders::Deleted::Readers() const {
  std::vector<LeftReader> left;
  if (const std::shared_ptr<Publication> ended = publication.lock(); ended != nullptr) {
    for (ReaderReport& report : ended->readers()) left.push_back({model, std::move(report)});
  }
  return left;
}

LeftReaders::~LeftReaders() {
  std::thread thread;
  {
    absl::MutexLock lock(&mu_);
    ends_ = true;
    changed_.SignalAll();
    thread = std::move(thread_);
  }
  if (thread.joinable()) thread.join();
}

void LeftReaders::Watch(const std::string& model, const std::shared_ptr<Publication>& publication) {
  if (publication->readers().empty()) return;
  absl::MutexLock lock(&mu_);
  deleted_.remove_if([](const Deleted& deleted) { return deleted.is_over && deleted.Readers().empty(); });
  deleted_.push_back({.model = model, .publication = publication, .deadline = SteadyDeadline(grace_)});
  if (runs_) return;
  if (thread_.joinable()) thread_.join();  // it has ended, and takes the lock no more
  absl::StatusOr<std::thread> thread = StartThread("left readers", [this] { Run(); });
  // Without a thread there is no line; the list has them.
  if (!thread.ok()) return;
  thread_ = *std::move(thread);
  runs_ = true;
}

std::vector<LeftReader> LeftReaders::List() const {
  absl::MutexLock lock(&mu_);
  std::vector<LeftReader> left;
  for (const Deleted& deleted : deleted_) {
    for (LeftReader& reader : deleted.Readers()) left.push_back(std::move(reader));
  }
  return left;
}

void LeftReaders::Run() {
  absl::MutexLock lock(&mu_);
  while (!ends_) {
    const auto next =
        std::find_if(deleted_.begin(), deleted_.end(), [](const Deleted& deleted) { return !deleted.is_over; });
    if (next == deleted_.end()) break;
    // Nobody else removes it: its grace is not over.
    if (!changed_.WaitUntil(&mu_, next->deadline)) continue;
    next->is_over = true;
    Log(next->Readers());
  }
  runs_ = false;
  changed_.SignalAll();
}

void LeftReaders::AwaitGraces() {
  absl::MutexLock lock(&mu_);
  while (runs_) changed_.Wait(&mu_);
}

void LeftReaders::Log(const std::vector<LeftReader>& readers) const {
  for (const LeftReader& reader : readers) {
    log_->Write(LogLevel::kWarning, "reader still holds memory of a deleted model",
                {{"model", reader.model},
                 {"reader", reader.report.name},
                 {"pid", absl::StrCat(reader.report.pid)},
                 {"bytes", absl::StrCat(reader.report.mapped_bytes)}});
  }
}

}  // namespace paramshard::server
