#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/ctl/cell.h"
#include "client/ctl/commands.h"
#include "client/ctl/options.h"
#include "client/ctl/table.h"
#include "common/model/moment_fields.h"
#include "kernels/optim/optimizers.h"

namespace paramshard::ctl {
namespace {

std::string ScaleCell(bool present, double scale) { return present ? RealCell(scale) : "-"; }

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

// A moment that the parameter has, and the name that its optimizer gives to it.
struct NamedMoment {
  MomentKind kind;
  std::string name;
};

std::vector<NamedMoment> MomentsOf(const v1::DescribeParameterResponse& response) {
  const auto optimizer = static_cast<Optimizer>(response.optimizer());
  std::vector<NamedMoment> moments;
  for (const MomentTraits& moment : kMomentKinds) {
    if (MomentTypeIn(response, moment.kind) == v1::MOMENT_TYPE_UNSPECIFIED) continue;
    const char* const name = IsOptimizer(optimizer) ? MomentName(optimizer, moment.kind) : nullptr;
    moments.push_back({moment.kind, name == nullptr ? moment.name : name});
  }
  return moments;
}

// Empty where the parameter has no moments.
std::string MomentsText(const v1::DescribeParameterResponse& response) {
  const std::vector<NamedMoment> moments = MomentsOf(response);
  if (moments.empty()) return "";
  std::vector<Column> columns = {Right("RANK")};
  for (const NamedMoment& moment : moments) {
    columns.push_back(Right(absl::StrCat(absl::AsciiStrToUpper(moment.name), " NORM")));
    columns.insert(columns.end(), {Right("MIN"), Right("MAX")});
  }
  Table table(columns);
  for (const v1::ExtentDescription& extent : response.extents()) {
    std::vector<std::string> cells = {absl::StrCat(extent.rank())};
    for (const NamedMoment& moment : moments) {
      const MomentRange range = MomentRangeIn(extent, moment.kind);
      cells.insert(cells.end(), {RealCell(range.norm), RealCell(range.min), RealCell(range.max)});
    }
    table.AddRow(cells);
  }
  return absl::StrCat("\n", table.Text());
}

// Counts the scales of all extents; empty where the format has none.
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
  return absl::StrCat(PlanesText(response), MomentsText(response), ScalesText(response));
}

std::string ParameterText(const v1::DescribeParameterResponse& response) {
  Properties properties;
  properties.Add("parameter", response.parameter());
  properties.Add("unit", response.unit());
  properties.Add("shape", absl::StrCat("[", absl::StrJoin(response.shape(), ", "), "]"));
  if (response.placement() != v1::PLACEMENT_UNSPECIFIED) {  // an older daemon does not say it
    properties.Add("placement", EnumCell(v1::Placement_Name(response.placement()), "PLACEMENT_"));
  }
  properties.Add("format", FormatCell(response.format()));
  properties.Add("element", EnumCell(v1::Element_Name(response.element()), "ELEMENT_"));
  if (response.frozen()) {
    properties.Add("trainable", "no");
  } else {
    properties.Add("gradient", EnumCell(v1::GradientType_Name(response.gradient_type()), "GRADIENT_TYPE_"));
  }
  const bool has_master = !response.frozen() || response.master_type() != v1::MASTER_TYPE_UNSPECIFIED;
  properties.Add("master", has_master ? EnumCell(v1::MasterType_Name(response.master_type()), "MASTER_TYPE_") : "none");
  if (response.optimizer() != v1::OPTIMIZER_UNSPECIFIED) {
    properties.Add("optimizer", EnumCell(v1::Optimizer_Name(response.optimizer()), "OPTIMIZER_"));
  }
  for (const NamedMoment& moment : MomentsOf(response)) {
    properties.Add(moment.name, MomentCell(MomentTypeIn(response, moment.kind)));
  }
  properties.Add("origin", OriginCell(response.origin()));
  properties.Add("version", absl::StrCat(response.version()));
  properties.Add("step", absl::StrCat(response.step()));
  properties.Add("group", absl::StrCat(response.group()));
  if (response.has_amax()) properties.Add("amax", RealCell(response.amax()));
  if (response.has_scale()) properties.Add("scale", RealCell(response.scale()));
  return absl::StrCat(properties.Text(), "\n", ExtentDescriptionsText(response));
}

class Describe final : public Command {
 public:
  void AddOptions(CLI::App& app) override {
    AddModelArgument(app, model_);
    app.add_option("parameter", parameter_, "name of the parameter")->required();
  }
  std::vector<std::string> Objects() const override { return {model_, parameter_}; }
  absl::StatusOr<int> Run(const Context& context) override {
    v1::DescribeParameterRequest request;
    request.set_model(model_);
    request.set_parameter(parameter_);
    return context.Show(&AdminClient::Stub::DescribeParameter, request, ParameterText);
  }

 private:
  std::string model_;
  std::string parameter_;
};

}  // namespace

const CommandInfo kDescribe = {
    .name = "describe", .help = "describe a parameter and its extents", .create = Create<Describe>};

}  // namespace paramshard::ctl
