#include "server/models/inspection.h"

#include <xxhash.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/model/names.h"
#include "kernels/base/status_macros.h"
#include "kernels/formats/format.h"
#include "server/models/pinned_state.h"
#include "server/state/plane_check.h"

namespace paramshard::server {
namespace {

// Number of tries to read a parameter while a training commits: the next try mostly falls between two commits.
constexpr int kDescribeTries = 5;

// Computes the XXH3-128 of bytes that come in pieces.
class Hash {
 public:
  Hash() : state_(XXH3_createState()) { XXH3_128bits_reset(state_); }
  Hash(const Hash&) = delete;
  Hash& operator=(const Hash&) = delete;
  ~Hash() { XXH3_freeState(state_); }

  void Add(absl::string_view bytes) { XXH3_128bits_update(state_, bytes.data(), bytes.size()); }
  void Add(const HostView& view) { XXH3_128bits_update(state_, view.data(), view.size()); }
  std::string Text() const {
    const XXH128_hash_t hash = XXH3_128bits_digest(state_);
    return absl::StrFormat("%016x%016x", hash.high64, hash.low64);
  }

 private:
  XXH3_state_t* const state_;
};

int WorldRank(const Model& model, size_t local) { return model.world().first_rank + static_cast<int>(local); }

// Visits every extent of this daemon in (parameter, rank) order.
template <typename Visit>
absl::Status ForEachExtent(const Model& model, Visit visit) {
  const auto& units = model.spec().units;
  for (int unit = 0; unit < static_cast<int>(units.size()); ++unit) {
    for (int parameter = 0; parameter < static_cast<int>(units[unit].parameters.size()); ++parameter) {
      for (size_t rank = 0; rank < model.committed().shards.size(); ++rank) {
        const Shard& shard = *model.committed().shards[rank];
        const ShardExtent* extent = shard.extents().Find(unit, parameter);
        if (extent != nullptr) RETURN_IF_ERROR(visit(rank, shard, *extent));
      }
    }
  }
  return absl::OkStatus();
}

// Requires shard.mutex(), like the functions below.
absl::StatusOr<ValueRange> RangeOf(const Shard& shard, const ShardExtent& extent, StateTensor tensor) {
  ValueRange range;
  double sum = 0;
  bool is_first = true;
  for (const ExtentPart& part : shard.extents().Parts(extent)) {
    ASSIGN_OR_RETURN(const std::vector<float> values, shard.arrays().Read(extent, tensor, part));
    for (double value : values) {
      if (!std::isfinite(value)) continue;
      sum += value * value;
      range.min = is_first ? value : std::min(range.min, value);
      range.max = is_first ? value : std::max(range.max, value);
      is_first = false;
    }
  }
  range.norm = std::sqrt(sum);
  return range;
}

absl::StatusOr<PlaneStatistics> MeasureExtent(const Shard& shard, const ShardExtent& extent) {
  const Encoding encoding = EncodingOf(shard.extents().Spec(extent).encoding);
  PlaneStatistics statistics;
  for (const ExtentPart& part : shard.extents().Parts(extent)) {
    ASSIGN_OR_RETURN(const std::vector<float> master, shard.arrays().Read(extent, StateTensor::kMaster, part));
    ASSIGN_OR_RETURN(const std::vector<PlaneViews> planes, PlaneBytes(shard.memory(), extent, part.rows));
    const PlaneViews& row_wise = planes.front();
    // A scale of the whole tensor is counted once.
    const bool has_scales =
        part.rows.begin == extent.rows.begin || TraitsOf(encoding.format).row_wise_block.rows != kUnbounded;
    statistics += MeasurePlane(
        encoding, {.data = row_wise.data.data(), .scales = row_wise.scales.data(), .amax = row_wise.amax.data()},
        has_scales ? static_cast<int64_t>(row_wise.scales.size()) : 0, master, part.columns);
  }
  return statistics;
}

absl::StatusOr<ExtentDescription> DescribeExtent(const Shard& shard, const ShardExtent& extent) {
  ExtentDescription description;
  description.rows = extent.rows;
  ASSIGN_OR_RETURN(description.planes, MeasureExtent(shard, extent));
  for (const MomentTraits& moment : kMomentKinds) {
    ASSIGN_OR_RETURN(description.moments[moment.kind], RangeOf(shard, extent, TensorOf(moment.kind)));
  }
  return description;
}

// Returns the hash of the tensor's stored arrays, one after the other.
absl::StatusOr<std::string> HashOf(const Shard& shard, const ShardExtent& extent, StateTensor tensor) {
  Hash hash;
  for (const TensorForm form : {TensorForm::kElements, TensorForm::kRest}) {
    if (RowOf(shard.extents().Spec(extent), tensor, form).elements == 0) continue;
    for (const ExtentPart& part : shard.extents().Parts(extent)) {
      ASSIGN_OR_RETURN(const HostView array, shard.arrays().StoredArray(extent, tensor, form, part));
      hash.Add(array);
    }
  }
  return hash.Text();
}

absl::StatusOr<ExtentVerification> VerifyExtent(const Shard& shard, const ShardExtent& extent)
    ABSL_SHARED_LOCKS_REQUIRED(shard.mutex()) {
  ExtentVerification verification;
  verification.parameter = shard.extents().Spec(extent).name;
  verification.rows = extent.rows;
  ASSIGN_OR_RETURN(verification.planes_match, PlanesMatchMaster(shard, extent));
  ASSIGN_OR_RETURN(verification.master_hash, HashOf(shard, extent, StateTensor::kMaster));
  for (const MomentTraits& moment : kMomentKinds) {
    ASSIGN_OR_RETURN(verification.moment_hashes[moment.kind], HashOf(shard, extent, TensorOf(moment.kind)));
  }
  Hash planes;
  RETURN_IF_ERROR(ReadPlanes(shard.memory(), extent, [&](const HostView& bytes) { planes.Add(bytes); }));
  verification.planes_hash = planes.Text();
  return verification;
}

// Returns NOT_FOUND unless the model has the parameter, here or on another daemon.
absl::Status CheckKnown(const Model& model, absl::string_view parameter) {
  for (const UnitSpec& unit : model.spec().units) {
    for (const ParameterSpec& spec : unit.parameters) {
      if (spec.name == parameter) return absl::OkStatus();
    }
  }
  return UnknownParameter(absl::StrCat("describe ", model.spec().name), parameter);
}

// Returns ABORTED if the state changes meanwhile.
absl::StatusOr<ParameterDescription> DescribeOneState(const Model& model, absl::string_view parameter) {
  ASSIGN_OR_RETURN(const PinnedState pinned, PinnedState::Of(model, "describe"));
  ParameterDescription description;
  description.version = pinned.numbers().version;
  const auto describe = [&](size_t rank, const Shard& shard, const ShardExtent& extent) -> absl::Status {
    const ParameterSpec& spec = shard.extents().Spec(extent);
    if (spec.name != parameter) return absl::OkStatus();
    absl::ReaderMutexLock lock(&shard.mutex());
    RETURN_IF_ERROR(pinned.Check(shard));
    ASSIGN_OR_RETURN(ExtentDescription described, DescribeExtent(shard, extent));
    described.rank = WorldRank(model, rank);
    described.device = model.world().devices[rank]->Name();
    description.extents.push_back(std::move(described));
    description.parameter = &spec;
    description.unit = &model.spec().units[extent.unit];
    description.step = shard.numbers(extent).step;
    if (EncodesAfterAmax(EncodingOf(spec.encoding).format)) description.amax = shard.numbers(extent).scaling.amax;
    if (EncodingOf(spec.encoding).format == Format::kFP8TensorDelayed)
      description.scale = shard.numbers(extent).scaling.scale;
    return absl::OkStatus();
  };
  RETURN_IF_ERROR(ForEachExtent(model, describe));
  return description;
}

// Returns why trainers cannot attach. For a restore, its progress says more than that it goes on.
std::string UnusableText(const Model& model, const ModelActivity& activity) {
  if (const absl::Status usable = model.state().usable(); !usable.ok()) return std::string(usable.message());
  if (const absl::Status doubt = model.state().doubt(); !doubt.ok()) return std::string(doubt.message());
  return activity.restore.has_value() ? std::string() : std::string(model.state().unfinished().message());
}

void CountParameters(const ModelSpec& spec, ModelSummary& summary) {
  for (const UnitSpec& unit : spec.units) {
    summary.parameter_count += static_cast<int64_t>(unit.parameters.size());
    for (const ParameterSpec& parameter : unit.parameters) {
      summary.element_count += parameter.rows() * parameter.columns();
    }
  }
}

}  // namespace

ModelSummary Summarize(const PublishedPlanes& planes) {
  ModelSummary summary{.name = planes.layout->spec().name,
                       .shard_size = planes.layout->ranks(),
                       .world_size = planes.layout->ranks(),
                       .imbalance = planes.layout->Imbalance()};
  CountParameters(planes.layout->spec(), summary);
  return summary;
}

ModelSummary Summarize(const Model& model) {
  const ModelActivity activity = model.trainers().activity();
  const StateSnapshot state = model.state().snapshot();
  ModelSummary summary{.name = model.spec().name,
                       .shard_size = model.layout().ranks(),
                       .world_size = model.world().world_size,
                       .numbers = state.numbers,
                       .lineage = state.lineage,
                       .origin = model.state().origin(),
                       .skipped_commits = model.committed().commits.numbers().skipped,
                       .epoch = activity.epoch,
                       .running = activity.running,
                       .attached_ranks = static_cast<int>(activity.trainers.size()),
                       .last_end = activity.last_end,
                       .engine = activity.engine,
                       .imbalance = model.layout().Imbalance(),
                       .unusable = UnusableText(model, activity),
                       .restore = activity.restore,
                       .rollback = activity.rollback,
                       .active_nodes = activity.active_nodes};
  CountParameters(model.spec(), summary);
  return summary;
}

std::vector<ShardListing> ListShards(const Model& model, int64_t skip, int64_t limit) {
  std::vector<ShardListing> shards;
  const auto list = [&](size_t rank, const Shard& shard, const ShardExtent& extent) {
    if (skip-- > 0) return absl::OkStatus();
    if (static_cast<int64_t>(shards.size()) == limit) return absl::CancelledError();
    const UnitLayout& layout = model.layout().units()[extent.unit];
    shards.push_back({.parameter = &shard.extents().Spec(extent),
                      .unit = &model.spec().units[extent.unit],
                      .rank = WorldRank(model, rank),
                      .device = model.world().devices[rank]->Name(),
                      .rows = extent.rows,
                      .plane_bytes = PlaneSize(shard.memory(), extent),
                      .optimizer_bytes = shard.extents().OptimizerSize(extent),
                      .small = layout.parameters[extent.parameter].owner.has_value()});
    return absl::OkStatus();
  };
  // CANCELLED means that the page is full.
  (void)ForEachExtent(model, list);
  return shards;
}

absl::StatusOr<ParameterDescription> DescribeParameter(const Model& model, absl::string_view parameter) {
  RETURN_IF_ERROR(CheckKnown(model, parameter));
  for (int tries = 1;; ++tries) {
    absl::StatusOr<ParameterDescription> described = DescribeOneState(model, parameter);
    if (!absl::IsAborted(described.status()) || tries == kDescribeTries) return described;
  }
}

absl::StatusOr<RankedStats> ListParameterStats(const Model& model, int64_t limit,
                                               absl::FunctionRef<bool()> is_cancelled) {
  // Ordered like the model, by unit and parameter.
  std::map<std::pair<int, int>, PlaneStatistics> statistics;
  const auto measure = [&](size_t, const Shard& shard, const ShardExtent& extent) -> absl::Status {
    if (is_cancelled()) return absl::CancelledError("the caller disconnected");
    absl::ReaderMutexLock lock(&shard.mutex());
    ASSIGN_OR_RETURN(const PlaneStatistics measured, MeasureExtent(shard, extent));
    statistics[{extent.unit, extent.parameter}] += measured;
    return absl::OkStatus();
  };
  RETURN_IF_ERROR(ForEachExtent(model, measure));
  RankedStats ranked{.parameters = {}, .parameter_count = static_cast<int64_t>(statistics.size())};
  for (const auto& [key, measured] : statistics) {
    const UnitSpec& unit = model.spec().units[key.first];
    ranked.parameters.push_back({.parameter = &unit.parameters[key.second], .unit = &unit, .planes = measured});
  }
  std::stable_sort(ranked.parameters.begin(), ranked.parameters.end(),
                   [](const auto& a, const auto& b) { return a.planes.RelativeError() > b.planes.RelativeError(); });
  if (static_cast<int64_t>(ranked.parameters.size()) > limit) ranked.parameters.resize(limit);
  return ranked;
}

absl::StatusOr<VerifySummary> VerifyModel(const Model& model,
                                          absl::FunctionRef<absl::Status(const ExtentVerification&)> sink) {
  ASSIGN_OR_RETURN(const PinnedState pinned, PinnedState::Of(model, "verify"));
  VerifySummary summary;
  summary.numbers = pinned.numbers();
  Hash hashes;
  const auto verify = [&](size_t rank, const Shard& shard, const ShardExtent& extent) -> absl::Status {
    ExtentVerification verification;
    {
      absl::ReaderMutexLock lock(&shard.mutex());
      RETURN_IF_ERROR(pinned.Check(shard));
      ASSIGN_OR_RETURN(verification, VerifyExtent(shard, extent));
    }
    verification.rank = WorldRank(model, rank);
    ++summary.extent_count;
    if (!verification.planes_match) ++summary.mismatch_count;
    hashes.Add(verification.master_hash);
    for (const std::string& hash : verification.moment_hashes) hashes.Add(hash);
    if (!shard.extents().HasMaster(extent)) hashes.Add(verification.planes_hash);
    return sink(verification);
  };
  RETURN_IF_ERROR(ForEachExtent(model, verify));
  summary.state_hash = hashes.Text();
  return summary;
}

std::vector<BrokenDevice> ListBrokenDevices(const World& world) {
  std::vector<BrokenDevice> broken;
  for (const ComputeDevice* device : world.devices) {
    const absl::Status health = device->health().status();
    if (!health.ok()) broken.push_back({device->Name(), std::string(health.message())});
  }
  return broken;
}

std::vector<MemoryUse> CountMemory(const Model& model) {
  std::vector<MemoryUse> uses;
  const auto add_use = [&](const std::string& device, const std::string& memory_class, int64_t size_bytes) {
    if (size_bytes > 0) uses.push_back({device, memory_class, size_bytes});
  };
  const ModelActivity activity = model.trainers().activity();
  for (size_t rank = 0; rank < model.committed().shards.size(); ++rank) {
    const std::string device = model.world().devices[rank]->Name();
    const ShardBytes bytes = model.committed().shards[rank]->extents().bytes();
    add_use(device, "master", bytes.master);
    for (const MomentTraits& moment : kMomentKinds) {
      add_use(device, MomentNames(model.spec().groups, moment.kind), bytes.moments[moment.kind]);
    }
    add_use(device, "gradients", bytes.gradients);
    add_use(device, "keeper_scratch", bytes.room);
    add_use(device, "muon_scratch", model.committed().shards[rank]->muon_bytes());
    add_use(device, "planes", bytes.planes);
    if (!activity.slots_bytes.empty()) {
      const Layout& layout = model.layout();
      const int64_t gather_slots = layout.gradient_slot_offsets().front();
      add_use(device, "gather_slots", gather_slots);
      add_use(device, "gradient_slots", layout.slots_bytes() - gather_slots);
      add_use(device, "landing_area", activity.slots_bytes[rank] - layout.slots_bytes());
    }
    add_use(device, "control_page", activity.words_bytes);
    add_use(device, "scratch", activity.scratch_bytes.empty() ? 0 : activity.scratch_bytes[rank]);
  }
  add_use(/*device=*/"", "histories", model.committed().book.history_bytes());
  add_use(/*device=*/"", "save_buffers", model.image_bytes());
  add_use(/*device=*/"", "plane_copies", model.committed().plane_copy_bytes());
  return uses;
}

}  // namespace paramshard::server
