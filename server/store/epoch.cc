#include "server/store/epoch.h"

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "proto/model/proto_enums.h"
#include "proto/status.h"
#include "server/base/thread.h"
#include "server/collective/engines.h"
#include "server/log/log.h"
#include "server/store/attention.h"
#include "server/store/command_text.h"
#include "server/store/spinning_mutex_lock.h"

namespace paramshard::server {
namespace {

constexpr absl::Duration kReasonTimeout = absl::Seconds(2);
// A step and its answer take no longer, unless something is broken; trainers then wait no more for a commit's fate.
constexpr absl::Duration kFateTimeout = absl::Seconds(5);
// Read from a ring at once: a trainer that never stops writing holds up nobody but itself.
constexpr int kMostCommandsAtOnce = 64;

Sequence::Options SequenceOptions(const Epoch::Options& options) {
  return {.spec = options.spec,
          .layout = options.layout,
          .ranks = static_cast<int>(options.shards.size()),
          .first_rank = options.first_rank,
          .commit_number = options.commit_log->numbers().commit_number,
          .step_timeout = options.step_timeout};
}

wire::WordsCounts CountsOf(const Layout& layout) {
  return {.slots = static_cast<int>(layout.slot_offsets().size()),
          .ranks = layout.ranks(),
          .gradient_slots = static_cast<int>(layout.gradient_slot_offsets().size())};
}

// What broke a device was said when it broke.
void LogUnencoded(const Shard& shard, const absl::Status& status) {
  if (!shard.device().health().status().ok()) return;
  Log(LogLevel::kError, "planes could not be encoded", {{"device", shard.device().Name()}, {"why", status.ToString()}});
}

// A socket that nobody reads any more is noticed here before the process is.
absl::Status GoneOr(const Trainer& trainer, const absl::Status& sent) {
  if (!absl::IsUnavailable(sent) && !absl::IsAborted(sent)) return sent;
  return absl::AbortedError(
      absl::StrCat("rank ", trainer.rank, ": process ", trainer.pid, " has gone (", sent.message(), ")"));
}

}  // namespace

Epoch::Epoch(Options options)
    : options_(std::move(options)),
      ranks_(static_cast<int>(options_.shards.size())),
      sequence_(SequenceOptions(options_), this),
      commit_(ranks_) {
  for (int rank = 0; rank < ranks_; ++rank) seats_.push_back(std::make_unique<Seat>(options_.first_rank + rank));
}

Epoch::~Epoch() = default;

// Asked by the sequence, under the mutex. Who has left reads nothing any more.
uint32_t Epoch::Released(int rank, int slot) const {
  if (seats_[rank]->left) return static_cast<uint32_t>(*seats_[rank]->last_command);
  return seats_[rank]->words().released(slot).value.load(std::memory_order_acquire);
}

uint32_t Epoch::Filled(int rank, int slot) const {
  return seats_[rank]->words().filled(slot).value.load(std::memory_order_acquire);
}

// --- From start to end ---

absl::Status Epoch::Run() {
  if (absl::Status status = Prepare(); !status.ok()) End(status);
  std::vector<std::thread> threads;
  if (absl::Status status = StartThreads(threads); !status.ok()) End(status);
  ServeDepartures();
  const absl::Status why = AwaitReason();
  // The world is told before the threads are waited for: one of them may be waiting for the world's votes.
  options_.cluster->EndEpoch(options_.spec->name, options_.number, why);
  AwaitCommitFate();
  // So are the trainers: whatever a thread is at, nobody waits for it.
  EndPages(Explained(why));
  for (std::thread& thread : threads) thread.join();
  Clean();
  const absl::Status explained = Explained(why);
  for (int rank = 0; rank < ranks_; ++rank) TellEnd(rank, explained);
  return explained;
}

absl::Status Epoch::Prepare() {
  RETURN_IF_ERROR(AllocateSeats());
  RETURN_IF_ERROR(Connect());
  RETURN_IF_ERROR(EncodeByAmax());
  // Trainers of an epoch that has ended meanwhile hear of the end alone.
  return ended() ? absl::OkStatus() : Greet();
}

absl::Status Epoch::AllocateSeats() {
  for (int rank = 0; rank < ranks_; ++rank) {
    ASSIGN_OR_RETURN(SeatMemory memory,
                     SeatMemory::Allocate(options_.shards[rank]->device(), CountsOf(*options_.layout), slots_bytes()));
    absl::MutexLock lock(&mu_);
    seats_[rank]->Take(std::move(memory), CountsOf(*options_.layout));
  }
  return absl::OkStatus();
}

absl::Status Epoch::Connect() {
  if (options_.topology->needs_rendezvous()) {
    rendezvous_ = options_.cluster->MakeRendezvous(options_.spec->name, options_.number);
  }
  const SteadyTime start = Now();
  std::vector<RankMemory> memory;
  for (int rank = 0; rank < ranks_; ++rank) {
    memory.push_back({.arena = options_.shards[rank]->planes().data(),
                      .slots = seats_[rank]->memory().slots.data(),
                      .words = seats_[rank]->words(),
                      .device = &options_.shards[rank]->device()});
  }
  ASSIGN_OR_RETURN(auto engines, ConnectEngines({.model = options_.spec,
                                                 .layout = options_.layout,
                                                 .topology = options_.topology,
                                                 .memory = memory,
                                                 .rendezvous = rendezvous_.get(),
                                                 .timeout = options_.step_timeout,
                                                 .nccl_library = options_.nccl_library,
                                                 .abort = &connect_abort_,
                                                 .sums_at_commit = options_.sums_at_commit}));
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

// The masters of another daemon may have been imported, or it may not know what this one did to them at the end of the
// last epoch.
absl::Status Epoch::EncodeByAmax() {
  ScalingBook& book = *options_.scaling_book;
  if (book.empty()) return absl::OkStatus();
  for (const Shard* shard : options_.shards) RETURN_IF_ERROR(shard->MeasureAmaxes(book));
  RETURN_IF_ERROR(ShareAmaxes(0));
  for (Shard* shard : options_.shards) RETURN_IF_ERROR(shard->EncodePlanes(book));
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

absl::Status Epoch::GreetTrainer(int rank) {
  const Trainer& trainer = options_.trainers[rank];
  Seat& seat = *seats_[rank];
  const Memory& planes = options_.shards[rank]->planes();
  v1::EpochStarted started = *options_.greeting;
  const CommitLog::Numbers numbers = options_.commit_log->numbers();
  started.set_epoch(options_.number);
  started.set_commit_number(numbers.commit_number);
  started.set_version(numbers.version);
  started.set_client_state(options_.commit_log->client_state(rank));
  started.set_group_rank(options_.topology->GroupRank(rank));
  started.set_client_lands_own_pieces(!engines_[rank]->lands_own_pieces());
  started.set_client_lands_own_gradients(engines_[rank]->sums_at_commit());
  started.set_gpu_uuid(options_.shards[rank]->device().gpu_uuid());
  if (const auto result = options_.commit_log->last_result(); result.has_value()) {
    *started.mutable_last_commit() = *result;
    seat.WriteAnswer(*result);
  }
  seat.words().Publish(seat.words().committed(), static_cast<uint32_t>(numbers.commit_number));
  wire::HandoffMemory message{.session = trainer.session,
                              .planes_bytes = planes.size_bytes(),
                              .slots_bytes = seat.memory().slots.size_bytes(),
                              .words_bytes = seat.memory().words.size_bytes()};
  const std::array<int, 3> fds{planes.fd(), seat.memory().slots.fd(), seat.memory().words.fd()};
  RETURN_IF_ERROR(GoneOr(trainer, trainer.send_memory(message, fds)));
  {
    absl::MutexLock lock(&mu_);
    seat.started = true;
  }
  trainer.on_started(started);
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
    int leaving = -1;
    {
      absl::MutexLock lock(&mu_);
      while (!end_.ended() && leaving < 0) {
        leaving = TakeDeparture();
        if (leaving < 0) work_.Wait(&mu_);
      }
      if (leaving < 0) return;
    }
    SendEnded(leaving, Explained(Departure(leaving)));
  }
}

int Epoch::TakeDeparture() {
  for (int rank = 0; rank < ranks_; ++rank) {
    if (seats_[rank]->left && !std::exchange(seats_[rank]->told, true)) return rank;
  }
  return -1;
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
  for (const auto& seat : seats_) seat->EndPage(why);
}

// When no thread of the epoch is left.
void Epoch::Clean() {
  std::vector<std::unique_ptr<Collectives>> engines;
  {
    absl::MutexLock lock(&engines_mu_);
    engines.swap(engines_);
  }
  engines.clear();  // waits for their streams
  for (Shard* shard : options_.shards) {
    shard->DropGradients();
    // A trainer that wrote over exported planes spoils its own epoch only.
    if (const absl::Status encoded = shard->EncodePlanes(*options_.scaling_book); !encoded.ok())
      LogUnencoded(*shard, encoded);
  }
}

void Epoch::TellEnd(int rank, const absl::Status& why) {
  Seat& seat = *seats_[rank];
  // What a stream of the daemon wrote after the end is moved ahead too.
  seat.EndPage(why);
  bool gone, told;
  {
    absl::MutexLock lock(&mu_);
    gone = seat.gone;
    told = std::exchange(seat.told, true);
  }
  if (gone) seat.DiscardSlots();
  if (!told) SendEnded(rank, why);
}

void Epoch::SendEnded(int rank, const absl::Status& why) const {
  const CommitLog::Numbers numbers = options_.commit_log->numbers();
  v1::EpochEnded ended;
  ended.set_epoch(options_.number);
  *ended.mutable_why() = StatusToProto(why);
  ended.set_commit_number(numbers.commit_number);
  ended.set_version(numbers.version);
  options_.trainers[rank].on_ended(ended);
}

void Epoch::End(const absl::Status& why) {
  {
    absl::MutexLock lock(&mu_);
    EndLocked(why);
  }
  // The thread that would do so may be at an engine itself, before the others begin.
  connect_abort_.Abort(why);
  AbortEngines(why);
}

void Epoch::AbortEngines(const absl::Status& why) {
  absl::MutexLock lock(&engines_mu_);
  for (const auto& engine : engines_) engine->Abort(why);
}

void Epoch::EndLocked(const absl::Status& why) {
  if (end_.End(why)) sequence_.Stop();
  WakeAll();
}

void Epoch::EndOnError(const absl::Status& status) {
  if (status.ok()) return;
  const bool lost = absl::IsUnavailable(status) && options_.cluster->nodes() > 1;
  if (!lost && !absl::IsAborted(status)) {
    if (!end_.ended()) EndLocked(status);
  } else if (end_.EndUntilKnown(status)) {
    sequence_.Stop();
    WakeAll();
  }
}

void Epoch::WakeAll() {
  work_.SignalAll();
  for (const auto& seat : seats_) seat->Call();
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

void Epoch::AwaitCommits(SteadyTime deadline) {
  absl::MutexLock lock(&mu_);
  while (!end_.ended() && (sequence_.CommitInFlight() || commit_.answering()) && Now() < deadline) {
    work_.WaitUntil(&mu_, After(SteadyNow(), Until(deadline, Now())));
  }
}

void Epoch::MarkGone(int rank) {
  absl::MutexLock lock(&mu_);
  seats_[rank]->gone = true;
}

absl::Status Epoch::Detach(int rank, int64_t command_count) {
  absl::MutexLock lock(&mu_);
  if (end_.ended()) return absl::OkStatus();
  const Seat& seat = *seats_[rank];
  if (!seat.started) {
    return absl::FailedPreconditionError(
        absl::StrCat("detach rank ", options_.first_rank + rank, ": expected after `started`, got before it"));
  }
  if (seat.last_command.has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat("detach rank ", options_.first_rank + rank, ": one detach expected, got a second"));
  }
  if (command_count < sequence_.last_command(rank)) {
    return absl::InvalidArgumentError(absl::StrCat("detach rank ", options_.first_rank + rank, ": at least ",
                                                   sequence_.last_command(rank), " commands expected, got ",
                                                   command_count));
  }
  seats_[rank]->last_command = command_count;
  CheckDepartures();
  return absl::OkStatus();
}

bool Epoch::HasLeft(int rank) const {
  absl::MutexLock lock(&mu_);
  return seats_[rank]->left;
}

absl::Status Epoch::Departure(int rank) const {
  const Trainer& trainer = options_.trainers[rank];
  return absl::AbortedError(absl::StrCat("rank ", trainer.rank, ": process ", trainer.pid, " has left"));
}

void Epoch::CheckDepartures() {
  int left = 0;
  for (int rank = 0; rank < ranks_ && !end_.ended(); ++rank) {
    Seat& seat = *seats_[rank];
    if (!seat.last_command.has_value()) continue;
    if (!seat.left && !commit_.answering() && sequence_.Served(rank, *seat.last_command)) {
      seat.left = true;
      work_.SignalAll();
    }
    left += seat.left ? 1 : 0;
    for (int other = 0; other < ranks_; ++other) {
      if (sequence_.last_command(other) > *seat.last_command) EndLocked(Departure(rank));
    }
    // Other daemons know of no departure but the end.
    if (seat.left && (left == ranks_ || options_.cluster->nodes() > 1)) EndLocked(Departure(rank));
  }
}

// --- Threads ---

void Epoch::GatherLoop(int rank) {
  Seat& seat = *seats_[rank];
  Attention attention({.words = seat.words(),
                       .bell = &seat.bell(),
                       .clock = options_.clock,
                       .on_gpu = !options_.shards[rank]->device().gpu_uuid().empty()});
  std::deque<UnderWay> under_way;
  int64_t known = 0;  // the last command
  int room = kMostCommandsAtOnce;
  while (true) {
    attention.Look();
    if (FinishGathers(rank, under_way)) attention.Renew();
    absl::StatusOr<std::vector<SentCommand>> commands = seat.ReadCommands(room);
    const bool more = commands.ok() && static_cast<int>(commands->size()) == room;
    const v1::Command* command = nullptr;
    SteadyTime deadline;
    auto expected = Attention::For::kNothing;
    Agreed agreed;
    {
      SpinningMutexLock lock(&mu_);
      if (end_.ended() && under_way.empty()) return;
      TakeAll(rank, std::move(commands), agreed);
      command = sequence_.BeginGather(rank, Now());
      WakeRunnable();
      if (command == nullptr) deadline = CheckDeadlines();
      if (sequence_.Pending(rank)) expected = Attention::For::kWord;
      if (std::exchange(known, sequence_.last_command(rank)) != known) attention.Renew();
      room = std::min(kMostCommandsAtOnce, sequence_.Room(rank));
      seat.held_back = room == 0;
    }
    ReportAgreed(rank, agreed);
    if (command != nullptr) {
      under_way.push_back(BeginGather(rank, *command));
      attention.Renew();
    } else if (!more || room == 0) {
      attention.Wait(under_way.empty() ? expected : Attention::For::kCopies, deadline);
    }
  }
}

SteadyTime Epoch::CheckDeadlines() {
  const SteadyTime now = Now();
  const SteadyTime deadline = std::min(sequence_.NextDeadline(), commit_.vote_deadline());
  if (now < deadline) return deadline;
  if (const absl::Status overdue = Overdue(now); !overdue.ok()) EndLocked(overdue);
  return deadline;
}

absl::Status Epoch::Overdue(SteadyTime now) const {
  if (now < commit_.vote_deadline()) return sequence_.Overdue(now);
  return absl::DeadlineExceededError(absl::StrCat(
      "commit ", options_.commit_log->numbers().commit_number + 1, ": the trainers of another daemon than node ",
      options_.cluster->node(), " did not reach it within ", absl::FormatDuration(options_.step_timeout)));
}

void Epoch::PushLoop(int rank) {
  while (true) {
    std::optional<Sequence::PushWork> work;
    {
      absl::MutexLock lock(&mu_);
      while (!(work = sequence_.BeginPush(rank)).has_value()) {
        if (end_.ended() && sequence_.Quiet()) return;
        work_.Wait(&mu_);
      }
    }
    RunPush(rank, *work);
    // The wait that may begin now has a deadline, which the gather thread watches.
    seats_[rank]->Call();
  }
}

void Epoch::TakeAll(int rank, absl::StatusOr<std::vector<SentCommand>> commands, Agreed& agreed) {
  if (end_.ended()) return;
  if (!commands.ok()) return EndLocked(commands.status());
  for (SentCommand& command : *commands) {
    Take(rank, std::move(command), agreed);
    if (end_.ended()) return;
  }
}

void Epoch::Take(int rank, SentCommand command, Agreed& agreed) {
  std::optional<v1::Command> shared;
  if (options_.cluster->nodes() > 1) shared = command.command;
  const absl::StatusOr<bool> by_all = sequence_.Submit(rank, std::move(command), Now());
  if (!by_all.ok()) return EndLocked(by_all.status());
  if (*by_all && shared.has_value()) agreed.push_back(*std::move(shared));
}

void Epoch::ReportAgreed(int rank, const Agreed& agreed) const {
  for (const v1::Command& command : agreed) {
    options_.cluster->ReportCommand(options_.spec->name, options_.number, command.number(), options_.first_rank + rank,
                                    CommandText(*options_.spec, command));
  }
}

absl::Status Epoch::Submit(int rank, v1::Command command) {
  SentCommand sent(std::move(command));
  Agreed agreed;
  {
    absl::MutexLock lock(&mu_);
    const std::string what = absl::StrCat("command ", sent.command.number(), " of rank ", options_.first_rank + rank);
    if (end_.ended()) return absl::OkStatus();
    if (!seats_[rank]->started) {
      return absl::FailedPreconditionError(what + ": one after `started` expected, got it before");
    }
    if (sequence_.Room(rank) == 0) {
      return absl::ResourceExhaustedError(absl::StrCat(what, ": at most ", Sequence::kMostCommands,
                                                       " unfinished commands expected, of ", Sequence::kMostBytes,
                                                       " bytes together; wait for the other ranks"));
    }
    Take(rank, std::move(sent), agreed);
    WakeRunnable();
    // A wait that begins here has a deadline, which the gather thread watches.
    seats_[rank]->Call();
  }
  ReportAgreed(rank, agreed);
  return absl::OkStatus();
}

void Epoch::WakeRunnable() {
  CheckDepartures();
  for (int rank : sequence_.RunnableGathers()) seats_[rank]->Call();
  for (int rank = 0; rank < ranks_; ++rank) {
    if (seats_[rank]->held_back && sequence_.Room(rank) > 0) seats_[rank]->Call();
  }
  if (end_.ended() || !sequence_.RunnablePushes().empty()) work_.SignalAll();
}

// --- Work ---

Epoch::UnderWay Epoch::BeginGather(int rank, const v1::Command& command) {
  const v1::Gather& gather = command.gather();
  const GatherCall call{.number = command.number(),
                        .unit = gather.unit(),
                        .phase = *PhaseFromProto(gather.phase()),  // checked by the sequence
                        .slot = gather.slot()};
  return {.call = call, .begun = engines_[rank]->Gather(call, [&](int target, int source) {
            SeatOf(target).PublishReady(call.slot, source, call.number);
          })};
}

bool Epoch::FinishGathers(int rank, std::deque<UnderWay>& under_way) {
  bool finished = false;
  while (!under_way.empty()) {
    const GatherCall& call = under_way.front().call;
    absl::StatusOr<bool> done = true;
    if (const absl::Status& begun = under_way.front().begun; !begun.ok()) {
      done = begun;
    } else {
      done = engines_[rank]->GatherDone(
          call, [&](int target, int source) { SeatOf(target).PublishReady(call.slot, source, call.number); });
    }
    if (done.ok() && !*done) break;
    FinishGather(rank, done.status());
    under_way.pop_front();
    finished = true;
  }
  return finished;
}

void Epoch::FinishGather(int rank, const absl::Status& status) {
  SpinningMutexLock lock(&mu_);
  sequence_.FinishGather(rank, Now());
  EndOnError(status);
  WakeRunnable();
}

void Epoch::RunPush(int rank, const Sequence::PushWork& work) {
  switch (work.work) {
    case Sequence::Work::kReduce:
      return RunReduce(rank, *work.command);
    case Sequence::Work::kSum:
      return RunSum(rank);
    case Sequence::Work::kVote:
      return RunVote(*work.command);
    case Sequence::Work::kApply:
      return RunApply(rank);
    case Sequence::Work::kShareAmaxes:
      return RunShareAmaxes(*work.command);
    case Sequence::Work::kEncode:
      return RunEncode(rank);
  }
}

void Epoch::RunReduce(int rank, const v1::Command& command) {
  const v1::Push& push = command.push();
  const int slot = push.slot();
  const int64_t number = command.number();
  const Shard::PushTarget target = options_.shards[rank]->BeginPush(push.unit(), push.absent_parameters());
  const absl::Status status =
      engines_[rank]->Reduce({.number = command.number(),
                              .unit = push.unit(),
                              .slot = slot,
                              .own_slices_landed = push.own_slices_landed(),
                              .accumulators = target.accumulators,
                              .overwrite = absl::MakeConstSpan(target.overwrite.get(), target.accumulators.size())});
  bool drained;
  {
    absl::MutexLock lock(&mu_);
    drained = sequence_.FinishReduce(rank, Now());
    EndOnError(status);
    WakeRunnable();
  }
  if (!drained) return;
  for (const auto& seat : seats_) seat->PublishDrained(slot, number);
}

void Epoch::RunSum(int rank) {
  const absl::StatusOr<std::vector<SumTask>> left = engines_[rank]->TakeSums();
  const absl::StatusOr<SquareSum> sum = left.ok() ? options_.shards[rank]->SumSquares(*left) : left.status();
  absl::MutexLock lock(&mu_);
  if (sum.ok()) commit_.SetSum(rank, *sum);
  EndOnError(sum.status());
  sequence_.FinishSum(rank);
  WakeRunnable();
}

void Epoch::RunVote(const v1::Command& command) {
  CommitVote vote{.model = options_.spec->name,
                  .epoch = options_.number,
                  .commit_number = command.commit().commit_number(),
                  .sums = {}};
  {
    absl::MutexLock lock(&mu_);
    vote.sums = commit_.Sums(options_.first_rank);
    commit_.BeginVote(After(Now(), options_.step_timeout));
    // A gather thread watches the deadline.
    seats_[0]->Call();
  }
  const absl::StatusOr<CommitDecision> decision = options_.cluster->Vote(vote);
  auto verdict = Sequence::Verdict::kGivenUp;
  Decided decided;
  if (decision.ok()) {
    const bool encodes = decision->apply && !options_.scaling_book->empty();
    verdict = encodes ? Sequence::Verdict::kEncodes : Sequence::Verdict::kApplies;
    decided = Decide(command.commit(), *decision, options_.spec->gradient_reduction == GradientReduction::kMean,
                     options_.topology->world_size());
  }
  absl::MutexLock lock(&mu_);
  commit_.EndVote();
  commit_.SetDecided(std::move(decided));
  if (absl::IsDataLoss(decision.status())) commit_.SetDoubt(decision.status());
  EndOnError(decision.status());
  sequence_.FinishVote(verdict);
  WakeRunnable();
}

void Epoch::RunApply(int rank) {
  Decided decided;
  {
    absl::MutexLock lock(&mu_);
    decided = commit_.decided();
  }
  Shard& shard = *options_.shards[rank];
  if (!decided.apply) shard.DropGradients();
  const absl::Status applied = decided.apply ? shard.Step(decided.step, *options_.scaling_book) : absl::OkStatus();
  FinishStage(rank, applied, &Sequence::FinishApply);
}

// Where it fails the epoch ends: planes are then of an amax that is out of date, and the next epoch encodes them.
void Epoch::RunShareAmaxes(const v1::Command& command) {
  const absl::Status shared = ShareAmaxes(command.number());
  absl::MutexLock lock(&mu_);
  EndOnError(shared);
  sequence_.FinishShareAmaxes();
  WakeRunnable();
}

void Epoch::RunEncode(int rank) {
  const absl::Status encoded = options_.shards[rank]->EncodeAfterAmax(*options_.scaling_book);
  FinishStage(rank, encoded, &Sequence::FinishEncode);
}

void Epoch::FinishStage(int rank, const absl::Status& status,
                        std::optional<Sequence::ClientStates> (Sequence::*finish)(int rank, SteadyTime now)) {
  std::optional<Sequence::ClientStates> client_states;
  Decided decided;
  {
    absl::MutexLock lock(&mu_);
    EndOnError(status);
    commit_.Fail(status);
    client_states = (sequence_.*finish)(rank, Now());
    if (!commit_.failure().ok()) client_states.reset();
    if (client_states.has_value()) {
      commit_.BeginAnswer();
      decided = commit_.decided();
    }
    WakeRunnable();
  }
  if (client_states.has_value()) Answer(decided, *std::move(client_states));
}

// The next commit waits for this thread's part of it: answers follow each other in order.
void Epoch::Answer(const Decided& decided, Sequence::ClientStates client_states) {
  const v1::CommitResult result = options_.commit_log->Answer(decided.apply, decided.gradient_norm,
                                                              decided.non_finite_count, std::move(client_states));
  for (const auto& seat : seats_) seat->PublishAnswer(result);
  absl::MutexLock lock(&mu_);
  commit_.EndAnswer();
  CheckDepartures();
  work_.SignalAll();
}

// --- Inspection ---

std::string Epoch::WaitsFor(int rank) const {
  absl::MutexLock lock(&mu_);
  if (!seats_[rank]->has_memory()) return "the daemon";
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
