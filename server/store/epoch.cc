#include "server/store/epoch.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "kernels/base/status_macros.h"
#include "server/collective/engines.h"
#include "server/log/log.h"
#include "server/store/attention.h"
#include "server/store/command_text.h"
#include "server/store/spinning_mutex_lock.h"

namespace paramshard::server {
namespace {

constexpr absl::Duration kReasonTimeout = absl::Seconds(2);
// Read from a ring at once: a trainer that never stops writing holds up nobody but itself.
constexpr size_t kMostCommandsAtOnce = 64;

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

// Norm, clip and unscaling, in the order of docs/numerics.md.
struct GradientScale {
  double norm = 0;
  float factor = 1;
};

GradientScale ScaleOf(const v1::Commit& commit, double square_sum, bool mean, int world_size) {
  float inverse_scale = 1.0f / (commit.has_gradient_scale() ? commit.gradient_scale() : 1.0f);
  if (mean) inverse_scale /= static_cast<float>(world_size);
  GradientScale scale;
  scale.norm = static_cast<double>(inverse_scale) * std::sqrt(square_sum);
  float clip = 1.0f;
  if (commit.has_max_grad_norm()) {
    clip = static_cast<float>(std::min(1.0, static_cast<double>(commit.max_grad_norm()) / (scale.norm + 1e-6)));
  }
  scale.factor = inverse_scale * clip;
  return scale;
}

StepParameters StepOf(const v1::Commit& commit, float gradient_scale) {
  StepParameters step{.groups = {}, .gradient_scale = gradient_scale};
  for (const v1::GroupHyperparameters& group : commit.groups()) {
    step.groups.push_back({.learning_rate = group.learning_rate(),
                           .beta1 = group.beta1(),
                           .beta2 = group.beta2(),
                           .epsilon = group.epsilon(),
                           .weight_decay = group.weight_decay()});
  }
  return step;
}

}  // namespace

Epoch::Epoch(Options options)
    : options_(std::move(options)),
      ranks_(static_cast<int>(options_.shards.size())),
      seats_(ranks_),
      sequence_(SequenceOptions(options_), this),
      sums_(ranks_) {}

Epoch::~Epoch() = default;

uint32_t Epoch::Released(int rank, int slot) const {
  return seats_[rank].words.released(slot).value.load(std::memory_order_acquire);
}

uint32_t Epoch::Filled(int rank, int slot) const {
  return seats_[rank].words.filled(slot).value.load(std::memory_order_acquire);
}

// --- From start to end ---

absl::Status Epoch::Run() {
  if (absl::Status status = Prepare(); !status.ok()) End(status);
  std::vector<std::thread> threads = StartThreads();
  // The world is told before the threads are waited for: one of them may be waiting for the world's votes.
  options_.cluster->EndEpoch(options_.spec->name, options_.number, AwaitReason());
  for (std::thread& thread : threads) thread.join();
  const absl::Status why = FinalReason();
  Finish(why);
  return why;
}

absl::Status Epoch::Prepare() {
  RETURN_IF_ERROR(AllocateSeats());
  RETURN_IF_ERROR(Connect());
  RETURN_IF_ERROR(EncodeByAmax());
  return Greet();
}

absl::Status Epoch::AllocateSeats() {
  std::vector<Seat> seats(ranks_);
  for (int rank = 0; rank < ranks_; ++rank) {
    ASSIGN_OR_RETURN(seats[rank], AllocateSeat(options_.shards[rank]->device()));
  }
  absl::MutexLock lock(&mu_);
  seats_ = std::move(seats);
  return absl::OkStatus();
}

absl::StatusOr<Epoch::Seat> Epoch::AllocateSeat(ComputeDevice& device) const {
  const wire::WordsCounts counts = CountsOf(*options_.layout);
  Seat seat;
  ASSIGN_OR_RETURN(seat.slots, device.Allocate("paramshard-slots", slots_bytes(), Sharing::kReadWrite));
  ASSIGN_OR_RETURN(seat.words_memory,
                   Memory::Allocate("paramshard-words", wire::Words::SizeBytes(counts), Sharing::kReadWrite));
  ASSIGN_OR_RETURN(seat.open_words, device.OpenHostMemory(seat.words_memory));
  seat.words = wire::Words(seat.words_memory.data(), counts);
  seat.ring = std::make_unique<wire::RingReader>(seat.words);
  return seat;
}

absl::Status Epoch::Connect() {
  if (options_.topology->needs_rendezvous()) {
    rendezvous_ = options_.cluster->MakeRendezvous(options_.spec->name, options_.number);
  }
  const absl::Time start = absl::Now();
  std::vector<RankMemory> memory;
  for (int rank = 0; rank < ranks_; ++rank) {
    memory.push_back({.arena = options_.shards[rank]->planes().data(),
                      .slots = seats_[rank].slots.data(),
                      .words = seats_[rank].words,
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
       {"took", absl::FormatDuration(absl::Trunc(absl::Now() - start, absl::Milliseconds(1)))}});
  absl::MutexLock lock(&mu_);
  engines_ = std::move(engines);
  return ended_ ? why_ : absl::OkStatus();
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
  const Seat& seat = seats_[rank];
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
    PublishAnswer(seat, *result);
  }
  seat.words.Publish(seat.words.committed(), static_cast<uint32_t>(numbers.commit_number));
  wire::HandoffMemory message{.session = trainer.session,
                              .planes_bytes = planes.size_bytes(),
                              .slots_bytes = seat.slots.size_bytes(),
                              .words_bytes = seat.words_memory.size_bytes()};
  const std::array<int, 3> fds{planes.fd(), seat.slots.fd(), seat.words_memory.fd()};
  RETURN_IF_ERROR(trainer.send_memory(message, fds));
  trainer.on_started(started);
  return absl::OkStatus();
}

std::vector<std::thread> Epoch::StartThreads() {
  std::vector<std::thread> threads;
  if (ended()) return threads;
  for (int rank = 0; rank < ranks_; ++rank) {
    threads.emplace_back([this, rank] { GatherLoop(rank); });
    threads.emplace_back([this, rank] { PushLoop(rank); });
  }
  return threads;
}

// The coordinator names the departed rank or the lost node; its word follows a broken connection closely.
absl::Status Epoch::AwaitReason() {
  absl::MutexLock lock(&mu_);
  while (!ended_) work_.Wait(&mu_);
  const absl::Time deadline = absl::Now() + kReasonTimeout;
  while (reason_open_ && !work_.WaitWithDeadline(&mu_, deadline)) {
  }
  reason_open_ = false;
  return why_;
}

// After the threads: a commit that was decided has been applied by then.
absl::Status Epoch::FinalReason() const {
  absl::MutexLock lock(&mu_);
  const CommitLog::Numbers numbers = options_.commit_log->numbers();
  return absl::Status(why_.code(),
                      absl::StrCat("epoch ", options_.number, " of ", options_.spec->name, ": ", why_.message(),
                                   "; resume from commit ", numbers.commit_number, " (version ", numbers.version, ")"));
}

void Epoch::Finish(const absl::Status& why) {
  std::vector<std::unique_ptr<Collectives>> engines;
  {
    absl::MutexLock lock(&mu_);
    engines.swap(engines_);
  }
  engines.clear();  // waits for their streams
  for (int rank = 0; rank < ranks_; ++rank) FinishSeat(rank, why);
  for (Shard* shard : options_.shards) {
    shard->DropGradients();
    // A trainer that wrote over exported planes spoils its own epoch only.
    if (const absl::Status encoded = shard->EncodePlanes(*options_.scaling_book); !encoded.ok())
      LogUnencoded(*shard, encoded);
  }
}

void Epoch::FinishSeat(int rank, const absl::Status& why) {
  const CommitLog::Numbers numbers = options_.commit_log->numbers();
  const std::string text(why.message());
  Seat& seat = seats_[rank];
  bool gone;
  {
    absl::MutexLock lock(&mu_);
    gone = seat.gone;
  }
  if (seat.words_memory.data() != nullptr) seat.words.Finish(wire::Side::kDaemon, static_cast<uint32_t>(why.code()), text);
  if (gone) seat.slots.Discard();
  v1::EpochEnded ended;
  ended.set_epoch(options_.number);
  ended.set_code(static_cast<int>(why.code()));
  ended.set_message(text);
  ended.set_commit_number(numbers.commit_number);
  ended.set_version(numbers.version);
  options_.trainers[rank].on_ended(ended);
}

void Epoch::End(const absl::Status& why) {
  absl::MutexLock lock(&mu_);
  EndLocked(why);
}

void Epoch::EndLocked(const absl::Status& why) {
  if (ended_ && !reason_open_) return;
  reason_open_ = false;
  why_ = why;
  work_.SignalAll();
  if (std::exchange(ended_, true)) return;
  sequence_.Stop();
  connect_abort_.Abort(why_);
  for (const auto& engine : engines_) engine->Abort(why_);
  for (const Seat& seat : seats_) {
    if (seat.words_memory.data() != nullptr) seat.words.Ring();
  }
}

void Epoch::EndOnError(const absl::Status& status) {
  if (status.ok() || ended_) return;
  EndLocked(status);
  const bool lost = absl::IsUnavailable(status) && options_.cluster->nodes() > 1;
  reason_open_ = lost || absl::IsAborted(status);
}

bool Epoch::ended() const {
  absl::MutexLock lock(&mu_);
  return ended_;
}

absl::Status Epoch::torn() const {
  absl::MutexLock lock(&mu_);
  return apply_failure_;
}

absl::Status Epoch::doubt() const {
  absl::MutexLock lock(&mu_);
  return doubt_;
}

void Epoch::AwaitCommits(absl::Time deadline) {
  absl::MutexLock lock(&mu_);
  while (!ended_ && sequence_.CommitInFlight()) {
    if (work_.WaitWithDeadline(&mu_, deadline)) return;
  }
}

void Epoch::MarkGone(int rank) {
  absl::MutexLock lock(&mu_);
  seats_[rank].gone = true;
}

// --- Threads ---

void Epoch::GatherLoop(int rank) {
  Attention attention(seats_[rank].words, !options_.shards[rank]->device().gpu_uuid().empty());
  std::deque<UnderWay> under_way;
  int64_t known = 0;  // the last command
  while (true) {
    attention.Look();
    if (FinishGathers(rank, under_way)) attention.Renew();
    absl::StatusOr<std::vector<v1::Command>> commands = ReadRing(rank);
    const bool more = commands.ok() && commands->size() == kMostCommandsAtOnce;
    const v1::Command* command = nullptr;
    absl::Time deadline;
    auto expected = Attention::For::kNothing;
    {
      SpinningMutexLock lock(&mu_);
      if (ended_ && under_way.empty()) return;
      TakeAll(rank, std::move(commands));
      command = sequence_.BeginGather(rank, absl::Now());
      WakeRunnable();
      if (command == nullptr) deadline = CheckDeadlines();
      if (sequence_.Pending(rank)) expected = Attention::For::kWord;
      if (std::exchange(known, sequence_.last_command(rank)) != known) attention.Renew();
    }
    if (command != nullptr) {
      under_way.push_back(BeginGather(rank, *command));
      attention.Renew();
    } else if (!more) {
      attention.Wait(under_way.empty() ? expected : Attention::For::kCopies, deadline);
    }
  }
}

absl::Time Epoch::CheckDeadlines() {
  const absl::Time deadline = std::min(sequence_.NextDeadline(), vote_deadline_);
  if (absl::Now() < deadline) return deadline;
  if (const absl::Status overdue = Overdue(); !overdue.ok()) EndLocked(overdue);
  return deadline;
}

absl::Status Epoch::Overdue() const {
  if (absl::Now() < vote_deadline_) return sequence_.Overdue(absl::Now());
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
        if (ended_ && sequence_.Quiet()) return;
        work_.Wait(&mu_);
      }
    }
    RunPush(rank, *work);
    // The wait that may begin now has a deadline, which the gather thread watches.
    seats_[rank].words.Ring();
  }
}

