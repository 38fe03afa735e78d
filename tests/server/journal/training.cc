#include "tests/server/journal/training.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "kernels/base/check.h"

namespace paramshard::server {
namespace {

JournalRank BandedRank(int rank, int bands) {
  JournalRank banded{.rank = rank,
                     .pieces = {{"master", 4096}, {"exp_avg", 2048}, {"gradients", 1024}},
                     .extents = {},
                     .trainable_count = 2,
                     .bands = {},
                     .distance = 512};
  banded.extents.push_back({.unit = 0, .parameter = 0, .first_row = rank * 640, .end_row = rank * 640 + 640});
  banded.extents.push_back({.unit = 1, .parameter = 0, .first_row = 0, .end_row = 10, .offsets = {512}});
  banded.extents.push_back({.unit = 0, .parameter = 1, .first_row = 3, .end_row = 4});  // frozen
  for (int band = 0; band < bands; ++band) banded.bands.push_back({0, 0, rank * 640 + band * 128});
  return banded;
}

JournalIdentity IdentityOf(std::vector<JournalRank> ranks) {
  JournalIdentity identity{.spec = "a spec's bytes",
                           .spec_fingerprint = 0x1234,
                           .node = 0,
                           .device_counts = {static_cast<int32_t>(ranks.size()), 1},
                           .shard_size = 2,
                           .parameters = 4,
                           .groups = 2,
                           .client_state_bytes = 24,
                           .book = {},
                           .ranks = {}};
  identity.book = {{0, 0, 3}, {0, 1, 0}, {1, 0, 2}};
  identity.ranks = std::move(ranks);
  return identity;
}

// The plan of a state in which no commit is under way.
RecoveryPlan Serving(const Training& training) {
  RecoveryPlan plan;
  plan.action = RecoveryAction::kServe;
  plan.identity = training.identity();
  plan.epoch = training.epoch();
  plan.numbers = training.numbers();
  return plan;
}

RecoveryPlan Preparing(const Training& training, int64_t number) {
  RecoveryPlan plan = Serving(training);
  if (training.identity().node != 0) plan.action = RecoveryAction::kQueryNode0;
  plan.prepared = training.Prepared(number);
  return plan;
}

RecoveryPlan Dropped() {
  RecoveryPlan plan;
  plan.action = RecoveryAction::kDrop;
  return plan;
}

RecoveryPlan Applying(const Training& training, int64_t number) {
  RecoveryPlan plan = Preparing(training, number);
  plan.decided = training.Decided(number);
  plan.action = plan.decided->apply ? RecoveryAction::kRedoApply : RecoveryAction::kAnswerSkip;
  if (!plan.decided->apply) return plan;
  for (size_t i = 0; i < training.identity().ranks.size(); ++i) {
    plan.redo.push_back({.rank = training.identity().ranks[i].rank, .forward = true});
    if (!training.identity().ranks[i].bands.empty()) plan.redo[i].forward = training.numbers().positions[i] == 0;
  }
  return plan;
}

// Counts the calls of a life, and what is found after each.
class Script {
 public:
  Script(JournalIdentity identity, int commits) : training_(std::move(identity)), commits_(commits) {}

  std::vector<TrainingStep> Write() {
    Create();
    AddSetUsable("set usable");
    BeginEpoch(1);
    for (int n = 1; n <= commits_; ++n) {
      if (n == 2) GiveUp();
      Commit();
    }
    Import(ChangeSource::Kind::kFiles);
    BeginEpoch(6);
    Commit();
    Import(ChangeSource::Kind::kStream);
    Change();
    BeginEpoch(7);
    Commit();
    Import(ChangeSource::Kind::kFiles, 1);  // the restore has left a full history
    BeginEpoch(8);
    Commit();
    Import(ChangeSource::Kind::kFiles);
    return std::move(steps_);
  }

 private:
  using Call = std::function<absl::Status(Journal& journal)>;
  void Add(const std::string& name, const Call& call, RecoveryPlan after) {
    // The lifecycle says before anything else whether there is one.
    if (after.numbers.has_value()) after.last_decision = decision_;
    steps_.push_back(
        {.name = name,
         .call = [call](std::unique_ptr<Journal>& journal, absl::Span<uint8_t>, StoreLimit*) { return call(*journal); },
         .after = std::move(after)});
  }

  void Create() {
    steps_.push_back({.name = "create",
                      .call =
                          [identity = training_.identity()](std::unique_ptr<Journal>& journal,
                                                            absl::Span<uint8_t> memory, StoreLimit* limit) {
                            absl::StatusOr<std::unique_ptr<Journal>> created = Journal::Create(memory, identity, limit);
                            if (!created.ok()) return created.status();
                            journal = *std::move(created);
                            return absl::OkStatus();
                          },
                      .after = Dropped()});
  }

