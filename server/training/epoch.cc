#include "server/training/epoch.h"

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "server/base/thread.h"
#include "server/data_plane/engines.h"
#include "server/observe/log.h"
#include "server/observe/log_throttle.h"
#include "server/observe/trace.h"
#include "server/state/replica_state.h"
#include "server/terms/healing_plan.h"

namespace paramshard::server {
namespace {

constexpr absl::Duration kReasonTimeout = absl::Seconds(2);
// Longest time that a step and its answer take, unless something is broken; trainers then stop waiting for a commit's
// fate.
constexpr absl::Duration kFateTimeout = absl::Seconds(5);

Sequence::Options SequenceOptions(const Epoch::Options& options) {
  return {.spec = options.spec,
          .layout = options.layout,
          .ranks = static_cast<int>(options.shards.size()),
          .first_rank = options.first_rank,
          .commit_number = options.commit_log->numbers().commit_number,
          .step_timeout = options.step_timeout,
          .may_save = options.may_save,
          .chains_commands = options.cluster->nodes() > 1};
}

wire::WordsCounts CountsOf(const Layout& layout) {
  return {.slots = static_cast<int>(layout.slot_offsets().size()),
          .ranks = layout.ranks(),
          .gradient_slots = static_cast<int>(layout.gradient_slot_offsets().size())};
}

// Does not log a broken device: that was logged when it broke.
void LogUnencoded(const Shard& shard, const absl::Status& status) {
  if (!shard.device().health().status().ok()) return;
  Log(LogLevel::kError, "failed to encode planes", {{"device", shard.device().Name()}, {"why", status.ToString()}});
}

// Key that a node puts once it has got the state.
constexpr absl::string_view kHealedKey = "healed";

// Key of what a node's ranks have sent with the last commit.
constexpr absl::string_view kStatesKey = "client states";

// A node that heals another one knows its ranks' client states. Servers may have been started again since the last
// commit, and nodes been healed: here all learn them.
absl::Status KeepPreviousStates(const Topology& topology, Rendezvous& rendezvous, absl::Duration timeout,
                                CommitLog& commit_log) {
  CommitLog::State state = commit_log.state();
  RETURN_IF_ERROR(rendezvous.Put(kStatesKey, SerializeClientStates(state.client_states)));
  const int previous = PreviousNode(topology.node(), topology.active());
  ASSIGN_OR_RETURN(const std::string bytes, rendezvous.Get(previous, kStatesKey, timeout));
  ASSIGN_OR_RETURN(std::vector<std::string> states, ParseClientStates(bytes, topology.device_counts()[previous]));
  state.previous = {.node = previous, .client_states = std::move(states)};
  commit_log.Restore(std::move(state));
  return absl::OkStatus();
}

// Slowest network on which healing is in time. The step timeout comes on top.
constexpr double kSlowestHealingBytesPerSecond = 50e6;

// Returns an error if the trainer has gone: a socket that is closed is noticed here before the process's end is.
absl::Status GoneOr(const Trainer& trainer, const absl::Status& sent) {
  if (!absl::IsUnavailable(sent) && !absl::IsAborted(sent)) return sent;
  return absl::AbortedError(
      absl::StrCat("rank ", trainer.rank, ": process ", trainer.pid, " has gone (", sent.message(), ")"));
}

}  // namespace

Epoch::Epoch(Options options)
    : options_(std::move(options)),
      ranks_(static_cast<int>(options_.shards.size())),
      links_(options_.topology->node(), options_.engines.link_listener),
      recorder_(std::make_shared<Recorder>(options_.number, ranks_, options_.first_rank)),
      at_(ranks_),
      sequence_(SequenceOptions(options_), this),
      commit_(ranks_),
      late_ranks_(ranks_) {
  for (int rank = 0; rank < ranks_; ++rank)
    rank_slots_.push_back(std::make_unique<RankSlot>(options_.first_rank + rank));
}

Epoch::~Epoch() = default;

// Called by the sequence, under the mutex. A trainer that has left reads nothing any more.
uint32_t Epoch::Released(int rank, int slot) const {
  if (rank_slots_[rank]->left) return static_cast<uint32_t>(*rank_slots_[rank]->last_command);
  return rank_slots_[rank]->words().released(slot).value.load(std::memory_order_acquire);
}

uint32_t Epoch::Filled(int rank, int slot) const {
  return rank_slots_[rank]->words().filled(slot).value.load(std::memory_order_acquire);
}

// --- From start to end ---

absl::Status Epoch::Run() {
  if (absl::Status status = Prepare(); !status.ok()) End(status);
  std::vector<std::thread> threads;
  if (absl::Status status = StartThreads(threads); !status.ok()) End(status);
  ServeDepartures();
  // Must come before engines are aborted, which ends what ranks are doing.
  last_words_ = LastWords(*recorder_, TraceNow());
  const absl::Status why = AwaitReason();
  if (links_thread_.joinable()) links_thread_.join();
  // The world is told before the threads are waited for: one of them may be waiting for the world's votes.
  TellClusterOfEnd(why);
  AwaitCommitFate();
  // The same holds for trainers: whatever a thread is doing, no trainer waits for it.
  EndPages(Explained(why));
  for (std::thread& thread : threads) thread.join();
  Clean();
  const absl::Status explained = Explained(why);
  for (int rank = 0; rank < ranks_; ++rank) TellEnd(rank, explained);
  return explained;
}

void Epoch::TellClusterOfEnd(const absl::Status& why) const {
  const std::string& model = options_.spec->name;
  if (links_.bad().empty()) return options_.cluster->EndEpoch(model, options_.number, why);
  for (const BadLink& link : links_.bad()) {
    Log(LogLevel::kWarning, "cannot reach another daemon over the data network",
        {{"model", model},
         {"epoch", absl::StrCat(options_.number)},
         {"node", absl::StrCat(link.peer)},
         {"from", link.address},
         {"to", link.peer_address}});
  }
  options_.cluster->EndOnBadLinks(model, options_.number, why, links_.bad());
}

absl::Status Epoch::Prepare() {
  RETURN_IF_ERROR(AllocateRankSlots());
  absl::Status connected = Connect();
  const bool is_cut_off = !connected.ok() && !links_.bad().empty();
  if (connected.ok()) connected = Heal();
  if (connected.ok()) connected = EncodeByAmax();
  {
    // A connection that breaks here may only show that the epoch has ended elsewhere; a connection that cannot be made
    // at all is a reason of its own.
    absl::MutexLock lock(&mu_);
    is_cut_off ? EndLocked(connected) : EndOnError(connected);
  }
  // Trainers of an epoch that has ended meanwhile hear of the end alone.
  return ended() ? absl::OkStatus() : Greet();
}

absl::Status Epoch::AllocateRankSlots() {
  for (int rank = 0; rank < ranks_; ++rank) {
    ASSIGN_OR_RETURN(RankSlotMemory memory, RankSlotMemory::Allocate(options_.shards[rank]->device(),
                                                                     CountsOf(*options_.layout), slots_bytes()));
    absl::MutexLock lock(&mu_);
    rank_slots_[rank]->Take(std::move(memory), CountsOf(*options_.layout));
  }
  return absl::OkStatus();
}

std::string Epoch::NameInWorld() const {
  return absl::StrCat(options_.spec->name, "/", options_.history_id, "/", options_.number);
}

absl::Status Epoch::Connect() {
  if (options_.topology->needs_rendezvous()) {
    rendezvous_ = options_.cluster->MakeRendezvous(options_.spec->name, options_.number);
  }
  // A link may be cut after the check that connecting begins with.
  if (rendezvous_ != nullptr && links_.listener() != nullptr) {
    ASSIGN_OR_RETURN(links_thread_,
                     StartThread(absl::StrCat("links of ", options_.spec->name), [this] { WatchLinks(); }));
  }
  const SteadyTime start = Now();
  std::vector<RankMemory> memory;
  for (int rank = 0; rank < ranks_; ++rank) {
    memory.push_back({.arena = options_.shards[rank]->planes().data(),
                      .slots = rank_slots_[rank]->memory().slots.data(),
                      .words = rank_slots_[rank]->words(),
                      .device = &options_.shards[rank]->device()});
  }
  ASSIGN_OR_RETURN(auto engines, ConnectEngines({.model = options_.spec,
                                                 .layout = options_.layout,
                                                 .topology = options_.topology.get(),
                                                 .memory = memory,
                                                 .rendezvous = rendezvous_.get(),
                                                 .epoch = NameInWorld(),
                                                 .timeout = options_.step_timeout,
                                                 .settings = options_.engines,
                                                 .abort = &connect_abort_,
                                                 .links = &links_,
                                                 .sums_at_commit = options_.sums_at_commit,
                                                 .metrics = options_.metrics}));
  Log(LogLevel::kDebug, "engines connected",
      {{"model", options_.spec->name},
       {"epoch", absl::StrCat(options_.number)},
       {"engine", std::string(engines[0]->name())},
       {"took", absl::FormatDuration(absl::Trunc(absl::FromChrono(Now() - start), absl::Milliseconds(1)))}});
  {
    absl::MutexLock lock(&engines_mu_);
    engines_ = std::move(engines);
  }
  absl::MutexLock lock(&mu_);
  return end_.why();
}

absl::Status Epoch::Heal() {
  const int self = options_.topology->node();
  const absl::Duration timeout = HealTimeout();
  const SteadyTime deadline = SteadyDeadline(timeout);
  for (const Healing& healing : options_.healings) {
    if (healing.donor == self) RETURN_IF_ERROR(options_.send_state(healing.receiver, engines_, deadline));
    if (healing.receiver != self) continue;
    RETURN_IF_ERROR(options_.receive_state(healing.donor, engines_, deadline));
    {
      absl::MutexLock lock(&mu_);
      sequence_.StartFrom(options_.commit_log->numbers().commit_number);
    }
    RETURN_IF_ERROR(rendezvous_->Put(kHealedKey, "yes"));
  }
  for (const Healing& healing : options_.healings) {
    if (healing.receiver != self) RETURN_IF_ERROR(AwaitHealed(healing, timeout));
  }
  if (!options_.topology->has_replicas()) return absl::OkStatus();
  return KeepPreviousStates(*options_.topology, *rendezvous_, timeout, *options_.commit_log);
}

absl::Status Epoch::AwaitHealed(const Healing& healing, absl::Duration timeout) const {
  const absl::Status healed = rendezvous_->Get(healing.receiver, kHealedKey, timeout).status();
  if (!absl::IsDeadlineExceeded(healed)) return healed;
  return absl::UnavailableError(absl::StrCat("healing of node ", healing.receiver, " by node ", healing.donor,
                                             " timed out after ", absl::FormatDuration(timeout), "; attach again"));
}

absl::Duration Epoch::HealTimeout() const {
  int64_t bytes = 0;
  for (const auto& shard : options_.shards) bytes += shard->bytes().Total();
  // One node may give the state to several nodes, one after the other.
  bytes *= static_cast<int64_t>(options_.healings.size());
  return options_.step_timeout + absl::Seconds(static_cast<double>(bytes) / kSlowestHealingBytesPerSecond);
}

// The masters of another daemon may have been imported, or it may not know what this one did to them at the end of the
// last epoch.
absl::Status Epoch::EncodeByAmax() {
  ScalingBook& book = *options_.scaling_book;
  if (book.empty()) return absl::OkStatus();
  for (const auto& shard : options_.shards) RETURN_IF_ERROR(shard->MeasureAmaxes(book));
  RETURN_IF_ERROR(ShareAmaxes(0));
  if (options_.journal != nullptr) RETURN_IF_ERROR(options_.journal->Settle(journaled_state()));
  for (const auto& shard : options_.shards) RETURN_IF_ERROR(shard->EncodePlanes(book));
  return absl::OkStatus();
}

// Replicas take the same steps: only what they begin with may differ.
absl::Status Epoch::ShareAmaxes(int64_t command_number) {
  ScalingBook& book = *options_.scaling_book;
  std::vector<float> offers = book.Offer();
  if (options_.topology->spans_daemons() || command_number == 0) {
    RETURN_IF_ERROR(engines_[0]->MaxOverDaemons(command_number, absl::MakeSpan(offers)));
  }
  book.Settle(offers);
  return absl::OkStatus();
}

absl::Status Epoch::Greet() {
  for (int rank = 0; rank < ranks_; ++rank) RETURN_IF_ERROR(GreetTrainer(rank));
  return absl::OkStatus();
}

EpochGreeting Epoch::GreetingOf(int rank) const {
  return {.epoch = options_.number,
          .numbers = options_.commit_log->numbers(),
          .client_state = options_.commit_log->client_state(rank),
          .last_commit = options_.commit_log->last_answer(),
          .spec = options_.spec,
          .shard_size = options_.layout->ranks(),
          .layout_fingerprint = options_.layout_fingerprint,
          .world_size = options_.topology->world_size(),
          .active_rank = options_.topology->first_active_rank() + rank,
          .active_world_size = options_.topology->active_world_size(),
          .group_rank = options_.topology->GroupRank(rank),
          .client_lands_own_pieces = !engines_[rank]->lands_own_pieces(),
          .client_lands_own_gradients = engines_[rank]->sums_at_commit(),
          .gpu_uuid = options_.shards[rank]->device().gpu_uuid()};
}

absl::Status Epoch::GreetTrainer(int rank) {
  const Trainer& trainer = options_.trainers[rank];
  RankSlot& rank_slot = *rank_slots_[rank];
  const Memory& planes = options_.shards[rank]->planes();
  const EpochGreeting greeting = GreetingOf(rank);
  if (greeting.last_commit.has_value()) rank_slot.WriteAnswer(*greeting.last_commit);
  rank_slot.words().Publish(rank_slot.words().committed(), static_cast<uint32_t>(greeting.numbers.commit_number));
  wire::CompanionMemory message{.session = trainer.session,
                                .planes_bytes = planes.size_bytes(),
                                .slots_bytes = rank_slot.memory().slots.size_bytes(),
                                .words_bytes = rank_slot.memory().words.size_bytes()};
  const std::array<int, 3> fds{planes.fd(), rank_slot.memory().slots.fd(), rank_slot.memory().words.fd()};
  RETURN_IF_ERROR(GoneOr(trainer, trainer.send_memory(message, fds)));
  {
    absl::MutexLock lock(&mu_);
    rank_slot.started = true;
  }
  trainer.on_started(greeting);
  return absl::OkStatus();
}

absl::Status Epoch::StartThreads(std::vector<std::thread>& threads) {
  if (ended()) return absl::OkStatus();
  for (int rank = 0; rank < ranks_; ++rank) RETURN_IF_ERROR(StartRank(rank, threads));
  return absl::OkStatus();
}

absl::Status Epoch::StartRank(int rank, std::vector<std::thread>& threads) {
  const std::string whose = absl::StrCat(" of rank ", options_.first_rank + rank, " of ", options_.spec->name);
  ASSIGN_OR_RETURN(std::thread gathers, StartThread("gathers" + whose, [this, rank] { GatherLoop(rank); }));
  threads.push_back(std::move(gathers));
  ASSIGN_OR_RETURN(std::thread pushes, StartThread("pushes" + whose, [this, rank] { PushLoop(rank); }));
  threads.push_back(std::move(pushes));
  return absl::OkStatus();
}

void Epoch::ServeDepartures() {
  while (true) {
    DepartureNews news;
    {
      absl::MutexLock lock(&mu_);
      while (!end_.ended() && (news = TakeDepartureNews()).empty()) work_.Wait(&mu_);
      if (news.empty()) return;
    }
    Tell(news);
  }
}

// A link that breaks silently would otherwise be noticed only at the step timeout.
void Epoch::WatchLinks() {
  LogThrottle unchecked;
  while (true) {
    {
      absl::MutexLock lock(&mu_);
      const SteadyTime next = SteadyDeadline(kLinkInterval);
      while (!end_.ended() && !work_.WaitUntil(&mu_, next)) {
      }
      if (end_.ended()) return;
    }
    const absl::Status status = links_.Check(kLinkTimeout, &connect_abort_);
    if (!links_.bad().empty()) return End(status);
    // The probe is aborted at the end of the epoch.
    if (status.ok() || !connect_abort_.status().ok()) continue;
    if (const std::optional<int64_t> count = unchecked.Pass()) {
      Log(LogLevel::kWarning, "failed to check links",
          {{"model", options_.spec->name}, {"why", std::string(status.message())}}, *count);
    }
  }
}

Epoch::DepartureNews Epoch::TakeDepartureNews() {
  DepartureNews news;
  for (int rank = 0; rank < ranks_ && !news.leaving.has_value(); ++rank) {
    if (rank_slots_[rank]->left && !std::exchange(rank_slots_[rank]->told, true)) news.leaving = rank;
  }
  if (const std::optional<Progress> now = ProgressNow(); now != told_progress_) told_progress_ = news.progress = now;
  return news;
}

std::optional<Epoch::Progress> Epoch::ProgressNow() const {
  const bool done = last_command_.has_value() && sequence_.CarriedOut(*last_command_) && !commit_.answering();
  if (!done) return std::nullopt;
  Progress progress{.command = *last_command_};
  for (int rank = 0; rank < ranks_; ++rank) {
    progress.more = progress.more || sequence_.last_command(rank) > progress.command;
  }
  return progress;
}

void Epoch::Tell(const DepartureNews& news) {
  Cluster& cluster = *options_.cluster;
  const std::string& model = options_.spec->name;
  if (news.leaving.has_value()) {
    const int rank = *news.leaving;
    cluster.ReportDetached(model, options_.number, options_.first_rank + rank, *rank_slots_[rank]->last_command,
                           Departure(rank));
    SendEnded(rank, Explained(Departure(rank)));
  }
  if (news.progress.has_value()) {
    cluster.ReportCarriedOut(model, options_.number, news.progress->command, news.progress->more);
  }
}

// The coordinator names the departed rank or the lost node; its word follows a broken connection closely.
absl::Status Epoch::AwaitReason() {
  absl::Status first;
  {
    absl::MutexLock lock(&mu_);
    first = end_.why();
  }
  AbortEngines(first);
  absl::MutexLock lock(&mu_);
  const SteadyTime deadline = SteadyDeadline(kReasonTimeout);
  while (end_.open() && !work_.WaitUntil(&mu_, deadline)) {
  }
  end_.Close();
  return end_.why();
}

void Epoch::AwaitCommitFate() {
  absl::MutexLock lock(&mu_);
  const SteadyTime deadline = SteadyDeadline(kFateTimeout);
  while ((sequence_.CommitOpen() || commit_.answering()) && !work_.WaitUntil(&mu_, deadline)) {
  }
}

absl::Status Epoch::Explained(const absl::Status& why) const {
  bool open;
  {
    absl::MutexLock lock(&mu_);
    open = sequence_.CommitOpen() || commit_.answering();
  }
  const CommitLog::Numbers numbers = options_.commit_log->numbers();
  const std::string resume =
      open ? absl::StrCat("whether commit ", numbers.commit_number + 1,
                          " was applied is not known yet; resume from the "
                          "commit that the next epoch names")
           : absl::StrCat("resume from commit ", numbers.commit_number, " (version ", numbers.version, ")");
  return absl::Status(why.code(), absl::StrCat("epoch ", options_.number, " of ", options_.spec->name, ": ",
                                               why.message(), "; ", resume));
}

void Epoch::EndPages(const absl::Status& why) {
  for (const auto& rank_slot : rank_slots_) rank_slot->EndPage(why);
}

// Called when no thread of the epoch is left.
void Epoch::Clean() {
  std::vector<std::unique_ptr<Collectives>> engines;
  {
    absl::MutexLock lock(&engines_mu_);
    engines.swap(engines_);
  }
  engines.clear();  // waits for their streams
  for (const auto& shard : options_.shards) {
    shard->DropGradients();
    // A trainer that wrote over exported planes spoils its own epoch only.
    if (const absl::Status encoded = shard->EncodePlanes(*options_.scaling_book); !encoded.ok())
      LogUnencoded(*shard, encoded);
  }
}

void Epoch::TellEnd(int rank, const absl::Status& why) {
  RankSlot& rank_slot = *rank_slots_[rank];
  // Also moves ahead words that a stream of the daemon has written after the end.
  rank_slot.EndPage(why);
  bool gone, told;
  {
    absl::MutexLock lock(&mu_);
    gone = rank_slot.gone;
    told = std::exchange(rank_slot.told, true);
  }
  if (gone) rank_slot.DiscardSlots();
  if (!told) SendEnded(rank, why);
}

void Epoch::SendEnded(int rank, const absl::Status& why) const {
  options_.trainers[rank].on_ended({.epoch = options_.number, .numbers = options_.commit_log->numbers(), .why = why});
}

void Epoch::End(const absl::Status& why) {
  {
    absl::MutexLock lock(&mu_);
    EndLocked(why);
  }
  // Engines are aborted for the same reason.
  AbortEngines(why);
}

void Epoch::AbortEngines(const absl::Status& why) {
  absl::MutexLock lock(&engines_mu_);
  for (const auto& engine : engines_) engine->Abort(why);
}

void Epoch::EndLocked(const absl::Status& why) {
  if (end_.End(why)) sequence_.Stop();
  // The thread that would do so may be in an engine itself, before the others begin, or probe a link.
  connect_abort_.Abort(why);
  WakeAll();
}

void Epoch::EndOnError(const absl::Status& status) {
  if (status.ok()) return;
  const bool lost = absl::IsUnavailable(status) && options_.cluster->nodes() > 1;
  if (!lost && !absl::IsAborted(status)) {
    if (!end_.ended()) EndLocked(status);
  } else if (end_.EndUntilKnown(status)) {
    sequence_.Stop();
    connect_abort_.Abort(status);
    WakeAll();
  }
}

void Epoch::WakeAll() {
  work_.SignalAll();
  for (const auto& rank_slot : rank_slots_) rank_slot->Call();
}

bool Epoch::ended() const {
  absl::MutexLock lock(&mu_);
  return end_.ended();
}

absl::Status Epoch::torn() const {
  absl::MutexLock lock(&mu_);
  return commit_.failure();
}

absl::Status Epoch::doubt() const {
  absl::MutexLock lock(&mu_);
  return commit_.doubt();
}

absl::Status Epoch::unwritten() const {
  absl::MutexLock lock(&mu_);
  return commit_.unwritten();
}

void Epoch::EndAfterCommits(const absl::Status& why) {
  {
    absl::MutexLock lock(&mu_);
    if (end_.ended()) return;
    last_commit_ = {.command = sequence_.LastCommitInFlight(), .why = why};
    if (!LastCommitAnswered()) return;
  }
  End(why);
}

bool Epoch::LastCommitAnswered() const {
  return last_commit_.has_value() && sequence_.Answered(last_commit_->command) && !commit_.answering();
}

void Epoch::MarkGone(int rank) {
  absl::MutexLock lock(&mu_);
  rank_slots_[rank]->gone = true;
}

absl::Status Epoch::Detach(int rank, int64_t command_count) {
  absl::MutexLock lock(&mu_);
  if (end_.ended()) return absl::OkStatus();
  const RankSlot& rank_slot = *rank_slots_[rank];
  if (!rank_slot.started) {
    return absl::FailedPreconditionError(
        absl::StrCat("detach rank ", options_.first_rank + rank, ": sent before `started`"));
  }
  if (rank_slot.last_command.has_value()) {
    return absl::InvalidArgumentError(absl::StrCat("detach rank ", options_.first_rank + rank, ": already detached"));
  }
  if (command_count < sequence_.last_command(rank)) {
    return absl::InvalidArgumentError(absl::StrCat("detach rank ", options_.first_rank + rank, ": want at least ",
                                                   sequence_.last_command(rank), " commands, got ", command_count));
  }
  rank_slots_[rank]->last_command = command_count;
  CheckDepartures();
  return absl::OkStatus();
}

bool Epoch::HasLeft(int rank) const {
  absl::MutexLock lock(&mu_);
  return rank_slots_[rank]->left;
}

bool Epoch::LeftInOrder() const {
  absl::MutexLock lock(&mu_);
  return std::all_of(rank_slots_.begin(), rank_slots_.end(), [](const auto& rank_slot) { return rank_slot->left; });
}

absl::Status Epoch::Departure(int rank) const {
  const Trainer& trainer = options_.trainers[rank];
  return absl::AbortedError(absl::StrCat("rank ", trainer.rank, ": process ", trainer.pid, " has left"));
}

void Epoch::CheckDepartures() {
  const bool news = last_command_.has_value() && ProgressNow() != told_progress_;
  for (const auto& rank_slot : rank_slots_) {
    if (!rank_slot->last_command.has_value() || rank_slot->left || end_.ended() || commit_.answering()) continue;
    rank_slot->left = sequence_.Served(rank_slot->rank() - options_.first_rank, *rank_slot->last_command);
    // Gathers into its slots do not wait for it any more.
    if (rank_slot->left) WakeAll();
  }
  if (news) work_.SignalAll();
}

void Epoch::SetLastCommand(int64_t command) {
  absl::MutexLock lock(&mu_);
  last_command_ = std::min(command, last_command_.value_or(command));
  CheckDepartures();
}

// --- Inspection ---

std::string Epoch::WaitsFor(int rank) const {
  absl::MutexLock lock(&mu_);
  if (!rank_slots_[rank]->has_memory()) return "the daemon";
  const bool voting = options_.cluster->nodes() > 1 && commit_.vote_deadline() != kNever;
  return voting ? "the votes of other daemons" : sequence_.WaitsFor(rank);
}

int64_t Epoch::last_command(int rank) const {
  absl::MutexLock lock(&mu_);
  return sequence_.last_command(rank);
}

int64_t Epoch::slots_bytes() const {
  return options_.layout->slots_bytes() + (options_.sums_at_commit ? options_.layout->landing_bytes() : 0);
}

int64_t Epoch::words_bytes() const { return static_cast<int64_t>(wire::Words::SizeBytes(CountsOf(*options_.layout))); }

int64_t Epoch::scratch_bytes(int rank) const {
  absl::MutexLock lock(&engines_mu_);
  return engines_.empty() ? 0 : engines_[rank]->scratch_bytes();
}

std::string Epoch::engine() const {
  absl::MutexLock lock(&engines_mu_);
  return engines_.empty() ? "" : std::string(engines_[0]->name());
}

}  // namespace paramshard::server