absl::StatusOr<std::vector<v1::Command>> Epoch::ReadRing(int rank) const {
  std::vector<v1::Command> commands;
  while (commands.size() < kMostCommandsAtOnce) {
    ASSIGN_OR_RETURN(const std::optional<std::string> record, seats_[rank].ring->Read());
    if (!record.has_value()) break;
    if (!commands.emplace_back().ParseFromString(*record)) {
      return absl::InvalidArgumentError(absl::StrCat("command ring of rank ", options_.first_rank + rank,
                                                     ": a serialized Command expected, got ", record->size(),
                                                     " other bytes"));
    }
  }
  return commands;
}

void Epoch::TakeAll(int rank, absl::StatusOr<std::vector<v1::Command>> commands) {
  if (ended_) return;
  if (!commands.ok()) return EndLocked(commands.status());
  for (v1::Command& command : *commands) {
    Take(rank, std::move(command));
    if (ended_) return;
  }
}

void Epoch::Take(int rank, v1::Command command) {
  const int64_t number = command.number();
  const bool shared = options_.cluster->nodes() > 1;
  const std::string text = shared ? CommandText(*options_.spec, command) : "";
  const absl::StatusOr<bool> agreed = sequence_.Submit(rank, std::move(command), absl::Now());
  if (!agreed.ok()) return EndLocked(agreed.status());
  if (*agreed && shared) {
    options_.cluster->ReportCommand(options_.spec->name, options_.number, number, options_.first_rank + rank, text);
  }
}

