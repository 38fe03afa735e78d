#include "server/training/model_journal.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/synchronization/mutex.h"
#include "common/model/group_hyperparameters.h"
#include "common/model/limits.h"
#include "common/model/model_spec_difference.h"
#include "kernels/base/status_macros.h"
#include "kernels/formats/format.h"
#include "server/journal/journal_reader.h"

namespace paramshard::server {
namespace {

static_assert(kStateArrays == kJournalArrays, "an array that the journal does not have");

int ParameterCount(const ModelSpec& spec) {
  int count = 0;
  for (const UnitSpec& unit : spec.units) count += static_cast<int>(unit.parameters.size());
  return count;
}

JournalRank DescribeRank(int world_rank, const ShardPlacement& placement) {
  JournalRank rank{.rank = world_rank,
                   .pieces = {},
                   .extents = {},
                   .trainable_count = placement.trainable_count,
                   .bands = {},
                   .distance = placement.moves.distance};
  for (const auto& [name, size_bytes] : placement.Pieces()) rank.pieces.push_back({name, size_bytes});
  if (placement.plane_copy_bytes > 0) {
    rank.pieces.push_back({ShardPlacement::kPlaneCopyPiece, placement.plane_copy_bytes});
  }
  for (const ShardExtent& extent : placement.extents) {
    rank.extents.push_back({.unit = extent.unit,
                            .parameter = extent.parameter,
                            .first_row = extent.rows.begin,
                            .end_row = extent.rows.end,
                            .offsets = extent.state_offsets,
                            .gradient_offset = extent.gradient_offset});
  }
  for (const BandStart& start : placement.moves.bands) {
    const ShardExtent& extent = placement.extents[start.extent];
    rank.bands.push_back({.unit = extent.unit, .parameter = extent.parameter, .row = extent.rows.begin + start.row});
  }
  return rank;
}

std::vector<JournalIdentity::BookParameter> DescribeBook(const ModelSpec& spec) {
  std::vector<JournalIdentity::BookParameter> book;
  for (int unit = 0; unit < static_cast<int>(spec.units.size()); ++unit) {
    const auto& parameters = spec.units[unit].parameters;
    for (int parameter = 0; parameter < static_cast<int>(parameters.size()); ++parameter) {
      const auto& encoding = parameters[parameter].encoding;
      const Format format = EncodingOf(encoding).format;
      if (!NeedsAmax(format)) continue;
      const bool is_delayed = format == Format::kFP8TensorDelayed;
      const DelayedScaling::Options options = encoding.delayed_scaling.value_or(DelayedScaling::Options());
      book.push_back({.unit = unit, .parameter = parameter, .history_length = is_delayed ? options.history_length : 0});
    }
  }
  return book;
}

JournalScaling ScalingOf(const ScalingBook::Record& record) {
  JournalScaling scaling{.amax = record.amax,
                         .scale = record.scale,
                         .offered = record.offered,
                         .stepped = record.stepped,
                         .is_fresh = record.is_fresh};
  if (record.history.has_value()) {
    scaling.history = JournalScaling::History{.scale = record.history->scale, .amaxes = record.history->amaxes};
  }
  return scaling;
}

std::vector<int64_t> Positions(const CommittedState& state) {
  std::vector<int64_t> positions;
  for (const auto& shard : state.shards) {
    absl::ReaderMutexLock lock(&shard->mutex());
    positions.push_back(shard->position());
  }
  return positions;
}

absl::Status Differs(absl::string_view what) {
  return absl::FailedPreconditionError(
      absl::StrCat(what, "; start the server as it was, or delete the model there after a save"));
}

absl::Status CheckSame(const JournalIdentity& kept, const JournalIdentity& here) {
  if (kept.node != here.node || kept.device_counts != here.device_counts) {
    return Differs(absl::StrCat("want node ", kept.node, " of daemons with [", absl::StrJoin(kept.device_counts, ", "),
                                "] devices, got node ", here.node, " of [", absl::StrJoin(here.device_counts, ", "),
                                "]"));
  }
  if (kept.spec != here.spec || kept.shard_size != here.shard_size) {
    return Differs("another version made it, which reads the model's spec differently");
  }
  if (kept == here) return absl::OkStatus();
  return Differs("this version places the state differently");
}

}  // namespace

JournalIdentity ModelJournal::Describe(const ModelSpec& spec, const Layout& layout, const Topology& topology,
                                       const MovePolicy& moves) {
  JournalIdentity identity{.spec = CanonicalBytes(spec),
                           .spec_fingerprint = ModelSpecFingerprint(spec),
                           .node = topology.node(),
                           .device_counts = {topology.device_counts().begin(), topology.device_counts().end()},
                           .shard_size = topology.shard_size(),
                           .parameters = ParameterCount(spec),
                           .groups = static_cast<int32_t>(spec.groups.size()),
                           .client_state_bytes = static_cast<int64_t>(kMaxClientStateBytes),
                           .book = DescribeBook(spec),
                           .ranks = {}};
  for (int rank = 0; rank < topology.rank_count(); ++rank) {
    identity.ranks.push_back(
        DescribeRank(topology.first_rank() + rank, ShardPlacement::Of(spec, layout, topology.GroupRank(rank), moves)));
  }
  return identity;
}

absl::StatusOr<std::unique_ptr<ModelJournal>> ModelJournal::Create(KeptMemory& memory, const JournalIdentity& identity,
                                                                   ComputeDevice& device) {
  ASSIGN_OR_RETURN(const int64_t size_bytes, Journal::SizeOf(identity));
  ASSIGN_OR_RETURN(const Memory* const piece, memory.HostPiece(kJournalPiece, size_bytes));
  ASSIGN_OR_RETURN(std::unique_ptr<Journal> journal,
                   Journal::Create(absl::MakeSpan(piece->data(), size_bytes), identity));
  std::unique_ptr<ModelJournal> made(new ModelJournal(*piece, std::move(journal)));
  RETURN_IF_ERROR(made->OpenFor(device));
  return made;
}

absl::StatusOr<std::unique_ptr<ModelJournal>> ModelJournal::Adopt(const Memory& piece, const JournalIdentity& identity,
                                                                  ComputeDevice& device) {
  const auto memory = absl::MakeSpan(piece.data(), piece.size_bytes());
  // A server that adopts the journal may write to it: opening it ends an unfinished change.
  ASSIGN_OR_RETURN(const JournalReader reader, JournalReader::Open(memory));
  if (reader.begun()) RETURN_IF_ERROR(CheckSame(reader.identity(), identity));
  ASSIGN_OR_RETURN(std::unique_ptr<Journal> journal, Journal::Adopt(memory));
  std::unique_ptr<ModelJournal> adopted(new ModelJournal(piece, std::move(journal)));
  RETURN_IF_ERROR(adopted->OpenFor(device));
  return adopted;
}

// The journal is opened on one GPU of the process, and all GPUs may write to it.
absl::Status ModelJournal::OpenFor(ComputeDevice& device) {
  ASSIGN_OR_RETURN(leave_, device.OpenHostMemory(piece_));
  return absl::OkStatus();
}

absl::Status ModelJournal::SetUsable(const JournalEpoch& epoch, const CommitLog::State& commits,
                                     CommittedState& state) {
  JournalNumbers numbers{.commit_number = commits.numbers.commit_number,
                         .version = commits.numbers.version,
                         .skipped = commits.numbers.skipped,
                         .last_answer = commits.last_answer,
                         .client_states = commits.client_states,
                         .reader_data = commits.reader_data,
                         .steps = Steps(state),
                         .positions = Positions(state),
                         .scalings = {}};
  numbers.client_states.resize(journal_->identity().ranks.size());
  for (const ScalingBook::Record& record : state.book.records()) numbers.scalings.push_back(ScalingOf(record));
  state.book.TakeChanges();
  return journal_->SetUsable(epoch, numbers);
}

absl::Status ModelJournal::Prepare(const v1::Commit& commit, int ranks, const std::vector<std::string>& client_states,
                                   CommittedState& state) {
  PreparedCommit prepared{.commit_number = commit.commit_number(),
                          .groups = {},
                          .has_gradient = std::vector<bool>(journal_->identity().parameters),
                          .client_states = client_states,
                          .reader_data = commit.reader_data(),
                          .save = commit.save(),
                          .gradient_scale = GradientScaleOf(commit),
                          .ranks = ranks};
  if (commit.has_max_grad_norm()) prepared.max_grad_norm = commit.max_grad_norm();
  for (const v1::GroupHyperparameters& group : commit.groups()) {
    prepared.groups.push_back(HyperparametersFromProto(group));
  }
  for (const auto& shard : state.shards) shard->gradients().Mark(prepared.has_gradient);
  return journal_->Prepare(prepared);
}

absl::Status ModelJournal::Decide(int64_t commit_number, const Decided& decided) {
  return journal_->Decide({.commit_number = commit_number,
                           .apply = decided.apply,
                           .gradient_scale = decided.step.gradient_scale,
                           .gradient_norm = decided.gradient_norm,
                           .non_finite_count = decided.non_finite_count,
                           .square_sum = decided.square_sum});
}

StepProgress ModelJournal::Marks(int rank) const {
  StepProgress progress{.lanes = {}, .word = MarkWord(journal_->decided_commit(), 0), .word_step = kMarkStep};
  for (int lane = 0; lane < kBandLanes; ++lane) {
    const Journal::MarkOffsets offsets = journal_->mark_offsets(rank, lane);
    progress.lanes[lane] = {.begun = reinterpret_cast<uint64_t*>(piece_.data() + offsets.begun),
                            .done = reinterpret_cast<uint64_t*>(piece_.data() + offsets.done)};
  }
  return progress;
}

absl::Status ModelJournal::Answer(const CommitAnswer& answer, int64_t skipped, CommittedState& state) {
  RETURN_IF_ERROR(before_answer_());
  const std::vector<int64_t> steps = Steps(state);
  const std::vector<int64_t> positions = Positions(state);
  const std::vector<ScalingChange> scalings = state.book.TakeChanges();
  return journal_->Answer(
      {.answer = answer, .skipped = skipped, .steps = steps, .positions = positions, .scalings = scalings});
}

std::vector<int64_t> ModelJournal::Steps(const CommittedState& state) const {
  return state.Steps(journal_->identity().parameters);
}

}  // namespace paramshard::server
