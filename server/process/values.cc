#include "server/process/values.h"

#include <arpa/inet.h>
#include <pwd.h>

#include <cerrno>
#include <cstring>
#include <limits>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/model/limits.h"

namespace paramshard::server {
namespace {

absl::Status Expected(absl::string_view what, absl::string_view got) {
  return absl::InvalidArgumentError(absl::StrCat("want ", what, ", got \"", got, "\""));
}

// Takes the unit off the end of `text` and returns its bytes; 1 without a unit.
int64_t ConsumeByteUnit(absl::string_view& text) {
  constexpr absl::string_view kUnits[] = {"KiB", "MiB", "GiB", "TiB"};
  int shift = 0;
  for (absl::string_view unit : kUnits) {
    shift += 10;
    if (absl::ConsumeSuffix(&text, unit)) return int64_t{1} << shift;
  }
  return 1;
}

// Longest wait for readers.
constexpr absl::Duration kMaxHold = absl::Seconds(10);

bool IsUnsignedNumber(absl::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789") == absl::string_view::npos;
}

}  // namespace

absl::StatusOr<absl::Duration> ParseTimeout(absl::string_view text) {
  absl::Duration timeout;
  if (absl::ParseDuration(text, &timeout) && timeout > absl::ZeroDuration() && timeout <= kMaxStepTimeout) {
    return timeout;
  }
  return Expected(absl::StrCat("a positive duration of at most ", absl::FormatDuration(kMaxStepTimeout),
                               ", such as 500ms, 10s or 2m"),
                  text);
}

absl::StatusOr<absl::Duration> ParseHold(absl::string_view text) {
  absl::Duration hold;
  if (absl::ParseDuration(text, &hold) && hold >= absl::ZeroDuration() && hold <= kMaxHold) return hold;
  return Expected(absl::StrCat("a duration of 0 to ", absl::FormatDuration(kMaxHold), ", such as 250ms"), text);
}

absl::StatusOr<int64_t> ParseByteCount(absl::string_view text) {
  absl::string_view number = text;
  const int64_t unit = ConsumeByteUnit(number);
  int64_t count;
  int64_t bytes;
  if (IsUnsignedNumber(number) && absl::SimpleAtoi(number, &count) && !__builtin_mul_overflow(count, unit, &bytes)) {
    return bytes;
  }
  return Expected("a number of bytes such as 1048576, 512MiB or 2GiB", text);
}

absl::StatusOr<int> ParseInteger(absl::string_view text, int low, int high) {
  int value;
  if (absl::SimpleAtoi(text, &value) && low <= value && value <= high) return value;
  const std::string upper = high == std::numeric_limits<int>::max() ? "" : absl::StrCat(" to ", high);
  return Expected(absl::StrCat("an integer from ", low, upper.empty() ? " up" : upper), text);
}

absl::StatusOr<std::string> ParseAddress(absl::string_view text, int lowest_port) {
  const size_t colon = text.rfind(':');
  const absl::string_view host = text.substr(0, colon);
  const bool has_brackets = absl::StartsWith(host, "[") && absl::EndsWith(host, "]");
  const bool has_colons = absl::StrContains(host, ':');
  if (colon == absl::string_view::npos || host.empty() || has_brackets != has_colons) {
    return Expected("host:port, or [address]:port of IPv6", text);
  }
  const absl::StatusOr<int> port = ParseInteger(text.substr(colon + 1), lowest_port, 65535);
  if (!port.ok()) return absl::InvalidArgumentError(absl::StrCat("port: ", port.status().message()));
  return std::string(text);
}

bool IsLoopbackHost(absl::string_view host) { return host == "127.0.0.1" || host == "::1" || host == "localhost"; }

bool IsLoopbackAddress(absl::string_view address) {
  absl::string_view host = address.substr(0, address.rfind(':'));
  if (absl::ConsumePrefix(&host, "[")) absl::ConsumeSuffix(&host, "]");
  return IsLoopbackHost(host);
}

absl::StatusOr<std::string> ParseIpAddress(absl::string_view text) {
  const std::string address(text);
  in6_addr parsed;
  if (inet_pton(AF_INET, address.c_str(), &parsed) == 1 || inet_pton(AF_INET6, address.c_str(), &parsed) == 1) {
    return address;
  }
  return Expected("an IP address such as 10.0.0.3", text);
}

absl::StatusOr<uid_t> FindUser(absl::string_view user) {
  uid_t uid;
  if (IsUnsignedNumber(user)) {
    // The largest uid_t means "no user" to the kernel.
    if (absl::SimpleAtoi(user, &uid) && uid != static_cast<uid_t>(-1)) return uid;
    return Expected("a user's number or name", user);
  }
  if (user.empty()) return Expected("a user's number or name", user);
  std::vector<char> buffer(16 * 1024);
  passwd entry;
  passwd* found = nullptr;
  const int error = getpwnam_r(std::string(user).c_str(), &entry, buffer.data(), buffer.size(), &found);
  if (found != nullptr) return found->pw_uid;
  const std::string reason = error == 0 ? "no such user" : std::strerror(error);
  return absl::NotFoundError(absl::StrCat("want a user's number or name, got \"", user, "\": ", reason));
}

}  // namespace paramshard::server
