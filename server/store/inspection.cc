#include "server/store/inspection.h"

#include <xxhash.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/base/status_macros.h"
#include "server/store/pinned_state.h"
#include "server/store/plane_statistics.h"

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

// Of the finite ones.
struct Range {
  double norm = 0, min = 0, max = 0;
};

Range RangeOf(const std::vector<float>& values) {
  Range range;
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
  return MeasurePlane(shard.Spec(extent).encoding,
                      {.data = row_wise.data.data(), .scales = row_wise.scales.data(), .amax = row_wise.amax.data()},
                      static_cast<int64_t>(row_wise.scales.size()), master, shard.Spec(extent).columns);
}

void Describe(const PlaneStatistics& statistics, v1::ExtentDescription& description) {
  description.set_master_amax(statistics.amax);
  description.set_master_norm(statistics.Norm());
  description.set_non_finite_count(statistics.non_finite);
  description.set_zero_count(statistics.zeros);
  description.set_saturated_count(statistics.saturated);
  description.set_relative_error(statistics.RelativeError());
  description.set_max_relative_error(statistics.max_relative_error);
  description.set_max_error(statistics.max_error);
  if (statistics.scale_min.has_value()) description.set_scale_min(*statistics.scale_min);
  if (statistics.scale_max.has_value()) description.set_scale_max(*statistics.scale_max);
  for (const auto& [exponent, count] : statistics.scale_counts) {
    v1::ScaleCount& bucket = *description.add_scale_histogram();
    if (exponent.has_value()) bucket.set_exponent(*exponent);
    bucket.set_count(count);
  }
}

// Requires shard.mutex().
absl::StatusOr<v1::ExtentDescription> DescribeExtent(const Shard& shard, const ShardExtent& extent) {
  v1::ExtentDescription description;
  description.set_first_row(extent.rows.begin);
  description.set_rows(extent.rows.size());
  description.set_columns(shard.Spec(extent).columns);
  ASSIGN_OR_RETURN(const PlaneStatistics statistics, MeasureExtent(shard, extent));
  ASSIGN_OR_RETURN(const std::vector<float> exp_avg, shard.Read(extent, StateTensor::kExpAvg));
  ASSIGN_OR_RETURN(const std::vector<float> exp_avg_sq, shard.Read(extent, StateTensor::kExpAvgSq));
  Describe(statistics, description);
  const Range first = RangeOf(exp_avg);
  description.set_exp_avg_norm(first.norm);
  description.set_exp_avg_min(first.min);
  description.set_exp_avg_max(first.max);
  const Range second = RangeOf(exp_avg_sq);
  description.set_exp_avg_sq_norm(second.norm);
  description.set_exp_avg_sq_min(second.min);
  description.set_exp_avg_sq_max(second.max);
  return description;
}

absl::StatusOr<v1::ExtentVerification> VerifyExtent(const Shard& shard, const ShardExtent& extent) {
  v1::ExtentVerification verification;
  verification.set_parameter(shard.Spec(extent).name);
  verification.set_first_row(extent.rows.begin);
  verification.set_rows(extent.rows.size());
  ASSIGN_OR_RETURN(const bool match, shard.PlanesMatch(extent));
  const auto hash = [&](StateTensor tensor) -> absl::StatusOr<std::string> {
    ASSIGN_OR_RETURN(const std::vector<HostView> parts, shard.Stored(extent, tensor));
    return HashOf(parts);
  };
  ASSIGN_OR_RETURN(*verification.mutable_master_hash(), hash(StateTensor::kMaster));
  ASSIGN_OR_RETURN(*verification.mutable_exp_avg_hash(), hash(StateTensor::kExpAvg));
  ASSIGN_OR_RETURN(*verification.mutable_exp_avg_sq_hash(), hash(StateTensor::kExpAvgSq));
  ASSIGN_OR_RETURN(const std::vector<PlaneViews> planes, shard.PlaneBytes(extent));
  verification.set_planes_match(match);
  verification.set_planes_hash(HashOf(planes));
  return verification;
}

v1::ParameterStats StatsOf(const UnitSpec& unit, const ParameterSpec& spec, const PlaneStatistics& statistics) {
  v1::ParameterStats stats;
  stats.set_parameter(spec.name);
  stats.set_unit(unit.name);
  stats.set_format(static_cast<v1::Format>(spec.encoding.format));
  stats.set_element(static_cast<v1::Element>(spec.encoding.element));
  stats.set_element_count(statistics.elements);
  stats.set_relative_error(statistics.RelativeError());
  stats.set_max_relative_error(statistics.max_relative_error);
  stats.set_amax(statistics.amax);
  stats.set_zero_count(statistics.zeros);
  stats.set_saturated_count(statistics.saturated);
  stats.set_non_finite_count(statistics.non_finite);
  return stats;
}

}  // namespace

