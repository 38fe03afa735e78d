#include "server/world/unidentified_streams.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace paramshard::server {

absl::StatusOr<UnidentifiedStreams::Place> UnidentifiedStreams::Take(absl::string_view caller,
                                                                     std::function<void()> end) {
  absl::MutexLock lock(&mu_);
  const auto is_callers = [&](const Stream& stream) { return stream.caller == caller; };
  const auto count = static_cast<size_t>(std::count_if(streams_.begin(), streams_.end(), is_callers));
  if (count >= options_.most) {
    const auto oldest = std::find_if(streams_.begin(), streams_.end(), is_callers);
    if (SteadyNow() < oldest->gives_way) {
      return absl::ResourceExhaustedError(
          absl::StrCat("join: want at most ", options_.most, " streams without a hello from ", caller, ", got more"));
    }
    // It stays in the list until its own thread sees that, but does not count.
    oldest->end();
    oldest->caller.clear();
  }
  streams_.push_back(
      {.caller = std::string(caller), .end = std::move(end), .gives_way = SteadyDeadline(options_.timeout)});
  return Place(this, std::prev(streams_.end()));
}

}  // namespace paramshard::server
