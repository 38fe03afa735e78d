#include "server/training/epoch.h"

#include <algorithm>
#include <deque>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "server/base/steady_time.h"
#include "server/base/thread.h"
#include "server/observe/log.h"
#include "server/observe/trace.h"
#include "server/training/command_text.h"
#include "server/training/epoch_opening.h"

namespace paramshard::server {
namespace {

constexpr absl::Duration kReasonTimeout = absl::Seconds(2);
// Longest time that a step and its answer take, unless something is broken; trainers then stop waiting for a commit's
// fate.
constexpr absl::Duration kFateTimeout = absl::Seconds(5);
// Largest size of commands as texts that go to node 0 in one message.
constexpr size_t kMostBytesOfWords = size_t{1} << 20;

// Does not log a broken device: that was logged when it broke.
void LogUnencoded(const Shard& shard, const absl::Status& status) {
  if (!shard.memory().device().health().status().ok()) return;
  Log(LogLevel::kError, "failed to encode planes",
      {{"device", shard.memory().device().Name()}, {"why", status.ToString()}});
}

absl::Status Departure(const Trainer& trainer) {
  return absl::AbortedError(absl::StrCat("rank ", trainer.rank, ": process ", trainer.pid, " has left"));
}

}  // namespace

Epoch::Epoch(const EpochContext& context, EpochStart start, std::vector<Trainer> trainers)
    : context_(context),
      model_(context.model),
      start_(std::move(start)),
      trainers_(std::move(trainers)),
      topology_(model_.topology.Among(start_.active)),
      state_(context, start_.epoch),
      engines_(context, state_, topology_),
      gathers_(context_, topology_, state_, engines_),
      pushes_(context_, start_, topology_, state_, engines_) {}

// --- From start to end

absl::Status Epoch::Run() {
  if (absl::Status status = Prepare(); !status.ok()) End(status);
  std::vector<std::thread> threads;
  if (absl::Status status = StartThreads(threads); !status.ok()) End(status);
  ServeDepartures();
  // Must come before engines are aborted, which ends what ranks are doing.
  last_words_ = LastWords(*state_.recorder, TraceNow());
  const absl::Status why = AwaitReason();
  engines_.JoinWatch();
  // The world is told before the threads are waited for: one of them may be waiting for the world's votes.
  TellClusterOfEnd(why);
  AwaitCommitFate();
  // The same holds for trainers: whatever a thread is doing, no trainer waits for it.
  EndPages(Explained(why));
  for (std::thread& thread : threads) thread.join();
  Clean();
  const absl::Status explained = Explained(why);
  for (int rank = 0; rank < model_.ranks(); ++rank) TellEnd(rank, explained);
  return explained;
}

absl::Status Epoch::Prepare() {
  EpochOpening opening(context_, start_, topology_, state_, engines_);
  RETURN_IF_ERROR(opening.AllocateRankSlots());
  absl::Status opened = engines_.Connect(start_);
  const bool is_cut_off = !opened.ok() && !engines_.bad_links().empty();
  if (opened.ok()) opened = opening.Heal();
  if (opened.ok()) opened = opening.EncodeByAmax();
  {
    // A connection that breaks here may only show that the epoch has ended elsewhere; a connection that cannot be made
    // at all is a reason of its own.
    absl::MutexLock lock(&state_.mu);
    is_cut_off ? state_.End(opened) : state_.EndOnError(opened);
  }
  if (!ended()) context_.host.OnEpochReady();
  // Trainers of an epoch that has ended meanwhile hear of the end alone.
  return ended() ? absl::OkStatus() : opening.Greet(trainers_);
}

absl::Status Epoch::StartThreads(std::vector<std::thread>& threads) {
  if (ended()) return absl::OkStatus();
  for (int rank = 0; rank < model_.ranks(); ++rank) {
    const std::string whose = absl::StrCat(" of rank ", model_.world.first_rank + rank, " of ", model_.name());
    ASSIGN_OR_RETURN(std::thread gathers, StartThread("gathers" + whose, [this, rank] { gathers_.Run(rank); }));
    threads.push_back(std::move(gathers));
    ASSIGN_OR_RETURN(std::thread pushes, StartThread("pushes" + whose, [this, rank] { pushes_.Run(rank); }));
    threads.push_back(std::move(pushes));
  }
  return absl::OkStatus();
}

void Epoch::ServeDepartures() {
  for (DepartureUpdate update; !(update = state_.AwaitDepartureUpdate()).empty();) Tell(update);
}

void Epoch::Tell(const DepartureUpdate& update) {
  Cluster& cluster = *model_.world.cluster;
  if (update.leaving.has_value()) {
    const RankSlot& rank_slot = *state_.rank_slots[*update.leaving];
    int64_t last_point;
    {
      absl::MutexLock lock(&state_.mu);
      last_point = state_.sequence.LastPoint(*update.leaving);
    }
    const absl::Status departure = Departure(trainers_[*update.leaving]);
    const RankDetached detached{.model = model_.name(),
                                .epoch = number(),
                                .rank = rank_slot.rank(),
                                .command_count = last_point,
                                .why = departure};
    cluster.Send(detached).IgnoreError();
    SendEnded(*update.leaving, Explained(departure));
  }
  if (update.progress.has_value()) {
    const auto [point, more] = *update.progress;
    const CommandsCarriedOut done{.model = model_.name(), .epoch = number(), .command = point, .more = more};
    cluster.Send(done).IgnoreError();
  }
}

// The coordinator names the departed rank or the lost node; its word follows a broken connection closely.
absl::Status Epoch::AwaitReason() {
  absl::Status first;
  {
    absl::MutexLock lock(&state_.mu);
    first = state_.end.why();
  }
  engines_.Abort(first);
  absl::MutexLock lock(&state_.mu);
  const SteadyTime deadline = SteadyDeadline(kReasonTimeout);
  while (state_.end.open() && !state_.work.WaitUntil(&state_.mu, deadline)) {
  }
  state_.end.Close();
  return state_.end.why();
}

void Epoch::TellClusterOfEnd(const absl::Status& why) const {
  Cluster& cluster = *model_.world.cluster;
  const std::vector<BadLink> links = engines_.bad_links();
  for (const BadLink& link : links) {
    Log(LogLevel::kWarning, "cannot reach another daemon over the data network",
        {{"model", model_.name()},
         {"epoch", absl::StrCat(number())},
         {"node", absl::StrCat(link.peer)},
         {"from", link.address},
         {"to", link.peer_address}});
  }
  const EndEpoch end{.model = model_.name(), .epoch = number(), .why = why, .bad_links = links};
  cluster.Send(end).IgnoreError();
}

void Epoch::AwaitCommitFate() {
  absl::MutexLock lock(&state_.mu);
  const SteadyTime deadline = SteadyDeadline(kFateTimeout);
  while (state_.CommitOpen() && !state_.work.WaitUntil(&state_.mu, deadline)) {
  }
}

absl::Status Epoch::Explained(const absl::Status& why) const {
  bool open;
  {
    absl::MutexLock lock(&state_.mu);
    open = state_.CommitOpen();
  }
  const CommitLog::Numbers numbers = context_.state.commits.numbers();
  const std::string resume =
      open ? absl::StrCat("whether commit ", numbers.commit_number + 1,
                          " was applied is not known yet; resume from the "
                          "commit that the next epoch names")
           : absl::StrCat("resume from commit ", numbers.commit_number, " (version ", numbers.version, ")");
  return absl::Status(why.code(),
                      absl::StrCat("epoch ", number(), " of ", model_.name(), ": ", why.message(), "; ", resume));
}

void Epoch::EndPages(const absl::Status& why) const {
  for (const auto& rank_slot : state_.rank_slots) rank_slot->EndPage(why);
}

// Called when no thread of the epoch is left.
void Epoch::Clean() {
  engines_.Clear();
  const Publication::Writing writing(*context_.state.publication, Publication::Hold::kNone);
  for (const auto& shard : context_.state.shards) {
    shard->gradients().Drop();
    // A trainer that wrote over exported planes spoils its own epoch only.
    const absl::Status encoded = shard->EncodePlanes(context_.state.book);
    if (!encoded.ok()) LogUnencoded(*shard, encoded);
  }
}

void Epoch::TellEnd(int rank, const absl::Status& why) {
  RankSlot& rank_slot = *state_.rank_slots[rank];
  // Also moves ahead words that a stream of the daemon has written after the end.
  rank_slot.EndPage(why);
  bool gone, told;
  {
    absl::MutexLock lock(&state_.mu);
    gone = rank_slot.gone;
    told = std::exchange(rank_slot.told, true);
  }
  if (gone) rank_slot.DiscardSlots();
  if (!told) SendEnded(rank, why);
}

void Epoch::SendEnded(int rank, const absl::Status& why) const {
  trainers_[rank].on_ended({.epoch = number(), .numbers = context_.state.commits.numbers(), .why = why});
}

void Epoch::End(const absl::Status& why) {
  {
    absl::MutexLock lock(&state_.mu);
    state_.End(why);
  }
  // Engines are aborted for the same reason.
  engines_.Abort(why);
}

void Epoch::EndAfterCommits(const absl::Status& why) {
  bool now;
  {
    absl::MutexLock lock(&state_.mu);
    now = state_.EndAfterCommits(why);
  }
  if (now) End(why);
}

OpenCommit Epoch::open_commit() const {
  absl::MutexLock lock(&state_.mu);
  return state_.commit.open();
}

// --- Trainers

const Trainer* Epoch::TrainerOf(int64_t session) const {
  const auto found = std::find_if(trainers_.begin(), trainers_.end(),
                                  [&](const Trainer& trainer) { return trainer.session == session; });
  return found == trainers_.end() ? nullptr : &*found;
}

absl::Status Epoch::Submit(int rank, v1::Command command) {
  SentCommand sent(std::move(command));
  RankSlot& rank_slot = *state_.rank_slots[rank];
  const std::string what = absl::StrCat("command ", sent.command.number(), " of rank ", rank_slot.rank());
  absl::MutexLock lock(&state_.mu);
  if (state_.end.ended()) return absl::OkStatus();
  if (!rank_slot.started) return absl::FailedPreconditionError(what + ": sent before `started`");
  if (state_.sequence.Room(rank) == 0) {
    return absl::ResourceExhaustedError(absl::StrCat(what, ": want at most ", Sequence::kMostCommands,
                                                     " unfinished commands, of ", Sequence::kMostBytes,
                                                     " bytes together, got more; wait until some are done"));
  }
  state_.Take(rank, std::move(sent));
  state_.WakeRunnable();
  // A wait that begins here has a deadline, which the gather thread watches.
  rank_slot.Call();
  return absl::OkStatus();
}

void Epoch::MarkGone(int rank) {
  absl::MutexLock lock(&state_.mu);
  state_.rank_slots[rank]->gone = true;
}

void Epoch::ReportCommands(const CommandsThrough& unless) const {
  std::deque<CommandChain::Link> links;
  {
    absl::MutexLock lock(&state_.mu);
    const CommandChain& chain = state_.sequence.chain();
    if (unless.number != 0 && chain.Through(unless.number).value_or(unless.hash) == unless.hash) return;
    links = chain.links();
  }
  std::vector<CommandInWords> commands;
  size_t bytes = 0;
  for (const CommandChain::Link& link : links) {
    v1::Command command;
    if (!command.ParseFromString(link.canonical)) continue;  // it was parsed before
    std::string text = CommandText(model_.spec, command);
    if ((bytes += text.size()) > kMostBytesOfWords) break;
    commands.push_back({.number = link.number, .rank = link.rank, .text = std::move(text)});
  }
  const CommandReports reports{.model = model_.name(), .epoch = number(), .commands = std::move(commands)};
  model_.world.cluster->Send(reports).IgnoreError();
}

bool Epoch::HasLeft(int rank) const {
  absl::MutexLock lock(&state_.mu);
  return state_.rank_slots[rank]->left;
}

bool Epoch::LeftInOrder() const {
  absl::MutexLock lock(&state_.mu);
  return std::all_of(state_.rank_slots.begin(), state_.rank_slots.end(),
                     [](const auto& rank_slot) { return rank_slot->left; });
}

// --- Inspection

std::string Epoch::WaitsFor(int rank) const {
  absl::MutexLock lock(&state_.mu);
  if (!state_.rank_slots[rank]->has_memory()) return "the daemon";
  const bool voting = model_.world.cluster->nodes() > 1 && state_.commit.vote_deadline() != kNever;
  return voting ? "the votes of other daemons" : state_.sequence.WaitsFor(rank);
}

int64_t Epoch::last_command(int rank) const {
  absl::MutexLock lock(&state_.mu);
  return state_.sequence.last_command(rank);
}

int64_t Epoch::words_bytes() const {
  return static_cast<int64_t>(wire::Words::SizeBytes(RankSlot::CountsOf(model_.layout)));
}

}  // namespace paramshard::server