v1::ModelSummary Summarize(const Model& model) {
  const Model::Status status = model.status();
  const CommitLog::Numbers numbers = model.commit_log().numbers();
  const v1::Model proto = model.ToProto();
  v1::ModelSummary summary;
  summary.set_name(model.spec().name);
  summary.set_parameter_count(proto.parameter_count());
  summary.set_element_count(proto.element_count());
  summary.set_shard_size(proto.shard_size());
  summary.set_world_size(proto.world_size());
  summary.set_version(numbers.version);
  summary.set_commit_number(numbers.commit_number);
  summary.set_skipped_commits(numbers.skipped);
  summary.set_epoch(status.epoch);
  summary.set_running(status.running);
  summary.set_attached_ranks(static_cast<int>(status.seats.size()));
  summary.set_last_end(status.last_end);
  summary.set_engine(status.engine);
  summary.set_imbalance(proto.imbalance());
  summary.set_unusable(std::string(model.usable().message()));
  summary.set_history_id(model.state().numbers.history.ToString());
  return summary;
}

std::vector<v1::Shard> ListShards(const Model& model, int64_t skip, int64_t limit) {
  std::vector<v1::Shard> shards;
  const auto list = [&](size_t rank, const Shard& shard, const ShardExtent& extent) {
    if (skip-- > 0) return absl::OkStatus();
    if (static_cast<int64_t>(shards.size()) == limit) return absl::CancelledError();
    const ParameterSpec& spec = shard.Spec(extent);
    v1::Shard& listed = shards.emplace_back();
    listed.set_parameter(spec.name);
    listed.set_unit(model.spec().units[extent.unit].name);
    listed.set_rank(WorldRank(model, rank));
    listed.set_device(model.world().devices[rank]->Name());
    listed.set_format(static_cast<v1::Format>(spec.encoding.format));
    listed.set_first_row(extent.rows.begin);
    listed.set_rows(extent.rows.size());
    listed.set_columns(spec.columns);
    listed.set_plane_bytes(shard.PlaneSize(extent));
    listed.set_optimizer_bytes(shard.OptimizerSize(extent));
    listed.set_small(model.layout().units()[extent.unit].parameters[extent.parameter].owner.has_value());
    return absl::OkStatus();
  };
  // CANCELLED means that the page is full.
  (void)ForEachExtent(model, list);
  return shards;
}

namespace {

// NOT_FOUND unless the model has the parameter, here or on another daemon.
absl::Status CheckKnown(const Model& model, absl::string_view parameter) {
  for (const UnitSpec& unit : model.spec().units) {
    for (const ParameterSpec& spec : unit.parameters) {
      if (spec.name == parameter) return absl::OkStatus();
    }
  }
  return absl::NotFoundError(
      absl::StrCat("describe ", model.spec().name, ": no parameter is named ", parameter.substr(0, kMaxNameBytes)));
}

// ABORTED when the state does not stay.
absl::StatusOr<v1::DescribeParameterResponse> DescribeOneState(const Model& model, absl::string_view parameter) {
  ASSIGN_OR_RETURN(const PinnedState pinned, PinnedState::Of(model, "describe"));
  v1::DescribeParameterResponse response;
  const auto describe = [&](size_t rank, const Shard& shard, const ShardExtent& extent) -> absl::Status {
    const ParameterSpec& spec = shard.Spec(extent);
    if (spec.name != parameter) return absl::OkStatus();
    response.set_parameter(spec.name);
    response.set_unit(model.spec().units[extent.unit].name);
    response.mutable_shape()->Assign(spec.shape.begin(), spec.shape.end());
    response.set_format(static_cast<v1::Format>(spec.encoding.format));
    response.set_element(static_cast<v1::Element>(spec.encoding.element));
    response.set_gradient_type(static_cast<v1::GradientType>(spec.gradient_type));
    response.set_exp_avg_type(static_cast<v1::MomentType>(spec.exp_avg_type));
    response.set_exp_avg_sq_type(static_cast<v1::MomentType>(spec.exp_avg_sq_type));
    response.set_master_type(static_cast<v1::MasterType>(spec.master_type));
    response.set_group(spec.group);
    response.set_version(pinned.numbers().version);
    absl::ReaderMutexLock lock(&shard.mutex());
    RETURN_IF_ERROR(pinned.Check(shard));
    ASSIGN_OR_RETURN(v1::ExtentDescription description, DescribeExtent(shard, extent));
    response.set_step(extent.step);
    if (EncodesAfterAmax(spec.encoding.format)) response.set_amax(extent.scaling.amax);
    if (spec.encoding.format == Format::kFP8TensorDelayed) response.set_scale(extent.scaling.scale);
    description.set_rank(WorldRank(model, rank));
    description.set_device(model.world().devices[rank]->Name());
    *response.add_extents() = std::move(description);
    return absl::OkStatus();
  };
  RETURN_IF_ERROR(ForEachExtent(model, describe));
  return response;
}

}  // namespace

absl::StatusOr<v1::DescribeParameterResponse> DescribeParameter(const Model& model, absl::string_view parameter) {
  RETURN_IF_ERROR(CheckKnown(model, parameter));
  for (int tries = 1;; ++tries) {
    absl::StatusOr<v1::DescribeParameterResponse> described = DescribeOneState(model, parameter);
    if (!absl::IsAborted(described.status()) || tries == kDescribeTries) return described;
  }
}

