// Checks of memory that Python gives by its address, for writing.
#ifndef PARAMSHARD_PYTHON_BINDINGS_OUTPUT_RANGES_H_
#define PARAMSHARD_PYTHON_BINDINGS_OUTPUT_RANGES_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace paramshard::python {

// Largest block of memory.
inline constexpr int64_t kMostBlockBytes = int64_t{1} << 47;

struct OutputRange {
  absl::string_view parameter;  // its name
  uintptr_t address = 0;
  int64_t size_bytes = 0;
  int64_t element_bytes = 1;
};

enum class MemoryPlace : uint8_t { kHost, kGpu };

// INVALID_ARGUMENT names a parameter whose memory has an invalid address, is not aligned, or overlaps with memory of
// another parameter; in host memory also if its first or last page cannot be written.
absl::Status CheckOutputRanges(absl::string_view what, std::vector<OutputRange> ranges, MemoryPlace place);

}  // namespace paramshard::python

#endif  // PARAMSHARD_PYTHON_BINDINGS_OUTPUT_RANGES_H_
