#include "server/models/state_recovery.h"

#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/model/model_spec_difference.h"
#include "common/model/model_spec_proto.h"
#include "kernels/base/status_macros.h"
#include "server/base/thread_pool.h"
#include "server/journal/journal.h"
#include "server/models/lost_models.h"
#include "server/training/current_commit.h"

namespace paramshard::server {
namespace {

ScalingBook::Record RecordOf(const JournalIdentity::BookParameter& parameter, const JournalScaling& scaling) {
  ScalingBook::Record record{.unit = parameter.unit,
                             .parameter = parameter.parameter,
                             .amax = scaling.amax,
                             .scale = scaling.scale,
                             .is_fresh = scaling.is_fresh,
                             .offered = scaling.offered,
                             .stepped = scaling.stepped,
                             .history = {}};
  if (scaling.history.has_value()) {
    record.history = ScalingBook::Record::History{.scale = scaling.history->scale, .amaxes = scaling.history->amaxes};
  }
  return record;
}

RecoveryPlan LossBy(absl::string_view why) {
  RecoveryPlan plan;
  plan.action = RecoveryAction::kDataLoss;
  plan.loss = std::string(why);
  return plan;
}

// Returns nothing for a model that is lost: not all of its journal was read.
std::optional<ClosedEpoch> ClosedEpochOf(const std::string& name, const RecoveryPlan& plan) {
  if (!IsRecoverable(plan.action)) return std::nullopt;
  const std::string history = plan.epoch->history.ToString();
  ClosedEpoch closed{.model = name,
                     .history_id = history,
                     .epoch = plan.epoch->epoch,
                     .commit_number = plan.numbers->commit_number + (plan.decided.has_value() ? 1 : 0),
                     .device_counts = {plan.identity->device_counts.begin(), plan.identity->device_counts.end()}};
  const std::optional<LastDecision>& last = plan.last_decision;
  if (!last.has_value() || last->history != plan.epoch->history) return closed;
  closed.last_decision = {.epoch = last->epoch,
                          .commit_number = last->commit.commit_number,
                          .decision = {.apply = last->commit.apply,
                                       .square_sum = last->commit.square_sum,
                                       .non_finite_count = last->commit.non_finite_count}};
  return closed;
}

class Recovery {
 public:
  Recovery(const RecoveryPlan& plan, CommittedState& state, bool shares_amaxes, ModelJournal& journal)
      : plan_(plan), state_(state), shares_amaxes_(shares_amaxes), journal_(journal) {}

  absl::Status Run() {
    TakeNumbers();
    if (plan_.action == RecoveryAction::kRedoChange) return absl::OkStatus();
    if (plan_.action == RecoveryAction::kServe) {
      return plan_.prepared.has_value() ? journal_.Withdraw() : absl::OkStatus();
    }
    if (plan_.action == RecoveryAction::kRedoApply) RETURN_IF_ERROR(FinishStep());
    return Answer();
  }

 private:
  void TakeNumbers() {
    const JournalNumbers& numbers = *plan_.numbers;
    state_.commits.Restore(
        {.numbers = {.commit_number = numbers.commit_number, .version = numbers.version, .skipped = numbers.skipped},
         .last_answer = numbers.last_answer,
         .client_states = numbers.client_states,
         .reader_data = numbers.reader_data});
    std::vector<ScalingBook::Record> records;
    for (size_t i = 0; i < numbers.scalings.size(); ++i) {
      records.push_back(RecordOf(plan_.identity->book[i], numbers.scalings[i]));
    }
    state_.book.Restore(records);
    for (const auto& shard : state_.shards) {
      shard->SetSteps(numbers.steps);
      shard->SetVersion(numbers.version);
      shard->SetGeneration(plan_.epoch->generation);
    }
  }

  // Measures amaxes of the part that was done before: they were lost with the server.
  absl::Status FinishStep() {
    RETURN_IF_ERROR(OnAllRanks("a step that goes on", static_cast<int>(state_.shards.size()),
                               [this](int rank) { return StepRank(rank); }));
    for (const auto& shard : state_.shards) RETURN_IF_ERROR(shard->MeasureAmaxes(state_.book));
    if (!shares_amaxes_) state_.book.Settle(state_.book.Offer());
    return absl::OkStatus();
  }

  absl::Status StepRank(int rank) {
    Shard& shard = *state_.shards[rank];
    StepProgress progress = journal_.Marks(rank);
    progress.done = plan_.redo[rank].done;
    shard.gradients().Adopt(plan_.prepared->has_gradient);
    return shard.Step({.groups = plan_.prepared->groups, .gradient_scale = plan_.decided->gradient_scale}, progress,
                      state_.book);
  }

  absl::Status Answer() {
    const DecidedCommit& decided = *plan_.decided;
    const CommitAnswer answer =
        state_.commits.Answer(decided.apply, decided.gradient_norm, decided.non_finite_count,
                              plan_.prepared->client_states, std::nullopt, plan_.prepared->reader_data);
    return journal_.Answer(answer, state_.commits.numbers().skipped, state_);
  }

