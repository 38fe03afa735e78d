#include "server/models/model.h"

#include <numeric>
#include <set>
#include <string>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/model/layout_fingerprint.h"
#include "common/model/model_spec_difference.h"
#include "kernels/base/status_macros.h"
#include "kernels/formats/format.h"
#include "server/observe/log.h"

namespace paramshard::server {
namespace {

// Largest imbalance of shards that is not logged as a warning.
constexpr double kImbalanceWarning = 1.25;

absl::StatusOr<Topology> TopologyOf(const ModelSpec& spec, const World& world) {
  absl::StatusOr<Topology> topology = Topology::Create({.device_counts = world.cluster->device_counts(),
                                                        .node = world.cluster->node(),
                                                        .device_kind = world.devices.front()->id().kind,
                                                        .mesh_inside = world.engines.mesh_inside},
                                                       spec.shard_size);
  if (topology.ok()) return topology;
  return absl::Status(topology.status().code(),
                      absl::StrCat("create model ", spec.name, ": ", topology.status().message()));
}

// Planes without a master are made once, before other daemons can be asked for their amaxes.
absl::Status CheckFrozen(const ModelSpec& spec, const Topology& topology) {
  if (!topology.spans_daemons()) return absl::OkStatus();
  for (const UnitSpec& unit : spec.units) {
    for (const ParameterSpec& parameter : unit.parameters) {
      const Format format = EncodingOf(parameter.encoding).format;
      if (parameter.master_type.has_value() || !NeedsAmax(format)) continue;
      return absl::InvalidArgumentError(absl::StrCat("create model ", spec.name, ": parameter ", parameter.name,
                                                     ": master_type is required for a frozen parameter of ",
                                                     FormatName(format), " whose rows several daemons own"));
    }
  }
  return absl::OkStatus();
}

// Returns where the adopted state of a rank lies; meaningless if it is to be replaced.
int64_t PositionOf(const InheritedModel* inherited, int rank) {
  return inherited == nullptr || !inherited->plan.numbers.has_value() ? 0 : inherited->plan.numbers->positions[rank];
}

absl::StatusOr<std::unique_ptr<PlacedModel>> Place(const Model::Options& options) {
  const ModelSpec& spec = options.spec;
  ASSIGN_OR_RETURN(Topology topology, TopologyOf(spec, options.world));
  RETURN_IF_ERROR(CheckFrozen(spec, topology));
  RETURN_IF_ERROR(options.world.CheckDevices());
  Layout layout(spec, topology.shard_size());
  const uint64_t layout_fingerprint = LayoutFingerprint(layout);
  const bool may_come_back = topology.has_replicas() || (topology.nodes() > 1 && !options.save_dir.empty());
  return std::unique_ptr<PlacedModel>(
      new PlacedModel{.spec = spec,
                      .world = options.world,
                      .topology = std::move(topology),
                      .layout = std::move(layout),
                      .fingerprint = ModelSpecFingerprint(WithoutInitialValues(spec)),
                      .layout_fingerprint = layout_fingerprint,
                      .lineage_of_creation = LineageOfCreation(ModelSpecFingerprint(spec)),
                      .step_timeout = spec.step_timeout.value_or(options.step_timeout),
                      .clock = options.clock,
                      .may_come_back = may_come_back,
                      .log = options.log});
}

}  // namespace

absl::StatusOr<std::unique_ptr<Model>> Model::Create(Options options) {
  ASSIGN_OR_RETURN(std::unique_ptr<PlacedModel> placed, Place(options));
  options.moves.has_replicas = placed->topology.has_replicas();
  const std::unique_ptr<InheritedModel> inherited = std::exchange(options.inherited, nullptr);
  if (inherited != nullptr) options.memory = std::move(inherited->memory);
  std::vector<int64_t> image_bytes;
  if (options.savers != nullptr) {
    ASSIGN_OR_RETURN(image_bytes, options.savers->ImageBytes(placed->layout, placed->world));
  }
  ModelBudget budget({.spec = &placed->spec,
                      .layout = &placed->layout,
                      .topology = &placed->topology,
                      .devices = placed->world.devices,
                      .available_bytes = options.available_bytes,
                      .image_bytes = std::move(image_bytes),
                      .moves = options.moves});
  placed->sums_at_commit = budget.sums_at_commit();
  // Adopted memory is no longer part of the available memory.
  if (inherited == nullptr) RETURN_IF_ERROR(budget.Check());
  auto durability = std::make_unique<Durability>(std::move(options.memory));
  RETURN_IF_ERROR(durability->Open(*placed, options.moves, inherited.get(), options.hooks.before_answer));
  ASSIGN_OR_RETURN(std::shared_ptr<Publication> publication,
                   Publication::Create({.reader_hold = std::min(options.reader_hold, placed->step_timeout / 4),
                                        .clock = options.clock,
                                        .metrics = options.world.metrics,
                                        .count = options.publications}));
  std::unique_ptr<Model> model(
      new Model(std::move(placed), std::move(budget), std::move(durability), std::move(publication), options));
  RETURN_IF_ERROR(model->AllocateShards(options.moves, inherited.get()));
  RETURN_IF_ERROR(inherited == nullptr ? model->committed_.Encode({}) : model->state_.Resume(*inherited));
  if (options.savers != nullptr) RETURN_IF_ERROR(model->MakeSaver(*options.savers, inherited.get()));
  if (inherited != nullptr) model->durability_->DropUnclaimed(*model->placed_);
  model->LogBudget();
  if (inherited != nullptr) model->state_.PublishPlanes();
  return model;
}

Model::Model(std::unique_ptr<const PlacedModel> placed, ModelBudget budget, std::unique_ptr<Durability> durability,
             std::shared_ptr<Publication> publication, const Options& options)
    : placed_(std::move(placed)),
      save_dir_(options.save_dir),
      budget_(std::move(budget)),
      durability_(std::move(durability)),
      committed_(placed_->spec, placed_->ranks(), placed_->clock, std::move(publication)),
      state_(*placed_, committed_, durability_->journal(),
             {.id = options.hooks.draw_history(),
              .lineage = placed_->lineage_of_creation,
              .run = options.values.run,
              .values_follow = options.values.values_follow},
             options.deletion),
      trainers_(state_, {.model = *placed_, .state = committed_, .journal = durability_->journal(), .host = *this}),
      changes_(*placed_, committed_, state_, trainers_, options.hooks.draw_history),
      healing_(*placed_, committed_, state_, changes_) {}

Model::~Model() {
  trainers_.Stop();
  publication().End(absl::StrCat("the daemon has let go of model ", spec().name));
}

absl::Status Model::AllocateShards(const MovePolicy& moves, const InheritedModel* inherited) {
  for (int rank = 0; rank < placed_->ranks(); ++rank) {
    ASSIGN_OR_RETURN(auto shard, Shard::Create(spec(), layout(), topology().GroupRank(rank), world().devices[rank],
                                               {.moves = moves,
                                                .memory = durability_->memory(),
                                                .world_rank = world().first_rank + rank,
                                                .position = PositionOf(inherited, rank),
                                                .publication = committed_.publication.get()}));
    committed_.shards.push_back(std::move(shard));
  }
  return absl::OkStatus();
}

absl::Status Model::MakeSaver(const SaverSource& savers, const InheritedModel* inherited) {
  // A model that exists already is not given up because of its folder.
  const auto trouble =
      inherited == nullptr ? SaverSource::FolderTrouble::kIsRefused : SaverSource::FolderTrouble::kEndsSaves;
  ASSIGN_OR_RETURN(saver_, savers.Make(*this, trouble));
  if (inherited == nullptr) return absl::OkStatus();
  // Begins the saves that fall due with a commit that this server has answered.
  const RecoveryPlan& plan = inherited->plan;
  if (plan.action == RecoveryAction::kAnswerSkip || plan.action == RecoveryAction::kRedoApply) {
    saver_->OnCommitted(*committed_.commits.state().last_answer, plan.prepared->save);
  }
  return absl::OkStatus();
}

void Model::LogBudget() const {
  ShardBytes bytes;
  int64_t muon_bytes = 0;
  for (const auto& shard : committed_.shards) {
    bytes += shard->extents().bytes();
    muon_bytes += shard->muon_bytes();
  }
  const std::vector<int64_t> slots = budget_.SlotsBytesByRank();
  const std::vector<int64_t> scratch = budget_.ScratchBytesByRank();
  placed_->log->Write(LogLevel::kInfo, "model opened",
                      {{"model", spec().name},
                       {"shard_size", absl::StrCat(topology().shard_size())},
                       {"master_bytes", absl::StrCat(bytes.master)},
                       {"moments_bytes", absl::StrCat(absl::c_accumulate(bytes.moments, int64_t{0}))},
                       {"room_bytes", absl::StrCat(bytes.room)},
                       {"gradients_bytes", absl::StrCat(bytes.gradients)},
                       {"planes_bytes", absl::StrCat(bytes.planes)},
                       {"slots_bytes_per_trainer", absl::StrCat(*std::max_element(slots.begin(), slots.end()))},
                       {"scratch_bytes", absl::StrCat(std::accumulate(scratch.begin(), scratch.end(), int64_t{0}))},
                       {"muon_bytes", absl::StrCat(muon_bytes)},
                       {"gradient_sums", budget_.sums_at_commit() ? "at commit" : "at push"}});
  LogProducts();
  if (layout().Imbalance() <= kImbalanceWarning) return;
  placed_->log->Write(LogLevel::kWarning, "shards are uneven: fewer ranks would share the model as well",
                      {{"model", spec().name}, {"busiest_over_fair_share", absl::StrCat(layout().Imbalance())}});
}

// A line for each kind of device.
void Model::LogProducts() const {
  std::set<std::string> products;
  for (const auto& shard : committed_.shards) {
    absl::ReaderMutexLock lock(&shard->mutex());
    products.insert(shard->products());
  }
  for (const std::string& text : products) {
    if (text.empty()) continue;
    placed_->log->Write(LogLevel::kInfo, "matrix products of Muon", {{"model", spec().name}, {"products", text}});
  }
}

absl::Status Model::Close(const absl::Status& why) {
  if (saver_ != nullptr) RETURN_IF_ERROR(saver_->CheckIdle("delete model"));
  RETURN_IF_ERROR(trainers_.Close(why));
  publication().End(why.message());
  // Another model of this name may need the folder while a caller still holds this one.
  if (saver_ != nullptr) saver_->Stop();
  return absl::OkStatus();
}

std::optional<absl::Time> Model::last_commit_time() const {
  const int64_t nanoseconds = last_commit_nanoseconds_;
  return nanoseconds == 0 ? std::nullopt : std::optional(absl::FromUnixNanos(nanoseconds));
}

// --- What epochs need

// The history may be another one.
void Model::OnEpochReady() {
  { const Publication::Writing writing(publication(), Publication::Hold::kBounded); }
  state_.PublishPlanes();
}

void Model::OnSaveOrder(const SaveOrder& order) {
  if (saver_ != nullptr) saver_->OnMessage({.model = spec().name, .what = order});
}

void Model::OnAnswered(const CommitAnswer& answer, bool save) {
  last_commit_nanoseconds_ = absl::ToUnixNanos(absl::Now());
  state_.PublishPlanes();
  if (saver_ != nullptr) saver_->OnCommitted(answer, save);
}

void Model::OnEpochOver() {
  state_.PublishPlanes();
  if (saver_ != nullptr) saver_->OnSettled();
}

absl::Status Model::SendState(int receiver, Engines engines, SteadyTime deadline) {
  return healing_.Send(receiver, engines, deadline);
}

absl::Status Model::ReceiveState(const std::string& history_id, int donor, Engines engines, SteadyTime deadline) {
  return healing_.Receive(history_id, donor, engines, deadline);
}

}  // namespace paramshard::server