void Epoch::Submit(int rank, const v1::Command& command) {
  absl::MutexLock lock(&mu_);
  if (ended_) return;
  Take(rank, command);
  WakeRunnable();
  // A wait that begins here has a deadline, which the gather thread watches.
  seats_[rank].words.Ring();
}

void Epoch::WakeRunnable() {
  for (int rank : sequence_.RunnableGathers()) seats_[rank].words.Ring();
  if (ended_ || !sequence_.RunnablePushes().empty()) work_.SignalAll();
}

// --- Work ---

Epoch::UnderWay Epoch::BeginGather(int rank, const v1::Command& command) {
  const v1::Gather& gather = command.gather();
  const GatherCall call{.number = command.number(),
                        .unit = gather.unit(),
                        .use = static_cast<Use>(gather.phase() - v1::PHASE_FORWARD),
                        .slot = gather.slot()};
  return {.call = call,
          .begun = engines_[rank]->Gather(call, [&](int target, int source) { PublishReady(call, target, source); })};
}

bool Epoch::FinishGathers(int rank, std::deque<UnderWay>& under_way) {
  bool finished = false;
  while (!under_way.empty()) {
    const GatherCall& call = under_way.front().call;
    absl::StatusOr<bool> done = true;
    if (const absl::Status& begun = under_way.front().begun; !begun.ok()) {
      done = begun;
    } else {
      done = engines_[rank]->GatherDone(call, [&](int target, int source) { PublishReady(call, target, source); });
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
  sequence_.FinishGather(rank, absl::Now());
  EndOnError(status);
  WakeRunnable();
}

// The engine speaks of ranks of the shard group.
void Epoch::PublishReady(const GatherCall& call, int target, int source) const {
  const wire::Words& words = seats_[options_.topology->LocalRank(target)].words;
  words.Publish(words.ready(call.slot, source), static_cast<uint32_t>(call.number));
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
      return RunApply(rank, *work.command);
    case Sequence::Work::kShareAmaxes:
      return RunShareAmaxes(*work.command);
    case Sequence::Work::kEncode:
      return RunEncode(rank, *work.command);
  }
}

void Epoch::RunReduce(int rank, const v1::Command& command) {
  const v1::Push& push = command.push();
  const int slot = push.slot();
  const auto number = static_cast<uint32_t>(command.number());
  const Shard::PushTarget target = options_.shards[rank]->BeginPush(push.unit(), push.absent_parameters());
  const absl::Status status =
      engines_[rank]->Reduce({.number = command.number(),
                              .unit = push.unit(),
                              .slot = slot,
                              .own_slices_landed = push.own_slices_landed(),
                              .accumulators = target.accumulators,
                              .overwrite = absl::MakeConstSpan(target.overwrite.get(), target.accumulators.size())});
  absl::MutexLock lock(&mu_);
  if (sequence_.FinishReduce(rank, absl::Now())) {
    for (const Seat& seat : seats_) seat.words.Publish(seat.words.drained(slot), number);
  }
  EndOnError(status);
  WakeRunnable();
}

void Epoch::RunSum(int rank) {
  const absl::StatusOr<std::vector<SumTask>> left = engines_[rank]->TakeSums();
  const absl::StatusOr<SquareSum> sum = left.ok() ? options_.shards[rank]->SumSquares(*left) : left.status();
  absl::MutexLock lock(&mu_);
  if (sum.ok()) sums_[rank] = *sum;
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
    for (int rank = 0; rank < ranks_; ++rank) {
      vote.sums.push_back({.rank = options_.first_rank + rank,
                           .square_sum = sums_[rank].sum,
                           .non_finite_count = sums_[rank].non_finite});
    }
    vote_deadline_ = absl::Now() + options_.step_timeout;
    // A gather thread watches the deadline.
    seats_[0].words.Ring();
  }
  const absl::StatusOr<CommitDecision> decision = options_.cluster->Vote(vote);
  absl::MutexLock lock(&mu_);
  vote_deadline_ = absl::InfiniteFuture();
  auto verdict = Sequence::Verdict::kGivenUp;
  if (decision.ok()) {
    const bool encodes = decision->apply && !options_.scaling_book->empty();
    verdict = encodes ? Sequence::Verdict::kEncodes : Sequence::Verdict::kApplies;
    const GradientScale scale =
        ScaleOf(command.commit(), decision->square_sum, options_.spec->mean_gradients, options_.topology->world_size());
    decision_ = *decision;
    gradient_norm_ = scale.norm;
    step_ = StepOf(command.commit(), scale.factor);
  } else {
    if (absl::IsDataLoss(decision.status())) doubt_ = decision.status();
    EndOnError(decision.status());
  }
  sequence_.FinishVote(verdict);
  WakeRunnable();
}