  void AddSetUsable(const std::string& name) {
    Add(
        name,
        [epoch = training_.epoch(), numbers = training_.numbers()](Journal& journal) {
          return journal.SetUsable(epoch, numbers);
        },
        Serving(training_));
  }

  void BeginEpoch(int64_t epoch) {
    training_.BeginEpoch(epoch);
    Add(
        absl::StrCat("begin epoch ", epoch),
        [epoch, history = training_.epoch().history](Journal& journal) { return journal.BeginEpoch(epoch, history); },
        Serving(training_));
    training_.Settle(0.75f * static_cast<float>(epoch));
    Add(
        absl::StrCat("settle amaxes of epoch ", epoch),
        [settled = training_.settled()](Journal& journal) { return journal.Settle(settled); }, Serving(training_));
  }

  void Prepare(int64_t number) {
    Add(
        absl::StrCat("prepare ", number),
        [commit = training_.Prepared(number)](Journal& journal) { return journal.Prepare(commit); },
        Preparing(training_, number));
  }

  // The epoch ends without a decision; the commit comes again in the next one.
  void GiveUp() {
    Prepare(training_.numbers().commit_number + 1);
    Add(
        "withdraw", [](Journal& journal) { return journal.Withdraw(); }, Serving(training_));
    BeginEpoch(5);
  }

  void Commit() {
    const int64_t number = training_.numbers().commit_number + 1;
    Prepare(number);
    RecoveryPlan plan = Applying(training_, number);
    decision_ = LastDecision{training_.epoch().history, training_.epoch().epoch, training_.Decided(number)};
    Add(
        absl::StrCat("decide ", number),
        [commit = training_.Decided(number)](Journal& journal) { return journal.Decide(commit); }, plan);
    for (size_t rank = 0; rank < plan.redo.size(); ++rank) Apply(static_cast<int>(rank), plan);
    training_.Answer();
    AddAnswer(number);
  }

  void AddAnswer(int64_t number) {
    const auto at = std::make_shared<Training>(training_);
    Add(
        absl::StrCat("answer ", number), [at](Journal& journal) { return journal.Answer(at->Answered()); },
        Serving(training_));
  }

  void Apply(int rank, RecoveryPlan& plan) {
    const bool in_place = training_.identity().ranks[rank].bands.empty();
    const std::vector<Training::Band> bands = training_.Bands(rank);
    for (size_t n = 0; n < bands.size(); ++n) {
      const Training::Band band = bands[n];
      RecoveryPlan begun = plan;
      if (in_place) {
        begun.action = RecoveryAction::kDataLoss;
        begun.loss = absl::StrCat("rank ", training_.identity().ranks[rank].rank, ": a step in place was interrupted");
      } else {
        begun.redo[rank].torn = 1;
      }
      Add(
          absl::StrCat("begin band ", n, " of rank ", rank),
          [=](Journal& journal) { return journal.MarkBegun(rank, band.lane, band.count), absl::OkStatus(); }, begun);
      plan.redo[rank].done[band.lane] = band.count;
      plan.redo[rank].next = static_cast<int>(n) + 1;
      plan.redo[rank].complete = n + 1 == bands.size();
      Add(
          absl::StrCat("end band ", n, " of rank ", rank),
          [=](Journal& journal) { return journal.MarkDone(rank, band.lane, band.count), absl::OkStatus(); }, plan);
    }
  }

  void Change() {
    RecoveryPlan changing;
    changing.action = RecoveryAction::kRedoChange;
    changing.identity = training_.identity();
    changing.change = ChangeSource{.kind = ChangeSource::Kind::kCheckpoint, .text = "root/m/step-000000000002-0123"};
    Add(
        "begin a restore", [source = *changing.change](Journal& journal) { return journal.BeginChange(source); },
        changing);
    training_.Replace();
    decision_ = std::nullopt;
    AddSetUsable("end a restore");
  }

  void Import(ChangeSource::Kind kind, size_t untouched = 0) {
    RecoveryPlan changing;
    changing.identity = training_.identity();
    changing.change = ChangeSource{.kind = kind, .text = kind == ChangeSource::Kind::kFiles ? "in.safetensors" : ""};
    if (kind == ChangeSource::Kind::kFiles) {
      changing.action = RecoveryAction::kRedoChange;
      changing.epoch = training_.epoch();
      changing.numbers = training_.numbers();
    } else {
      changing.action = RecoveryAction::kDataLoss;
      changing.loss = "an import was interrupted";
    }
    decision_ = std::nullopt;
    Add(
        absl::StrCat("begin import ", ++imports_),
        [source = *changing.change](Journal& journal) { return journal.BeginChange(source); }, changing);
    training_.Import(untouched);
    AddSetUsable(absl::StrCat("end import ", imports_));
  }