absl::StatusOr<v1::GetParameterStatsResponse> ListParameterStats(const Model& model, int64_t limit,
                                                                 absl::FunctionRef<bool()> is_cancelled) {
  // By unit and parameter: the order of the model.
  std::map<std::pair<int, int>, PlaneStatistics> statistics;
  const auto measure = [&](size_t, const Shard& shard, const ShardExtent& extent) -> absl::Status {
    if (is_cancelled()) return absl::CancelledError("the caller has gone");
    absl::ReaderMutexLock lock(&shard.mutex());
    ASSIGN_OR_RETURN(const PlaneStatistics measured, MeasureExtent(shard, extent));
    statistics[{extent.unit, extent.parameter}] += measured;
    return absl::OkStatus();
  };
  RETURN_IF_ERROR(ForEachExtent(model, measure));
  std::vector<v1::ParameterStats> ranked;
  for (const auto& [key, measured] : statistics) {
    const UnitSpec& unit = model.spec().units[key.first];
    ranked.push_back(StatsOf(unit, unit.parameters[key.second], measured));
  }
  std::stable_sort(ranked.begin(), ranked.end(),
                   [](const auto& a, const auto& b) { return a.relative_error() > b.relative_error(); });
  if (static_cast<int64_t>(ranked.size()) > limit) ranked.resize(limit);
  v1::GetParameterStatsResponse response;
  response.set_parameter_count(static_cast<int64_t>(statistics.size()));
  response.mutable_parameters()->Assign(ranked.begin(), ranked.end());
  return response;
}

absl::StatusOr<v1::VerifySummary> VerifyModel(const Model& model,
                                              absl::FunctionRef<absl::Status(const v1::ExtentVerification&)> sink) {
  ASSIGN_OR_RETURN(const PinnedState pinned, PinnedState::Of(model, "verify"));
  v1::VerifySummary summary;
  summary.set_version(pinned.numbers().version);
  summary.set_commit_number(pinned.numbers().commit_number);
  std::string hashes;
  const auto verify = [&](size_t rank, const Shard& shard, const ShardExtent& extent) -> absl::Status {
    v1::ExtentVerification verification;
    {
      absl::ReaderMutexLock lock(&shard.mutex());
      RETURN_IF_ERROR(pinned.Check(shard));
      ASSIGN_OR_RETURN(verification, VerifyExtent(shard, extent));
    }
    verification.set_rank(WorldRank(model, rank));
    summary.set_extent_count(summary.extent_count() + 1);
    if (!verification.planes_match()) summary.set_mismatch_count(summary.mismatch_count() + 1);
    absl::StrAppend(&hashes, verification.master_hash(), verification.exp_avg_hash(), verification.exp_avg_sq_hash());
    return sink(verification);
  };
  RETURN_IF_ERROR(ForEachExtent(model, verify));
  std::vector<HostView> all;
  all.emplace_back(absl::MakeConstSpan(reinterpret_cast<const uint8_t*>(hashes.data()), hashes.size()));
  summary.set_state_hash(HashOf(all));
  return summary;
}

std::vector<v1::BrokenDevice> ListBrokenDevices(const World& world) {
  std::vector<v1::BrokenDevice> broken;
  for (const ComputeDevice* device : world.devices) {
    const absl::Status health = device->health().status();
    if (health.ok()) continue;
    v1::BrokenDevice& listed = broken.emplace_back();
    listed.set_device(device->Name());
    listed.set_reason(std::string(health.message()));
  }
  return broken;
}

std::vector<v1::MemoryUse> CountMemory(const Model& model) {
  std::vector<v1::MemoryUse> uses;
  const auto add_use = [&](absl::string_view device, absl::string_view memory_class, int64_t size_bytes) {
    if (size_bytes == 0) return;
    v1::MemoryUse& use = uses.emplace_back();
    use.set_device(std::string(device));
    use.set_model(model.spec().name);
    use.set_memory_class(std::string(memory_class));
    use.set_size_bytes(size_bytes);
  };
  const Model::Status status = model.status();
  for (size_t rank = 0; rank < model.shards().size(); ++rank) {
    const std::string device = model.world().devices[rank]->Name();
    const auto add = [&](absl::string_view memory_class, int64_t size_bytes) {
      add_use(device, memory_class, size_bytes);
    };
    const ShardBytes bytes = model.shards()[rank]->bytes();
    add("master", bytes.master);
    add("exp_avg", bytes.exp_avg);
    add("exp_avg_sq", bytes.exp_avg_sq);
    add("gradients", bytes.gradients);
    add("planes", bytes.planes);
    add("slots", status.slots_bytes);
    add("words", status.words_bytes);
    add("scratch", status.scratch_bytes.empty() ? 0 : status.scratch_bytes[rank]);
  }
  add_use(/*device=*/"", "histories", model.history_bytes());
  return uses;
}

}  // namespace paramshard::server