void Epoch::RunApply(int rank, const v1::Command& command) {
  StepParameters step;
  bool apply;
  {
    absl::MutexLock lock(&mu_);
    step = step_;
    apply = decision_.apply;
  }
  Shard& shard = *options_.shards[rank];
  if (!apply) shard.DropGradients();
  const absl::Status applied = apply ? shard.Step(step, *options_.scaling_book) : absl::OkStatus();
  FinishStage(rank, command, applied, &Sequence::FinishApply);
}

// Where it fails the epoch ends: planes are then of an amax that is out of date, and the next epoch encodes them.
void Epoch::RunShareAmaxes(const v1::Command& command) {
  const absl::Status shared = ShareAmaxes(command.number());
  absl::MutexLock lock(&mu_);
  EndOnError(shared);
  sequence_.FinishShareAmaxes();
  WakeRunnable();
}

void Epoch::RunEncode(int rank, const v1::Command& command) {
  const absl::Status encoded = options_.shards[rank]->EncodeAfterAmax(*options_.scaling_book);
  FinishStage(rank, command, encoded, &Sequence::FinishEncode);
}

void Epoch::FinishStage(int rank, const v1::Command& command, const absl::Status& status,
                        bool (Sequence::*finish)(int rank, absl::Time now)) {
  absl::MutexLock lock(&mu_);
  EndOnError(status);
  apply_failure_.Update(status);
  // Before the last stage finishes, which forgets the command.
  std::vector<std::string> client_states;
  for (int i = 0; i < ranks_; ++i) client_states.push_back(sequence_.ClientState(i, command.number()));
  // A step that failed on one device is never answered: the device is broken, and the model with it.
  if ((sequence_.*finish)(rank, absl::Now()) && apply_failure_.ok()) Answer(std::move(client_states));
  WakeRunnable();
}

