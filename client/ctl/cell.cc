#include "client/ctl/cell.h"

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"

namespace paramshard::ctl {
namespace {

constexpr size_t kHashDigits = 12;

}  // namespace

std::string BytesCell(int64_t bytes) {
  constexpr absl::string_view kUnits[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  if (bytes < 1024) return absl::StrCat(bytes, " B");
  double value = static_cast<double>(bytes) / 1024;
  size_t unit = 0;
  // 1023.95 would be rounded to 1024.0.
  for (; value >= 1023.95 && unit + 1 < std::size(kUnits); ++unit) value /= 1024;
  return absl::StrFormat("%.1f %s", value, kUnits[unit]);
}

std::string DurationCell(absl::Duration duration) {
  const absl::Duration unit = absl::Milliseconds(duration < absl::Seconds(1) ? 0.1 : 100);
  return absl::FormatDuration(absl::Trunc(duration + unit / 2, unit));
}

std::string RealCell(double value) { return absl::StrFormat("%.4g", value); }

std::string HashCell(absl::string_view hash) { return TextCell(hash.substr(0, kHashDigits)); }

std::string TimeCell(const google::protobuf::Timestamp& time) {
  if (time.seconds() == 0 && time.nanos() == 0) return "-";
  return absl::FormatTime("%Y-%m-%d %H:%M:%SZ", absl::FromUnixSeconds(time.seconds()), absl::UTCTimeZone());
}

std::string TextCell(absl::string_view text) { return text.empty() ? "-" : std::string(text); }

std::string YesNoCell(bool value) { return value ? "yes" : "no"; }

int64_t PercentOf(int64_t done, int64_t all) {
  if (all <= 0) return 100;
  return static_cast<int64_t>(100.0 * static_cast<double>(done) / static_cast<double>(all));
}

std::string ShareCell(int64_t part, int64_t count) {
  if (count == 0) return "-";
  return absl::StrCat(RealCell(100.0 * static_cast<double>(part) / static_cast<double>(count)), " %");
}

std::string EnumCell(absl::string_view name, absl::string_view prefix) {
  return name.empty() ? "?" : std::string(absl::StripPrefix(name, prefix));
}

std::string FormatCell(v1::Format format) { return EnumCell(v1::Format_Name(format), "FORMAT_"); }

std::string OriginCell(v1::ValueOrigin origin) {
  if (origin == v1::VALUE_ORIGIN_UNSPECIFIED) return "-";
  return absl::AsciiStrToLower(EnumCell(v1::ValueOrigin_Name(origin), "VALUE_ORIGIN_"));
}

std::string MomentCell(v1::MomentType type) { return EnumCell(v1::MomentType_Name(type), "MOMENT_TYPE_"); }

}  // namespace paramshard::ctl
