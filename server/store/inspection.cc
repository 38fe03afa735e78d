#include "server/store/inspection.h"

#include <xxhash.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/base/status_macros.h"
#include "proto/model/names.h"
#include "server/store/pinned_state.h"

namespace paramshard::server {
namespace {

// A training commits while a parameter is read: the next try mostly falls between two commits.
constexpr int kDescribeTries = 5;

std::string HashOf(const std::vector<HostView>& views) {
  XXH3_state_t* state = XXH3_createState();
  XXH3_128bits_reset(state);
  for (const HostView& view : views) XXH3_128bits_update(state, view.data(), view.size());
  const XXH128_hash_t hash = XXH3_128bits_digest(state);
  XXH3_freeState(state);
  return absl::StrFormat("%016x%016x", hash.high64, hash.low64);
}

std::string HashOf(const std::vector<PlaneViews>& planes) {
  std::vector<HostView> views;
  for (const PlaneViews& plane : planes) {
    for (const HostView* view : {&plane.data, &plane.scales, &plane.amax}) views.emplace_back(view->bytes());
  }
  return HashOf(views);
}

int WorldRank(const Model& model, size_t local) { return model.world().first_rank + static_cast<int>(local); }

// Every extent of this daemon in (parameter, rank) order.
template <typename Visit>
absl::Status ForEachExtent(const Model& model, Visit visit) {
  const auto& units = model.spec().units;
  for (int unit = 0; unit < static_cast<int>(units.size()); ++unit) {
    for (int parameter = 0; parameter < static_cast<int>(units[unit].parameters.size()); ++parameter) {
      for (size_t rank = 0; rank < model.shards().size(); ++rank) {
        const Shard& shard = *model.shards()[rank];
        const ShardExtent* extent = shard.Find(unit, parameter);
        if (extent != nullptr) RETURN_IF_ERROR(visit(rank, shard, *extent));
      }
    }
  }
  return absl::OkStatus();
}

ValueRange RangeOf(const std::vector<float>& values) {
  ValueRange range;
  double sum = 0;
  bool is_first = true;
  for (double value : values) {
    if (!std::isfinite(value)) continue;
    sum += value * value;
    range.min = is_first ? value : std::min(range.min, value);
    range.max = is_first ? value : std::max(range.max, value);
    is_first = false;
  }
  range.norm = std::sqrt(sum);
  return range;
}

// Requires shard.mutex().
absl::StatusOr<PlaneStatistics> MeasureExtent(const Shard& shard, const ShardExtent& extent) {
  ASSIGN_OR_RETURN(const std::vector<float> master, shard.Read(extent, StateTensor::kMaster));
  ASSIGN_OR_RETURN(const std::vector<PlaneViews> planes, shard.PlaneBytes(extent));
  const PlaneViews& row_wise = planes.front();
  return MeasurePlane(EncodingOf(shard.Spec(extent).encoding),
                      {.data = row_wise.data.data(), .scales = row_wise.scales.data(), .amax = row_wise.amax.data()},
                      static_cast<int64_t>(row_wise.scales.size()), master, shard.Spec(extent).columns());
}

// Requires shard.mutex().
absl::StatusOr<ExtentDescription> DescribeExtent(const Shard& shard, const ShardExtent& extent) {
  ExtentDescription description;
  description.rows = extent.rows;
  ASSIGN_OR_RETURN(description.planes, MeasureExtent(shard, extent));
  ASSIGN_OR_RETURN(const std::vector<float> exp_avg, shard.Read(extent, StateTensor::kExpAvg));
  ASSIGN_OR_RETURN(const std::vector<float> exp_avg_sq, shard.Read(extent, StateTensor::kExpAvgSq));
  description.exp_avg = RangeOf(exp_avg);
  description.exp_avg_sq = RangeOf(exp_avg_sq);
  return description;
}

absl::StatusOr<ExtentVerification> VerifyExtent(const Shard& shard, const ShardExtent& extent)
    ABSL_SHARED_LOCKS_REQUIRED(shard.mutex()) {
  ExtentVerification verification;
  verification.parameter = shard.Spec(extent).name;
  verification.rows = extent.rows;
  ASSIGN_OR_RETURN(verification.planes_match, shard.PlanesMatch(extent));
  const auto hash = [&](StateTensor tensor) -> absl::StatusOr<std::string> {
    ASSIGN_OR_RETURN(const std::vector<HostView> parts, shard.Stored(extent, tensor));
    return HashOf(parts);
  };
  ASSIGN_OR_RETURN(verification.master_hash, hash(StateTensor::kMaster));
  ASSIGN_OR_RETURN(verification.exp_avg_hash, hash(StateTensor::kExpAvg));
  ASSIGN_OR_RETURN(verification.exp_avg_sq_hash, hash(StateTensor::kExpAvgSq));
  ASSIGN_OR_RETURN(const std::vector<PlaneViews> planes, shard.PlaneBytes(extent));
  verification.planes_hash = HashOf(planes);
  return verification;
}

// NOT_FOUND unless the model has the parameter, here or on another daemon.
absl::Status CheckKnown(const Model& model, absl::string_view parameter) {
  for (const UnitSpec& unit : model.spec().units) {
    for (const ParameterSpec& spec : unit.parameters) {
      if (spec.name == parameter) return absl::OkStatus();
    }
  }
  return UnknownParameter(absl::StrCat("describe ", model.spec().name), parameter);
}

// ABORTED when the state does not stay.
absl::StatusOr<ParameterDescription> DescribeOneState(const Model& model, absl::string_view parameter) {
  ASSIGN_OR_RETURN(const PinnedState pinned, PinnedState::Of(model, "describe"));
  ParameterDescription description;
  description.version = pinned.numbers().version;
  const auto describe = [&](size_t rank, const Shard& shard, const ShardExtent& extent) -> absl::Status {
    const ParameterSpec& spec = shard.Spec(extent);
    if (spec.name != parameter) return absl::OkStatus();
    absl::ReaderMutexLock lock(&shard.mutex());
    RETURN_IF_ERROR(pinned.Check(shard));
    ASSIGN_OR_RETURN(ExtentDescription described, DescribeExtent(shard, extent));
    described.rank = WorldRank(model, rank);
    described.device = model.world().devices[rank]->Name();
    description.extents.push_back(std::move(described));
    description.parameter = &spec;
    description.unit = &model.spec().units[extent.unit];
    description.step = shard.step(extent);
    if (EncodesAfterAmax(EncodingOf(spec.encoding).format)) description.amax = shard.scaling(extent).amax;
    if (EncodingOf(spec.encoding).format == Format::kFP8TensorDelayed) description.scale = shard.scaling(extent).scale;
    return absl::OkStatus();
  };
  RETURN_IF_ERROR(ForEachExtent(model, describe));
  return description;
}

}  // namespace

ModelSummary Summarize(const Model& model) {
  const Model::Activity activity = model.activity();
  const absl::Status usable = model.usable();
  const Model::State state = model.state();
  ModelSummary summary{.name = model.spec().name,
                       .shard_size = model.layout().ranks(),
                       .world_size = model.world().world_size,
                       .numbers = state.numbers,
                       .lineage = state.lineage,
                       .skipped_commits = model.commit_log().numbers().skipped,
                       .epoch = activity.epoch,
                       .running = activity.running,
                       .attached_ranks = static_cast<int>(activity.trainers.size()),
                       .last_end = activity.last_end,
                       .engine = activity.engine,
                       .imbalance = model.layout().Imbalance(),
                       .unusable = std::string(usable.ok() ? model.doubt().message() : usable.message())};
  for (const UnitSpec& unit : model.spec().units) {
    summary.parameter_count += static_cast<int64_t>(unit.parameters.size());
    for (const ParameterSpec& parameter : unit.parameters) {
      summary.element_count += parameter.rows() * parameter.columns();
    }
  }
  return summary;
}

std::vector<ShardListing> ListShards(const Model& model, int64_t skip, int64_t limit) {
  std::vector<ShardListing> shards;
  const auto list = [&](size_t rank, const Shard& shard, const ShardExtent& extent) {
    if (skip-- > 0) return absl::OkStatus();
    if (static_cast<int64_t>(shards.size()) == limit) return absl::CancelledError();
    const UnitLayout& layout = model.layout().units()[extent.unit];
    shards.push_back({.parameter = &shard.Spec(extent),
                      .unit = &model.spec().units[extent.unit],
                      .rank = WorldRank(model, rank),
                      .device = model.world().devices[rank]->Name(),
                      .rows = extent.rows,
                      .plane_bytes = shard.PlaneSize(extent),
                      .optimizer_bytes = shard.OptimizerSize(extent),
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
  // They are in the order of the model, by unit and parameter.
  std::map<std::pair<int, int>, PlaneStatistics> statistics;
  const auto measure = [&](size_t, const Shard& shard, const ShardExtent& extent) -> absl::Status {
    if (is_cancelled()) return absl::CancelledError("the caller has gone");
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
  std::string hashes;
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
    absl::StrAppend(&hashes, verification.master_hash, verification.exp_avg_hash, verification.exp_avg_sq_hash);
    if (!shard.Spec(extent).master_type.has_value()) absl::StrAppend(&hashes, verification.planes_hash);
    return sink(verification);
  };
  RETURN_IF_ERROR(ForEachExtent(model, verify));
  std::vector<HostView> all;
  all.emplace_back(absl::MakeConstSpan(reinterpret_cast<const uint8_t*>(hashes.data()), hashes.size()));
  summary.state_hash = HashOf(all);
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
  const Model::Activity activity = model.activity();
  for (size_t rank = 0; rank < model.shards().size(); ++rank) {
    const std::string device = model.world().devices[rank]->Name();
    const ShardBytes bytes = model.shards()[rank]->bytes();
    add_use(device, "master", bytes.master);
    add_use(device, "exp_avg", bytes.exp_avg);
    add_use(device, "exp_avg_sq", bytes.exp_avg_sq);
    add_use(device, "gradients", bytes.gradients);
    add_use(device, "planes", bytes.planes);
    add_use(device, "slots", activity.slots_bytes);
    add_use(device, "words", activity.words_bytes);
    add_use(device, "scratch", activity.scratch_bytes.empty() ? 0 : activity.scratch_bytes[rank]);
  }
  add_use(/*device=*/"", "histories", model.history_bytes());
  return uses;
}

}  // namespace paramshard::server