void Epoch::Answer(std::vector<std::string> client_states) {
  const v1::CommitResult result = options_.commit_log->Answer(decision_.apply, gradient_norm_,
                                                              decision_.non_finite_count, std::move(client_states));
  for (const Seat& seat : seats_) {
    PublishAnswer(seat, result);
    seat.words.Publish(seat.words.committed(), static_cast<uint32_t>(result.commit_number()));
  }
  work_.SignalAll();
}

void Epoch::PublishAnswer(const Seat& seat, const v1::CommitResult& result) const {
  wire::CommitRecord& record = seat.words.commit_record(result.commit_number());
  record.commit_number = result.commit_number();
  record.version = result.version();
  record.gradient_norm = result.gradient_norm();
  record.non_finite_count = result.non_finite_count();
  record.skipped = result.skipped() ? 1 : 0;
}

// --- Inspection ---

std::string Epoch::WaitsFor(int rank) const {
  absl::MutexLock lock(&mu_);
  if (seats_[rank].words_memory.data() == nullptr) return "the daemon";
  const bool voting = options_.cluster->nodes() > 1 && vote_deadline_ != absl::InfiniteFuture();
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
  absl::MutexLock lock(&mu_);
  return engines_.empty() ? 0 : engines_[rank]->scratch_bytes();
}

std::string Epoch::engine() const {
  absl::MutexLock lock(&mu_);
  return engines_.empty() ? "" : std::string(engines_[0]->name());
}

}  // namespace paramshard::server
