#include "python/bindings/output_ranges.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/base/status_macros.h"

namespace paramshard::python {
namespace {

// Smallest address at which a process maps memory.
constexpr uintptr_t kLeastAddress = 1 << 12;
// Largest distance of ranges whose pages are checked together: a page.
constexpr uintptr_t kMostGap = 1 << 12;

bool PopulatesForWriting(uintptr_t address) {
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  void* const begin = reinterpret_cast<void*>(address / page * page);  // NOLINT(performance-no-int-to-ptr)
  return madvise(begin, page, MADV_POPULATE_WRITE) == 0;
}

// The kernel checks the pages without changing them. Linux before 5.14 cannot.
bool MayBeWritten(const OutputRange& range) {
  const int own = 0;
  static const bool can_look = PopulatesForWriting(reinterpret_cast<uintptr_t>(&own));
  return !can_look || (PopulatesForWriting(range.address) && PopulatesForWriting(range.address + range.size_bytes - 1));
}

// Returns false if pages at the ends of `ranges`, which ascend, cannot be written. Ranges that lie closely together count
// as one: a kernel call takes longer than the copy of a small parameter.
bool MayBeWritten(const std::vector<OutputRange>& ranges) {
  for (size_t first = 0; first < ranges.size();) {
    OutputRange run = ranges[first++];
    for (; first < ranges.size() && ranges[first].address - run.address <= run.size_bytes + kMostGap; ++first) {
      run.size_bytes = static_cast<int64_t>(ranges[first].address - run.address) + ranges[first].size_bytes;
    }
    if (!MayBeWritten(run)) return false;
  }
  return true;
}

absl::Status CheckOne(absl::string_view what, const OutputRange& range, bool checks_pages) {
  const auto refused = [&](absl::string_view why) {
    return absl::InvalidArgumentError(absl::StrCat(what, ": ", range.parameter, ": want memory to write to, got ",
                                                   absl::StrFormat("address %#x", range.address), why));
  };
  constexpr auto kMost = static_cast<uintptr_t>(kMostBlockBytes);
  if (range.address < kLeastAddress || range.address > kMost ||
      range.size_bytes > static_cast<int64_t>(kMost - range.address)) {
    return refused("");
  }
  if (range.address % range.element_bytes != 0) {
    return refused(absl::StrCat(", which is not aligned to ", range.element_bytes, " bytes"));
  }
  if (checks_pages && !MayBeWritten(range)) {
    return refused(absl::StrCat(", where ", range.size_bytes, " bytes cannot be written"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckOutputRanges(absl::string_view what, std::vector<OutputRange> ranges, MemoryPlace place) {
  std::erase_if(ranges, [](const OutputRange& range) { return range.size_bytes == 0; });
  for (const OutputRange& range : ranges) RETURN_IF_ERROR(CheckOne(what, range, /*checks_pages=*/false));
  std::ranges::sort(ranges, {}, &OutputRange::address);
  if (place == MemoryPlace::kHost && !MayBeWritten(ranges)) {
    for (const OutputRange& range : ranges) RETURN_IF_ERROR(CheckOne(what, range, /*checks_pages=*/true));
  }
  for (size_t i = 1; i < ranges.size(); ++i) {
    if (ranges[i].address - ranges[i - 1].address >= static_cast<uintptr_t>(ranges[i - 1].size_bytes)) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(what, ": the memory of ", ranges[i - 1].parameter, " and of ", ranges[i].parameter, " overlaps"));
  }
  return absl::OkStatus();
}

}  // namespace paramshard::python
