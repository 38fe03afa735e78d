// The report of a conversion, for people and for programs.
#ifndef PARAMSHARD_CLIENT_CTL_CONVERSION_REPORT_H_
#define PARAMSHARD_CLIENT_CTL_CONVERSION_REPORT_H_

#include <string>

#include "client/ctl/conversion.h"

namespace paramshard::ctl {

// A line for each tensor, then one for all. Without the lines of tensors when `quiet`.
std::string ConversionText(const ConversionReport& report, bool quiet);

// {"tensors": [...], "summary": {...}} with the same numbers, shares as fractions of 1. Without "tensors" when `quiet`.
std::string ConversionJsonText(const ConversionReport& report, bool quiet);

}  // namespace paramshard::ctl

#endif  // PARAMSHARD_CLIENT_CTL_CONVERSION_REPORT_H_