  Training training_;
  int imports_ = 0;
  const int commits_;
  std::optional<LastDecision> decision_;
  std::vector<TrainingStep> steps_;
};

}  // namespace

JournalIdentity SmallIdentity() {
  JournalRank in_place = BandedRank(2, 0);
  in_place.distance = 0;
  return IdentityOf({BandedRank(0, 5), BandedRank(1, 2), in_place});
}

JournalIdentity BandedIdentity() { return IdentityOf({BandedRank(0, 5), BandedRank(1, 2)}); }

Training::Training(JournalIdentity identity) : identity_(std::move(identity)) {
  epoch_ = {.history = {absl::MakeUint128(1, 2)},
            .lineage = {absl::MakeUint128(3, 4)},
            .parent = std::nullopt,
            .history_begin = 0,
            .generation = 1,
            .epoch = 0};
  numbers_.client_states.resize(identity_.ranks.size());
  numbers_.steps.resize(identity_.parameters);
  numbers_.positions.resize(identity_.ranks.size());
  numbers_.scalings.resize(identity_.book.size());
  numbers_.scalings[0].amax = 0.25f;
  changes_.resize(identity_.book.size());
}

PreparedCommit Training::Prepared(int64_t number) const {
  PreparedCommit commit{.commit_number = number,
                        .groups = {},
                        .has_gradient = {},
                        .client_states = {},
                        .reader_data = number % 4 == 0 ? "" : absl::StrCat("for readers of ", number),
                        .save = number % 3 == 0,
                        .gradient_scale = 0.5f * static_cast<float>(number)};
  if (number % 2 == 0) commit.max_grad_norm = 0.25f * static_cast<float>(number);
  for (int64_t group = 0; group <= number % 2; ++group) {
    commit.groups.push_back(
        {.learning_rate = 0.5f * static_cast<float>(number), .beta1 = 0.25f * static_cast<float>(group)});
  }
  for (int64_t parameter = 0; parameter < identity_.parameters; ++parameter) {
    commit.has_gradient.push_back((number + parameter) % 3 != 0);
  }
  for (const JournalRank& rank : identity_.ranks) {
    commit.client_states.push_back(absl::StrCat("at ", number, " of ", rank.rank, std::string(number % 5, '.')));
  }
  return commit;
}

DecidedCommit Training::Decided(int64_t number) const {
  return {.commit_number = number,
          .apply = number % 3 != 0,
          .gradient_scale = 1.0f / static_cast<float>(number),
          .gradient_norm = 0.1 * static_cast<double>(number),
          .non_finite_count = number % 3 == 0 ? number : 0,
          .square_sum = 0.7 * static_cast<double>(number)};
}

std::vector<Training::Band> Training::Bands(int rank) const {
  std::vector<Band> bands;
  const JournalRank& of = identity_.ranks[rank];
  for (int n = 0; n < std::max(1, static_cast<int>(of.bands.size())); ++n) {
    bands.push_back({.lane = n % kBandLanes, .count = n / kBandLanes + 1});
  }
  return bands;
}

void Training::Answer() {
  const int64_t number = numbers_.commit_number + 1;
  const PreparedCommit prepared = Prepared(number);
  const DecidedCommit decided = Decided(number);
  numbers_.commit_number = number;
  ++(decided.apply ? numbers_.version : numbers_.skipped);
  numbers_.last_answer = CommitAnswer{.commit_number = number,
                                      .version = numbers_.version,
                                      .skipped = !decided.apply,
                                      .gradient_norm = decided.gradient_norm,
                                      .non_finite_count = decided.non_finite_count};
  numbers_.client_states = prepared.client_states;
  numbers_.reader_data = prepared.reader_data;
  for (ScalingChange& change : changes_) change.history = ScalingChange::History::kSame;
  if (!decided.apply) return;
  for (size_t i = 0; i < numbers_.steps.size(); ++i) numbers_.steps[i] += prepared.has_gradient[i];
  for (size_t i = 0; i < numbers_.positions.size(); ++i) {
    numbers_.positions[i] = identity_.ranks[i].distance - numbers_.positions[i];
  }
  for (size_t i = 0; i < numbers_.scalings.size(); ++i) AnswerScaling(i, number);
}

void Training::AnswerScaling(size_t index, int64_t number) {
  JournalScaling& scaling = numbers_.scalings[index];
  scaling = {.amax = static_cast<float>(number) + 0.125f * static_cast<float>(index),
             .scale = scaling.history.has_value() ? scaling.history->scale : 1.0f,
             .offered = number % 4 == 0 ? 2.5f : -1.0f,
             .stepped = number % 4 == 0,
             .is_fresh = false,
             .history = std::move(scaling.history)};
  ScalingChange& change = changes_[index];
  change = {.amax = scaling.amax,
            .scale = scaling.scale,
            .next_scale = 1.0f,
            .offered = scaling.offered,
            .stepped = scaling.stepped,
            .is_fresh = scaling.is_fresh};
  const auto length = static_cast<size_t>(identity_.book[index].history_length);
  if (length == 0) return;
  const bool begins = !scaling.history.has_value() || number % 7 == 0;
  if (!begins && (number + static_cast<int64_t>(index)) % 5 == 0) {  // without a gradient
    change.next_scale = scaling.history->scale;
    return;
  }
  if (begins) scaling.history = {.scale = 1.0f, .amaxes = std::vector<float>(length)};
  scaling.history->scale = change.next_scale = 8.0f / static_cast<float>(number);
  scaling.history->amaxes.insert(scaling.history->amaxes.begin(), scaling.amax);
  scaling.history->amaxes.resize(length);
  change.history = begins ? ScalingChange::History::kBegun : ScalingChange::History::kAppended;
}

void Training::Settle(float amax) {
  for (size_t i = 0; i < changes_.size(); ++i) {
    JournalScaling& scaling = numbers_.scalings[i];
    scaling.amax = amax;
    scaling.offered = -1.0f;
    scaling.stepped = false;
    changes_[i] = {.amax = amax, .scale = scaling.scale, .is_fresh = scaling.is_fresh};
    if (!scaling.history.has_value()) continue;
    std::vector<float>& amaxes = scaling.history->amaxes;
    amaxes.insert(amaxes.begin(), amax);
    amaxes.pop_back();
    changes_[i].next_scale = scaling.history->scale;
    changes_[i].history = ScalingChange::History::kAppended;
  }
}

// A skipped commit leaves the book as it was.
AnsweredCommit Training::Answered() const {
  return {.answer = *numbers_.last_answer,
          .skipped = numbers_.skipped,
          .steps = numbers_.steps,
          .positions = numbers_.positions,
          .scalings = changes_};
}

void Training::Replace() {
  epoch_ = {.history = {absl::MakeUint128(5, 6)},
            .lineage = {absl::MakeUint128(7, 8)},
            .parent = HistoryParent{.history = epoch_.history, .commit_number = 2},
            .history_begin = 2,
            .generation = 2,
            .epoch = epoch_.epoch};
  numbers_.commit_number = 2;
  numbers_.version = 2;
  numbers_.skipped = 0;
  numbers_.last_answer = std::nullopt;
  numbers_.client_states.assign(identity_.ranks.size(), "restored");
  numbers_.reader_data.clear();
  numbers_.steps.assign(identity_.parameters, 2);
  numbers_.positions.assign(identity_.ranks.size(), 0);
  for (size_t i = 0; i < numbers_.scalings.size(); ++i) {
    numbers_.scalings[i] = {.amax = 3.0f, .scale = 2.0f, .is_fresh = false};
    changes_[i] = {.amax = 3.0f, .scale = 2.0f, .is_fresh = false};
    const auto length = static_cast<size_t>(identity_.book[i].history_length);
    if (length > 0) numbers_.scalings[i].history = {.scale = 4.0f, .amaxes = std::vector<float>(length, 0.5f)};
    if (length > 0) numbers_.scalings[i].history->amaxes[0] = 3.0f;
    if (length > 0) changes_[i].next_scale = 4.0f;
  }
}

// Histories of what is imported begin anew; the numbers stay.
void Training::Import(size_t untouched) {
  epoch_.history.value += 100;
  epoch_.lineage.value += 100;
  epoch_.history_begin = numbers_.commit_number;
  ++epoch_.generation;
  numbers_.skipped = 0;
  numbers_.last_answer = std::nullopt;
  numbers_.client_states.assign(identity_.ranks.size(), "");
  numbers_.reader_data.clear();
  for (size_t i = untouched; i < numbers_.scalings.size(); ++i) {
    const float amax = 5.0f + static_cast<float>(i);
    numbers_.scalings[i] = {.amax = amax};
    changes_[i] = {.amax = amax};
    const auto length = static_cast<size_t>(identity_.book[i].history_length);
    if (length == 0) continue;
    numbers_.scalings[i].history = {.scale = 6.0f, .amaxes = std::vector<float>(length)};
    numbers_.scalings[i].history->amaxes[0] = amax;
    changes_[i].next_scale = 6.0f;
  }
}

std::vector<TrainingStep> WholeTraining(const JournalIdentity& identity, int commits) {
  return Script(identity, commits).Write();
}

bool SamePlan(const RecoveryPlan& plan, const RecoveryPlan& expected) {
  if (expected.action != RecoveryAction::kDataLoss) return plan == expected;
  return plan.action == expected.action && absl::StrContains(plan.loss, expected.loss);
}

}  // namespace paramshard::server
