// Formatting of single values for tables.
#ifndef PARAMSHARD_CLIENT_CTL_CELL_H_
#define PARAMSHARD_CLIENT_CTL_CELL_H_

#include <google/protobuf/timestamp.pb.h>

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "paramshard/v1/trainer.pb.h"

namespace paramshard::ctl {

// "17 B", "1.5 KiB", "3.0 GiB": one decimal from KiB on.
std::string BytesCell(int64_t bytes);

// "21.5ms", "1m3.2s": to a tenth of a millisecond, from a second on to a tenth of a second.
std::string DurationCell(absl::Duration duration);

// Four significant digits.
std::string RealCell(double value);

// The first 12 digits of a hash; "-" for none.
std::string HashCell(absl::string_view hash);

// "2024-02-29 12:00:00Z"; "-" for the zero time.
std::string TimeCell(const google::protobuf::Timestamp& time);

// "-" for an empty text.
std::string TextCell(absl::string_view text);

std::string YesNoCell(bool value);

// Returns the done part in whole percent, rounded down. 100 where there is nothing to do.
int64_t PercentOf(int64_t done, int64_t all);

// "12.5 %" of `count`; "-" where `count` is 0.
std::string ShareCell(int64_t part, int64_t count);

// An enumerator's name without its prefix in protos: ("FORMAT_MXFP8", "FORMAT_") is "MXFP8". A number that
// this build does not know has no name and is "?".
std::string EnumCell(absl::string_view name, absl::string_view prefix);
std::string FormatCell(v1::Format format);
std::string MomentCell(v1::MomentType type);
// "trained"; "-" for a daemon that does not say.
std::string OriginCell(v1::ValueOrigin origin);

}  // namespace paramshard::ctl

#endif  // PARAMSHARD_CLIENT_CTL_CELL_H_
