#include "server/models/left_readers.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "server/base/kill_process.h"
#include "server/base/thread.h"

namespace paramshard::server {
namespace {

// How long the keeper may know a reader that has left.
constexpr absl::Duration kSweep = absl::Seconds(5);

ReaderReport ReportOf(const Publication::ReaderInfo& info) {
  return {.name = info.name,
          .pid = info.pid,
          .uid = info.uid,
          .mapped_bytes = info.mapped_bytes,
          .held = {},
          .process = info.process};
}

// A process that has given up the daemon's user since it connected is another user's.
bool IsOfThisUser(const ReaderReport& report) {
  struct stat info {};
  return report.uid == geteuid() && stat(absl::StrCat("/proc/", report.pid).c_str(), &info) == 0 &&
         info.st_uid == geteuid();
}

}  // namespace

std::vector<LeftReader> LeftReaders::Group::Readers() const {
  std::vector<LeftReader> left;
  if (const std::shared_ptr<Publication> ended = publication.lock(); ended != nullptr) {
    for (ReaderReport& report : ended->readers()) left.push_back({.model = model, .report = std::move(report)});
  }
  for (const KeptReader& reader : kept) {
    if (!IsLocked(reader.page.get())) continue;
    left.push_back({.model = reader.model, .report = reader.report, .is_of_earlier_server = true});
  }
  return left;
}

LeftReaders::~LeftReaders() {
  std::thread thread;
  {
    absl::MutexLock lock(&mu_);
    work_.ends = true;
    changed_.SignalAll();
    thread = std::move(thread_);
  }
  if (thread.joinable()) thread.join();
}

void LeftReaders::TakeOver(KeptStore::Descriptors& all) {
  std::vector<KeptReader> kept = TakeReaders(all);
  if (kept.empty()) return;
  absl::MutexLock lock(&mu_);
  last_number_ = kept.back().number;
  groups_.push_back({.kept = std::move(kept), .deadline = SteadyDeadline(options_.grace)});
  StartThread();
}

void LeftReaders::Remember(const std::string& model, const Publication::ReaderInfo& info,
                           const std::shared_ptr<const Publication::Reader>& reader) {
  absl::MutexLock lock(&mu_);
  work_.opened.push_back({.number = ++last_number_, .model = model, .report = ReportOf(info), .reader = reader});
  StartThread();
}

void LeftReaders::NoteTrainer(pid_t pid) {
  absl::MutexLock lock(&mu_);
  for (Group& group : groups_) {
    for (KeptReader& reader : group.kept) {
      if (reader.report.pid == pid) reader.report.process = nullptr;
    }
  }
  // Without a reader there is nothing to note: its opening looks for trainers.
  if (!sweeps_ && work_.opened.empty()) return;
  work_.trainers.push_back(pid);
  StartThread();
}

void LeftReaders::Watch(const std::string& model, const std::shared_ptr<Publication>& publication) {
  if (publication->readers().empty()) return;
  absl::MutexLock lock(&mu_);
  groups_.remove_if([](const Group& group) { return group.is_over && group.Readers().empty(); });
  groups_.push_back({.model = model, .publication = publication, .deadline = SteadyDeadline(options_.grace)});
  StartThread();
}

std::vector<LeftReader> LeftReaders::List() const {
  absl::MutexLock lock(&mu_);
  std::vector<LeftReader> left;
  for (const Group& group : groups_) {
    for (LeftReader& reader : group.Readers()) left.push_back(std::move(reader));
  }
  return left;
}

void LeftReaders::AwaitIdle() {
  absl::MutexLock lock(&mu_);
  const auto is_over = [](const Group& group) { return group.is_over; };
  while (is_busy_ || !work_.opened.empty() || !work_.trainers.empty() ||
         !std::all_of(groups_.begin(), groups_.end(), is_over)) {
    changed_.Wait(&mu_);
  }
}

// --- The thread

void LeftReaders::StartThread() {
  changed_.SignalAll();
  if (thread_.joinable() || work_.ends) return;
  absl::StatusOr<std::thread> thread = server::StartThread("left readers", [this] { Run(); });
  // Without a thread they are listed only.
  if (thread.ok()) thread_ = *std::move(thread);
}

void LeftReaders::Run() {
  while (true) {
    Work work = AwaitWork();
    if (work.ends) return;
    DropClosed(work.closed);
    for (Remembered& reader : work.opened) Keep(std::move(reader));
    for (const pid_t pid : work.trainers) KeepTrainer(pid);
    // After the bookkeeping, which takes a while, and before the log, which may take long: who lets go meanwhile is not
    // ended.
    const std::vector<LeftReader> late = TakeLate();
    std::vector<std::string> why_not;
    for (const LeftReader& reader : late) why_not.push_back(End(reader.report));
    for (size_t i = 0; i < late.size(); ++i) Name(late[i], why_not[i]);
  }
}

LeftReaders::Work LeftReaders::AwaitWork() {
  absl::MutexLock lock(&mu_);
  is_busy_ = false;
  sweeps_ = !remembered_.empty() ||
            std::any_of(groups_.begin(), groups_.end(), [](const Group& group) { return !group.kept.empty(); });
  changed_.SignalAll();
  Work work;
  while (!TakeWork(work)) {
    std::optional<SteadyTime> next;
    if (sweeps_) next = SteadyDeadline(kSweep);
    for (const Group& group : groups_) {
      if (!group.is_over) next = std::min(next.value_or(group.deadline), group.deadline);
    }
    if (!next.has_value()) {
      changed_.Wait(&mu_);
    } else if (changed_.WaitUntil(&mu_, *next) && sweeps_) {
      TakeWork(work);
      break;
    }
  }
  is_busy_ = true;
  sweeps_ = true;  // until all of them are remembered
  for (Group& group : groups_) {
    std::erase_if(group.kept, [&](const KeptReader& reader) {
      if (IsLocked(reader.page.get())) return false;
      work.closed.push_back(reader.number);
      return true;
    });
  }
  return work;
}

bool LeftReaders::TakeWork(Work& work) {
  work = std::exchange(work_, {.ends = work_.ends});
  const bool is_late = std::any_of(groups_.begin(), groups_.end(), [now = SteadyNow()](const Group& group) {
    return !group.is_over && group.deadline <= now;
  });
  return work.ends || is_late || !work.opened.empty() || !work.trainers.empty();
}

std::vector<LeftReader> LeftReaders::TakeLate() {
  absl::MutexLock lock(&mu_);
  std::vector<LeftReader> late;
  const SteadyTime now = SteadyNow();
  for (Group& group : groups_) {
    if (group.is_over || group.deadline > now) continue;
    group.is_over = true;
    for (LeftReader& reader : group.Readers()) late.push_back(std::move(reader));
  }
  return late;
}

void LeftReaders::Keep(Remembered reader) {
  const std::shared_ptr<const Publication::Reader> open = reader.reader.lock();
  if (open == nullptr) return;
  reader.has_trained = options_.is_trainer(reader.report.pid);
  if (options_.kept != nullptr) {
    absl::Status kept = KeepReader(*options_.kept, reader.number, reader.model, reader.report, open->lease_page().fd());
    if (kept.ok() && !reader.has_trained && reader.report.process != nullptr) {
      kept = KeepProcess(*options_.kept, reader.number, reader.report.process->get());
    }
    if (!kept.ok()) {
      options_.log->Write(LogLevel::kWarning, "the next server will not know of a reader",
                          {{"model", reader.model}, {"reader", reader.report.name}, {"why", kept.ToString()}});
    }
  }
  remembered_.push_back(std::move(reader));
}

void LeftReaders::KeepTrainer(pid_t pid) {
  for (Remembered& reader : remembered_) {
    if (reader.report.pid != pid || std::exchange(reader.has_trained, true) || options_.kept == nullptr) continue;
    // If that fails the keeper is gone, and with it this server.
    DropProcess(*options_.kept, reader.number).IgnoreError();
  }
}

void LeftReaders::DropClosed(std::vector<int64_t> numbers) {
  remembered_.remove_if([&](const Remembered& reader) {
    if (!reader.reader.expired()) return false;
    numbers.push_back(reader.number);
    return true;
  });
  if (options_.kept == nullptr) return;
  // The next server drops those that a keeper still has.
  for (const int64_t number : numbers) DropReader(*options_.kept, number).IgnoreError();
}

std::string LeftReaders::WhyNotEnded(const ReaderReport& report) const {
  if (!IsOfThisUser(report)) return absl::StrCat("it does not run as user ", geteuid());
  if (report.pid == getpid()) return "it is the daemon";
  const bool has_trained = std::any_of(remembered_.begin(), remembered_.end(), [&](const Remembered& reader) {
    return reader.report.pid == report.pid && reader.has_trained;
  });
  // The process of a reader that has trained is not kept.
  if (has_trained || report.process == nullptr || options_.is_trainer(report.pid)) return "it trains, or has trained";
  return "";
}

std::string LeftReaders::End(const ReaderReport& report) const {
  std::string why_not = options_.ends ? WhyNotEnded(report) : "--end-stuck-readers is off";
  if (why_not.empty()) why_not = std::string(KillProcess(report.process->get()).message());
  if (why_not.empty()) options_.metrics->Add(Metric::kReadersEnded);
  return why_not;
}

void LeftReaders::Name(const LeftReader& reader, const std::string& why_not) const {
  const std::string memory =
      reader.is_of_earlier_server ? "memory of a server that has ended" : "memory of a deleted model";
  const bool is_ended = why_not.empty();
  options_.log->Write(LogLevel::kWarning,
                      absl::StrCat(is_ended ? "killed a reader that held " : "reader still holds ", memory),
                      {{"model", reader.model},
                       {"reader", reader.report.name},
                       {"pid", absl::StrCat(reader.report.pid)},
                       {"bytes", absl::StrCat(reader.report.mapped_bytes)},
                       {is_ended ? "why" : "not_killed", is_ended ? "--end-stuck-readers is on" : why_not}});
}

}  // namespace paramshard::server