  const RecoveryPlan& plan_;
  CommittedState& state_;
  const bool shares_amaxes_;
  ModelJournal& journal_;
};

}  // namespace

absl::StatusOr<InheritedModel> InheritedModel::Read(const std::string& name, KeptStore* store,
                                                    KeptStore::Descriptors pieces) {
  InheritedModel inherited;
  const bool has_journal = pieces.find(kJournalPiece) != pieces.end();
  const bool has_mark = pieces.find(kLostPiece) != pieces.end();
  const bool has_state = pieces.size() > (has_journal ? 1u : 0u) + (has_mark ? 1u : 0u);
  inherited.memory = std::make_unique<KeptMemory>(name, store, std::move(pieces));
  if (has_journal) {
    const absl::StatusOr<const Memory*> journal = inherited.memory->AdoptHostPiece(kJournalPiece);
    if (absl::IsResourceExhausted(journal.status())) return journal.status();
    if (!journal.ok()) {
      inherited.plan = LossBy(journal.status().message());
      return inherited;
    }
    inherited.journal = *journal;
    const auto bytes = absl::MakeConstSpan(inherited.journal->data(), inherited.journal->size_bytes());
    absl::StatusOr<RecoveryPlan> plan = PlanRecovery(bytes);
    if (!plan.ok()) {
      return absl::Status(plan.status().code(), absl::StrCat("model ", name, ": ", plan.status().message()));
    }
    inherited.plan = *std::move(plan);
  }
  const bool is_begun = inherited.plan.action != RecoveryAction::kNotBegun;
  if (is_begun && inherited.plan.action != RecoveryAction::kDrop) return inherited;
  if (has_mark) {
    inherited.plan = LossBy(LostModels::ReadMark(*inherited.memory));
  } else if (!is_begun && has_state) {
    inherited.plan = LossBy("its memory has no journal that was begun");
  } else {
    inherited.plan.action = RecoveryAction::kDrop;
  }
  return inherited;
}

absl::StatusOr<ModelSpec> InheritedModel::Spec() const {
  if (plan.action == RecoveryAction::kDataLoss) return absl::DataLossError(plan.loss);
  v1::ModelSpec message;
  if (!message.ParseFromString(plan.identity->spec)) return absl::DataLossError("journal: failed to parse the spec");
  absl::StatusOr<ModelSpec> spec = ParseModelSpec(message);
  if (spec.ok() && ModelSpecFingerprint(*spec) == plan.identity->spec_fingerprint) return spec;
  return absl::FailedPreconditionError(
      "another version made it, which reads the model's spec differently: start that version, or restore a checkpoint");
}

absl::Status InheritedModel::AskNode0(const ModelSpec& spec, Cluster& cluster) {
  const absl::StatusOr<CommitDecision> decision = cluster.QueryCommit({.model = spec.name,
                                                                       .history_id = plan.epoch->history.ToString(),
                                                                       .epoch = plan.epoch->epoch,
                                                                       .commit_number = plan.prepared->commit_number});
  if (absl::IsDataLoss(decision.status())) {
    doubt = decision.status();
    plan.action = RecoveryAction::kServe;
    plan.prepared.reset();
    return absl::OkStatus();
  }
  if (!decision.ok() && !absl::IsAborted(decision.status())) return decision.status();
  const absl::Span<uint8_t> bytes = absl::MakeSpan(journal->data(), journal->size_bytes());
  ASSIGN_OR_RETURN(const std::unique_ptr<Journal> writer, Journal::Adopt(bytes));
  if (decision.ok()) {
    RETURN_IF_ERROR(
        writer->Decide(Decide(*plan.prepared, *decision, spec.gradient_reduction == GradientReduction::kMean)));
  } else {
    RETURN_IF_ERROR(writer->Withdraw());
  }
  ASSIGN_OR_RETURN(plan, PlanRecovery(bytes));
  return absl::OkStatus();
}

absl::StatusOr<std::vector<ClosedEpoch>> ReadClosedEpochs(KeptStore& kept) {
  ASSIGN_OR_RETURN(KeptStore::Descriptors all, kept.TakeAll());
  KeptModels left = KeptModels::Sort(std::move(all));
  std::vector<ClosedEpoch> closed;
  for (auto& [name, pieces] : left.models) {
    ASSIGN_OR_RETURN(const InheritedModel model, InheritedModel::Read(name, &kept, std::move(pieces)));
    if (std::optional<ClosedEpoch> epoch = ClosedEpochOf(name, model.plan)) closed.push_back(*std::move(epoch));
  }
  return closed;
}

absl::Status RecoverState(const RecoveryPlan& plan, CommittedState& state, bool shares_amaxes, ModelJournal& journal) {
  return Recovery(plan, state, shares_amaxes, journal).Run();
}

}  // namespace paramshard::server
