#include "server/state/publication.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"

namespace paramshard::server {
namespace {

using State = wire::Gate::State;

// A lease may be released by a stream of a GPU, which wakes nobody: a writer that waits looks this often.
constexpr absl::Duration kLook = absl::Microseconds(50);
constexpr absl::Duration kAskCancelled = absl::Milliseconds(100);

// Number of waits that are kept for traces, and of readers that each names.
constexpr size_t kMostWaits = 64;
constexpr size_t kMostNamed = 4;

std::string NameOf(const Publication::ReaderInfo& info) {
  return absl::StrCat(info.name.empty() ? "reader" : info.name, " (pid ", info.pid, ")");
}

}  // namespace

absl::StatusOr<std::shared_ptr<Publication>> Publication::Create(Options options) {
  ASSIGN_OR_RETURN(Memory page,
                   Memory::Allocate("paramshard-publication", wire::PublicationPage::kBytes, Sharing::kReadOnly));
  return std::shared_ptr<Publication>(new Publication(options, std::move(page)));
}

Publication::Publication(Options options, Memory page)
    : options_(options),
      page_(std::move(page)),
      publication_(page_.data()),
      gate_({.generation = 1, .state = State::kWriting}),
      allowance_(options_.reader_hold),
      allowed_at_(options_.clock->Now()) {
  publication_.SetText("the model is being made");
  publication_.SetGate(gate_);
}

// --- Writers

void Publication::BeginWriting(Hold hold) {
  absl::MutexLock lock(&mu_);
  Enter(hold);
}

void Publication::EndWriting() {
  absl::MutexLock lock(&mu_);
  --writers_;
}

void Publication::BeginCommit() {
  absl::MutexLock lock(&mu_);
  if (commits_) {
    while (gate_.state == State::kAsked) changed_.Wait(&mu_);
    return;
  }
  commits_ = true;
  Enter(Hold::kBounded);
}

void Publication::EndCommit() {
  absl::MutexLock lock(&mu_);
  if (std::exchange(commits_, false)) --writers_;
}

void Publication::Enter(Hold hold) {
  ++writers_;
  // Another writer has asked, and does not wait for ever.
  while (gate_.state == State::kAsked) changed_.Wait(&mu_);
  if (gate_.state != State::kValid) return;
  SetGate(State::kAsked);
  if (hold == Hold::kBounded) AwaitReleases();
  if (gate_.state == State::kEnded) return;
  NoteLateReaders();
  publication_.SetText("planes are being written");
  ++gate_.generation;
  SetGate(State::kWriting);
}

void Publication::AwaitReleases() {
  const SteadyTime begin = options_.clock->Now();
  std::vector<Seat*> holders = Holders();
  if (holders.empty()) return;
  const absl::Duration allowance = Allowance(begin);
  const SteadyTime deadline = After(begin, allowance);
  BeginWait(holders);
  SteadyTime now = begin;
  while (!holders.empty() && now < deadline && gate_.state == State::kAsked) {
    changed_.WaitUntil(&mu_, SteadyDeadline(kLook));
    const SteadyTime before = std::exchange(now, options_.clock->Now());
    // Readers that have left meanwhile have no seat any more.
    holders = Holders();
    for (Seat* const holder : holders) holder->held += absl::FromChrono(now - before);
  }
  waits_.back().end_ns = TraceNow();
  // Below 0 where the machine was busy and the wait ended late: later ones make up for it.
  allowance_ -= absl::FromChrono(now - begin);
  options_.metrics->Observe(Metric::kReaderWait, now - begin);
  for (Seat* const holder : holders) {
    ++holder->ended;
    // One that was given no time has not been late.
    if (allowance > absl::ZeroDuration()) holder->trusted_from = holder->lease.released() + kReleasesAfterEnd;
  }
}

void Publication::BeginWait(absl::Span<Seat* const> holders) {
  if (waits_.size() == kMostWaits) waits_.pop_front();
  ReaderWait& wait = waits_.emplace_back(ReaderWait{.begin_ns = TraceNow()});
  for (const Seat* const holder : holders.subspan(0, kMostNamed)) wait.readers.push_back(NameOf(holder->info));
  if (holders.size() <= kMostNamed) return;
  wait.readers.push_back(absl::StrCat("and ", holders.size() - kMostNamed, " more"));
}

std::vector<Publication::Seat*> Publication::Holders() {
  std::vector<Seat*> holders;
  for (Seat& seat : seats_) {
    if (seat.lease.released() >= seat.trusted_from && seat.lease.Holds(gate_.generation)) holders.push_back(&seat);
  }
  return holders;
}

// Where the reader is not trusted yet, this release does not count.
void Publication::NoteLateReaders() {
  for (Seat& seat : seats_) {
    if (seat.lease.Holds(gate_.generation) && seat.lease.released() < seat.trusted_from) ++seat.trusted_from;
  }
}

// Short waits that are given up at once help no reader and use the time up: a wait begins with half a hold at least.
absl::Duration Publication::Allowance(SteadyTime now) {
  allowance_ += absl::FromChrono(now - std::exchange(allowed_at_, now)) * kMostHeld;
  allowance_ = std::min(allowance_, options_.reader_hold);
  return allowance_ >= options_.reader_hold / 2 ? allowance_ : absl::ZeroDuration();
}

void Publication::SetGate(State state) {
  gate_.state = state;
  publication_.SetGate(gate_);
  changed_.SignalAll();
}

void Publication::Publish(absl::FunctionRef<absl::StatusOr<wire::PublishedVersion>()> present) {
  absl::MutexLock lock(&mu_);
  if (writers_ > 0 || gate_.state != State::kWriting) return;
  const absl::StatusOr<wire::PublishedVersion> version = present();
  if (!version.ok()) return publication_.SetText(version.status().message());
  publication_.SetVersion(*version);
  publication_.SetText("");
  SetGate(State::kValid);
  Grant();
  if (options_.count != nullptr) options_.count->Add();
}

uint64_t Publication::next_generation() const {
  absl::MutexLock lock(&mu_);
  return gate_.generation + (gate_.state == State::kWriting ? 0 : 1);
}

void Publication::End(absl::string_view why) {
  absl::MutexLock lock(&mu_);
  if (gate_.state == State::kEnded) return;
  publication_.SetText(why);
  SetGate(State::kEnded);
  if (options_.count != nullptr) options_.count->Add();
}

bool Publication::is_writing() const {
  const State state = publication_.gate().state;
  return state == State::kWriting || state == State::kEnded;
}

std::optional<wire::PublishedVersion> Publication::last_published() const {
  absl::MutexLock lock(&mu_);
  const wire::PublishedVersion version = publication_.version();
  if (gate_.state == State::kEnded || version == wire::PublishedVersion()) return std::nullopt;
  return version;
}

// --- Readers

absl::StatusOr<std::unique_ptr<Publication::Reader>> Publication::Seated(ReaderInfo info) {
  if (gate_.state == State::kEnded) return absl::UnavailableError(publication_.text());
  if (seats_.size() >= kMostReaders) {
    return absl::ResourceExhaustedError(
        absl::StrCat("want at most ", kMostReaders, " readers, got one more; end one of them"));
  }
  ASSIGN_OR_RETURN(Memory memory, Memory::Allocate("paramshard-lease", wire::LeasePage::kBytes, Sharing::kReadWrite));
  seats_.push_back({.number = ++last_number_, .info = std::move(info), .lease = wire::LeasePage(memory.data())});
  return std::make_unique<Reader>(shared_from_this(), last_number_, std::move(memory));
}

absl::StatusOr<std::unique_ptr<Publication::Reader>> Publication::AddReader(ReaderInfo info) {
  absl::MutexLock lock(&mu_);
  return Seated(std::move(info));
}

void Publication::Remove(int64_t number) {
  absl::MutexLock lock(&mu_);
  seats_.remove_if([&](const Seat& seat) { return seat.number == number; });
  changed_.SignalAll();
}

void Publication::Grant() {
  const wire::PublishedVersion version = publication_.version();
  for (Seat& seat : seats_) {
    if (!seat.wanted.has_value() || !IsSameState(*seat.wanted, version)) continue;
    seat.wanted.reset();
    if (!seat.lease.Take(publication_, gate_)) continue;
    seat.granted = gate_.generation;
    seat.granted_version = version;
  }
}

absl::StatusOr<Publication::Lease> Publication::TakeAt(ReaderInfo info, const wire::PublishedVersion& wanted,
                                                       SteadyTime deadline, absl::FunctionRef<bool()> is_cancelled) {
  Lease lease;           // ends without the lock, which its reader takes
  Seat* seat = nullptr;  // as long as the reader
  {
    absl::MutexLock lock(&mu_);
    ASSIGN_OR_RETURN(lease.reader, Seated(std::move(info)));
    seat = &seats_.back();
    seat->wanted = wanted;
    if (gate_.state == State::kValid) Grant();
  }
  while (true) {
    // Without the lock: the answer may need locks of calls, whose ends need this one.
    if (is_cancelled()) return absl::CancelledError("the caller is gone");
    absl::MutexLock lock(&mu_);
    if (seat->granted != 0) {
      lease.generation = seat->granted;
      lease.version = seat->granted_version;
      return lease;
    }
    if (gate_.state == State::kEnded) return absl::UnavailableError(publication_.text());
    const wire::PublishedVersion version = publication_.version();
    const bool is_history = version.history() == wanted.history();
    if (gate_.state == State::kValid && (!is_history || version.commit_number >= wanted.commit_number)) {
      return absl::AbortedError(absl::StrCat("want commit ", wanted.commit_number, ", the model is at commit ",
                                             version.commit_number, is_history ? "" : " of another history"));
    }
    if (TimeLeft(deadline) == absl::ZeroDuration()) {
      return absl::DeadlineExceededError(absl::StrCat("timed out waiting for commit ", wanted.commit_number,
                                                      ", the model is at commit ", version.commit_number));
    }
    changed_.WaitUntil(&mu_, std::min(deadline, SteadyDeadline(kAskCancelled)));
  }
}

bool Publication::IsHeld(uint64_t generation) const {
  const wire::Gate gate = publication_.gate();
  return gate.readable() && gate.generation == generation;
}

std::vector<ReaderReport> Publication::readers() const {
  absl::MutexLock lock(&mu_);
  std::vector<ReaderReport> reports;
  for (const Seat& seat : seats_) {
    reports.push_back({.number = seat.number,
                       .name = seat.info.name,
                       .pid = seat.info.pid,
                       .uid = seat.info.uid,
                       .mapped_bytes = seat.info.mapped_bytes,
                       .is_reading = gate_.readable() && seat.lease.Holds(gate_.generation),
                       .snapshots = static_cast<int64_t>(seat.lease.released()),
                       .ended_snapshots = seat.ended,
                       .held = seat.held,
                       .process = seat.info.process});
  }
  return reports;
}

std::vector<ReaderWait> Publication::waits() const {
  absl::MutexLock lock(&mu_);
  return {waits_.begin(), waits_.end()};
}

}  // namespace paramshard::server
