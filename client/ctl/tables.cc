#include "client/ctl/tables.h"

#include <map>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/ctl/cell.h"
#include "client/ctl/table.h"
#include "client/ctl/terminal_text.h"

namespace paramshard::ctl {
namespace {

Column Left(std::string title) { return {std::move(title), Align::kLeft}; }
Column Right(std::string title) { return {std::move(title), Align::kRight}; }

std::string FormatCell(v1::Format format) { return EnumCell(v1::Format_Name(format), "FORMAT_"); }
std::string MomentCell(v1::MomentType type) { return EnumCell(v1::MomentType_Name(type), "MOMENT_TYPE_"); }

std::string ScaleCell(bool present, double scale) { return present ? RealCell(scale) : "-"; }

// Of `count` things; "-" of none.
std::string ShareCell(int64_t part, int64_t count) {
  return count == 0 ? "-"
                    : absl::StrCat(RealCell(100.0 * static_cast<double>(part) / static_cast<double>(count)), " %");
}

// A heading of a thing's properties, one on a line.
class Properties {
 public:
  void Add(std::string name, std::string value) { table_.AddRow({std::move(name), std::move(value)}); }
  // Without the line of titles, which are empty.
  std::string Text() const { return table_.Text().substr(1); }

 private:
  Table table_{{Left(""), Left("")}};
};

// After whatever was asked for: an operator must not miss it.
template <typename Response>
std::string BrokenDevicesText(const Response& response) {
  std::string text;
  for (const v1::BrokenDevice& broken : response.broken_devices()) {
    absl::StrAppend(&text, "BROKEN ", TerminalText(broken.device()), ": ", TerminalText(TextCell(broken.reason())),
                    "\n");
  }
  return text;
}

std::string PlanesText(const v1::DescribeParameterResponse& response) {
  Table table({Right("RANK"), Left("DEVICE"), Right("FIRST ROW"), Right("ROWS"), Right("AMAX"), Right("NORM"),
               Right("NON-FINITE"), Right("ZERO"), Right("SATURATED"), Right("SCALE MIN"), Right("SCALE MAX"),
               Right("RELATIVE ERROR"), Right("MAX RELATIVE"), Right("MAX ERROR")});
  for (const v1::ExtentDescription& extent : response.extents()) {
    const int64_t elements = extent.rows() * extent.columns();
    table.AddRow({absl::StrCat(extent.rank()), extent.device(), absl::StrCat(extent.first_row()),
                  absl::StrCat(extent.rows()), RealCell(extent.master_amax()), RealCell(extent.master_norm()),
                  absl::StrCat(extent.non_finite_count()), ShareCell(extent.zero_count(), elements),
                  ShareCell(extent.saturated_count(), elements), ScaleCell(extent.has_scale_min(), extent.scale_min()),
                  ScaleCell(extent.has_scale_max(), extent.scale_max()), RealCell(extent.relative_error()),
                  RealCell(extent.max_relative_error()), RealCell(extent.max_error())});
  }
  return table.Text();
}

std::string MomentsText(const v1::DescribeParameterResponse& response) {
  Table table({Right("RANK"), Right("EXP_AVG NORM"), Right("MIN"), Right("MAX"), Right("EXP_AVG_SQ NORM"), Right("MIN"),
               Right("MAX")});
  for (const v1::ExtentDescription& extent : response.extents()) {
    table.AddRow({absl::StrCat(extent.rank()), RealCell(extent.exp_avg_norm()), RealCell(extent.exp_avg_min()),
                  RealCell(extent.exp_avg_max()), RealCell(extent.exp_avg_sq_norm()), RealCell(extent.exp_avg_sq_min()),
                  RealCell(extent.exp_avg_sq_max())});
  }
  return table.Text();
}

// Of all extents; empty where the format has no scales.
std::string ScalesText(const v1::DescribeParameterResponse& response) {
  std::map<std::optional<int>, int64_t> counts;
  int64_t all = 0;
  for (const v1::ExtentDescription& extent : response.extents()) {
    for (const v1::ScaleCount& bucket : extent.scale_histogram()) {
      counts[bucket.has_exponent() ? std::optional(bucket.exponent()) : std::nullopt] += bucket.count();
      all += bucket.count();
    }
  }
  if (counts.empty()) return "";
  Table table({Right("SCALES FROM"), Right("COUNT"), Right("SHARE")});
  for (const auto& [exponent, count] : counts) {
    table.AddRow(
        {exponent.has_value() ? absl::StrCat("2^", *exponent) : "0, NaN", absl::StrCat(count), ShareCell(count, all)});
  }
  return absl::StrCat("\n", table.Text());
}

std::string ExtentDescriptionsText(const v1::DescribeParameterResponse& response) {
  if (response.extents().empty()) return "no extents on this daemon\n";
  return absl::StrCat(PlanesText(response), "\n", MomentsText(response), ScalesText(response));
}

}  // namespace

std::string ModelsText(const v1::ListModelsResponse& response) {
  if (response.models().empty()) return "no models\n";
  Table table({Left("MODEL"), Right("PARAMETERS"), Right("ELEMENTS"), Right("SHARD SIZE"), Right("ATTACHED"),
               Right("VERSION"), Right("COMMIT"), Right("SKIPPED"), Right("EPOCH"), Left("RUNNING"), Left("ENGINE"),
               Right("IMBALANCE"), Left("LAST END")});
  for (const v1::ModelSummary& model : response.models()) {
    table.AddRow({model.name(), absl::StrCat(model.parameter_count()), absl::StrCat(model.element_count()),
                  absl::StrCat(model.shard_size()), absl::StrCat(model.attached_ranks(), "/", model.world_size()),
                  absl::StrCat(model.version()), absl::StrCat(model.commit_number()),
                  absl::StrCat(model.skipped_commits()), absl::StrCat(model.epoch()), YesNoCell(model.running()),
                  TextCell(model.engine()), RealCell(model.imbalance()),
                  TextCell(model.unusable().empty() ? model.last_end() : model.unusable())});
  }
  return table.Text();
}

std::string ShardsText(const v1::ListShardsResponse& response) {
  if (response.shards().empty()) return absl::StrCat("no shards\n", BrokenDevicesText(response));
  Table table({Left("PARAMETER"), Left("UNIT"), Right("RANK"), Left("DEVICE"), Left("FORMAT"), Right("FIRST ROW"),
               Right("ROWS"), Right("COLUMNS"), Right("PLANES"), Right("OPTIMIZER"), Left("SMALL")});
  for (const v1::Shard& shard : response.shards()) {
    table.AddRow({shard.parameter(), shard.unit(), absl::StrCat(shard.rank()), shard.device(),
                  FormatCell(shard.format()), absl::StrCat(shard.first_row()), absl::StrCat(shard.rows()),
                  absl::StrCat(shard.columns()), BytesCell(shard.plane_bytes()), BytesCell(shard.optimizer_bytes()),
                  YesNoCell(shard.small())});
  }
  return absl::StrCat(table.Text(), BrokenDevicesText(response));
}

std::string ParameterText(const v1::DescribeParameterResponse& response) {
  Properties properties;
  properties.Add("parameter", response.parameter());
  properties.Add("unit", response.unit());
  properties.Add("shape", absl::StrCat("[", absl::StrJoin(response.shape(), ", "), "]"));
  properties.Add("format", FormatCell(response.format()));
  properties.Add("element", EnumCell(v1::Element_Name(response.element()), "ELEMENT_"));
  properties.Add("gradient", EnumCell(v1::GradientType_Name(response.gradient_type()), "GRADIENT_TYPE_"));
  properties.Add("master", EnumCell(v1::MasterType_Name(response.master_type()), "MASTER_TYPE_"));
  properties.Add("exp_avg", MomentCell(response.exp_avg_type()));
  properties.Add("exp_avg_sq", MomentCell(response.exp_avg_sq_type()));
  properties.Add("version", absl::StrCat(response.version()));
  properties.Add("step", absl::StrCat(response.step()));
  properties.Add("group", absl::StrCat(response.group()));
  if (response.has_amax()) properties.Add("amax", RealCell(response.amax()));
  if (response.has_scale()) properties.Add("scale", RealCell(response.scale()));
  return absl::StrCat(properties.Text(), "\n", ExtentDescriptionsText(response));
}

std::string StatsText(const v1::GetParameterStatsResponse& response) {
  if (response.parameters().empty()) return "no parameters on this daemon\n";
  Table table({Left("PARAMETER"), Left("UNIT"), Left("FORMAT"), Right("ELEMENTS"), Right("RELATIVE ERROR"),
               Right("MAX RELATIVE"), Right("AMAX"), Right("ZERO"), Right("SATURATED"), Right("NON-FINITE")});
  for (const v1::ParameterStats& stats : response.parameters()) {
    const int64_t elements = stats.element_count();
    table.AddRow({stats.parameter(), stats.unit(), FormatCell(stats.format()), absl::StrCat(elements),
                  RealCell(stats.relative_error()), RealCell(stats.max_relative_error()), RealCell(stats.amax()),
                  ShareCell(stats.zero_count(), elements), ShareCell(stats.saturated_count(), elements),
                  absl::StrCat(stats.non_finite_count())});
  }
  return absl::StrCat(table.Text(), response.parameters_size(), " of ", response.parameter_count(), " parameters\n");
}

std::string SessionsText(const v1::ListSessionsResponse& response) {
  if (response.sessions().empty()) return "no sessions\n";
  Table table({Right("SESSION"), Left("MODEL"), Right("RANK"), Left("DEVICE"), Right("PID"), Right("UID"),
               Right("EPOCH"), Right("LAST COMMAND"), Left("ATTACHED AT"), Left("WAITS FOR")});
  for (const v1::SessionSummary& session : response.sessions()) {
    table.AddRow({absl::StrCat(session.session()), session.model(), absl::StrCat(session.rank()), session.device(),
                  absl::StrCat(session.pid()), absl::StrCat(session.uid()), absl::StrCat(session.epoch()),
                  absl::StrCat(session.last_command()), TimeCell(session.attached_at()),
                  TextCell(session.waits_for())});
  }
  return table.Text();
}

std::string MemoryText(const v1::GetMemoryResponse& response) {
  const std::string totals = absl::StrCat("total ", BytesCell(response.total_bytes()), ", resident ",
                                          BytesCell(response.resident_bytes()), "\n", BrokenDevicesText(response));
  if (response.uses().empty()) return absl::StrCat("no memory in use by models\n", totals);
  Table table({Left("DEVICE"), Left("MODEL"), Left("CLASS"), Right("SIZE")});
  for (const v1::MemoryUse& use : response.uses()) {
    table.AddRow({TextCell(use.device()), TextCell(use.model()), use.memory_class(), BytesCell(use.size_bytes())});
  }
  return absl::StrCat(table.Text(), totals);
}

std::string ExtentsText(const std::vector<v1::ExtentVerification>& extents) {
  if (extents.empty()) return "no extents on this daemon\n";
  Table table({Left("PARAMETER"), Right("RANK"), Right("FIRST ROW"), Right("ROWS"), Left("MATCH"), Left("MASTER"),
               Left("EXP_AVG"), Left("EXP_AVG_SQ"), Left("PLANES")});
  for (const v1::ExtentVerification& extent : extents) {
    table.AddRow({extent.parameter(), absl::StrCat(extent.rank()), absl::StrCat(extent.first_row()),
                  absl::StrCat(extent.rows()), YesNoCell(extent.planes_match()), HashCell(extent.master_hash()),
                  HashCell(extent.exp_avg_hash()), HashCell(extent.exp_avg_sq_hash()), HashCell(extent.planes_hash())});
  }
  return table.Text();
}

std::string SummaryText(const v1::VerifySummary& summary) {
  return absl::StrCat("version ", summary.version(), ", commit ", summary.commit_number(), ": ", summary.extent_count(),
                      summary.extent_count() == 1 ? " extent, " : " extents, ", summary.mismatch_count(),
                      summary.mismatch_count() == 1 ? " mismatch" : " mismatches", ", state ",
                      TerminalText(summary.state_hash()), "\n");
}

std::string ImportText(const v1::ImportFileResponse& response) {
  std::string text;
  for (const std::string& name : response.missing_parameters())
    absl::StrAppend(&text, "not in the file: ", TerminalText(name), "\n");
  return absl::StrCat(text, response.parameter_count(), " parameters imported, ", BytesCell(response.size_bytes()),
                      " read\n");
}

std::string DrainText(const v1::DrainResponse&) { return "draining\n"; }

std::string VersionText(const v1::GetVersionResponse& response) {
  Properties properties;
  properties.Add("daemon", response.version());
  properties.Add("build", response.build_type());
  properties.Add("devices", TextCell(absl::StrJoin(response.devices(), ", ")));
  properties.Add("node", absl::StrCat(response.node(), " of ", response.nodes()));
  properties.Add("pid", absl::StrCat(response.pid()));
  properties.Add("started", TimeCell(response.started_at()));
  return absl::StrCat(properties.Text(), BrokenDevicesText(response));
}

}  // namespace paramshard::ctl
