// Expands gzip.
#ifndef PARAMSHARD_CLIENT_DEMO_GUNZIP_H_
#define PARAMSHARD_CLIENT_DEMO_GUNZIP_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace paramshard::demo {

// Returns the content of a gzip file. DATA_LOSS if it is damaged or truncated.
absl::StatusOr<std::string> Gunzip(absl::Span<const uint8_t> compressed);

}  // namespace paramshard::demo

#endif  // PARAMSHARD_CLIENT_DEMO_GUNZIP_H_
