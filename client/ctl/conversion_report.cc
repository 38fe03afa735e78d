#include "client/ctl/conversion_report.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/ctl/cell.h"
#include "client/ctl/encoding.h"
#include "client/ctl/table.h"
#include "client/ctl/terminal_text.h"
#include "kernels/formats/format.h"
#include "nlohmann/json.hpp"

namespace paramshard::ctl {
namespace {

using nlohmann::ordered_json;

// "12.5 %", with four significant digits.
std::string ShareCell(double share) { return share == 0 ? "0" : absl::StrFormat("%.4g %%", 100 * share); }

ordered_json ToJson(const ConvertedTensor& converted) {
  const EncodingError& error = converted.error;
  const bool is_foreign = !converted.foreign_format.empty();
  const Encoding& encoding = converted.tensor.encoding;
  ordered_json json = {{"name", converted.tensor.name},
                       {"format", is_foreign ? converted.foreign_format : std::string(FormatName(encoding.format))},
                       {"element", std::string(ElementTypeName(is_foreign ? ElementType::kNone : encoding.element))},
                       {"shape", converted.tensor.shape},
                       {"sourceBytes", converted.source_bytes},
                       {"bytes", converted.bytes}};
  if (error.element_count() == 0) return json;
  json["relativeError"] = error.relative_rms();
  json["maxError"] = error.max_error();
  json["zeroShare"] = error.zero_share();
  json["saturatedShare"] = error.saturated_share();
  json["nonFiniteShare"] = error.non_finite_share();
  return json;
}

}  // namespace

std::string ConversionText(const ConversionReport& report, bool quiet) {
  Table table({{"TENSOR"},
               {"FORMAT"},
               {"SHAPE"},
               {"BEFORE", Align::kRight},
               {"AFTER", Align::kRight},
               {"RELATIVE ERROR", Align::kRight},
               {"MAX ERROR", Align::kRight},
               {"ZERO", Align::kRight},
               {"SATURATED", Align::kRight},
               {"NON-FINITE", Align::kRight}});
  for (const ConvertedTensor& converted : report.tensors) {
    const EncodingError& error = converted.error;
    std::vector<std::string> cells = {
        converted.tensor.name,
        converted.foreign_format.empty() ? EncodingText(converted.tensor.encoding) : converted.foreign_format,
        absl::StrCat("[", absl::StrJoin(converted.tensor.shape, ", "), "]"), BytesCell(converted.source_bytes),
        BytesCell(converted.bytes)};
    if (error.element_count() == 0) {
      cells.insert(cells.end(), 5, "-");
    } else {
      cells.insert(cells.end(),
                   {RealCell(error.relative_rms()), RealCell(error.max_error()), ShareCell(error.zero_share()),
                    ShareCell(error.saturated_share()), ShareCell(error.non_finite_share())});
    }
    table.AddRow(std::move(cells));
  }
  std::string notes;
  for (const std::string& note : report.notes) absl::StrAppend(&notes, "note: ", TerminalText(note), "\n");
  return absl::StrCat(quiet || report.tensors.empty() ? "" : table.Text(), notes, report.tensors.size(),
                      " tensors converted, ", report.carried_count,
                      " copied unchanged: ", BytesCell(report.source_bytes), " before, ", BytesCell(report.bytes),
                      " after\n");
}

std::string ConversionJsonText(const ConversionReport& report, bool quiet) {
  ordered_json document = ordered_json::object();
  if (!quiet) {
    document["tensors"] = ordered_json::array();
    for (const ConvertedTensor& converted : report.tensors) document["tensors"].push_back(ToJson(converted));
  }
  document["summary"] = {{"convertedCount", report.tensors.size()},
                         {"carriedCount", report.carried_count},
                         {"sourceBytes", report.source_bytes},
                         {"bytes", report.bytes}};
  document["notes"] = report.notes;
  return document.dump(2, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace paramshard::ctl
