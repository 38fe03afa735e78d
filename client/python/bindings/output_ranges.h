// Memory that Python names by its address, to be written to.
#ifndef PARAMSHARD_CLIENT_PYTHON_BINDINGS_OUTPUT_RANGES_H_
#define PARAMSHARD_CLIENT_PYTHON_BINDINGS_OUTPUT_RANGES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace paramshard::python {

// No block of memory is larger.
inline constexpr int64_t kMostBlockBytes = int64_t{1} << 47;

struct OutputRange {
  std::string parameter;
  uintptr_t address = 0;
  int64_t size_bytes = 0;
  int64_t element_bytes = 1;
};

enum class MemoryPlace : uint8_t { kHost, kGpu };

// INVALID_ARGUMENT naming a parameter whose memory cannot be memory, is not aligned, or overlaps with another one's; in
// host memory also where its first or last page may not be written to.
absl::Status CheckOutputRanges(absl::string_view what, std::vector<OutputRange> ranges, MemoryPlace place);

}  // namespace paramshard::python

#endif  // PARAMSHARD_CLIENT_PYTHON_BINDINGS_OUTPUT_RANGES_H_
