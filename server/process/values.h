// Parsers of settings' values.
//
// Every function returns INVALID_ARGUMENT with a message of the form "want <kind of value>, got <text>".
#ifndef PARAMSHARD_SERVER_PROCESS_VALUES_H_
#define PARAMSHARD_SERVER_PROCESS_VALUES_H_

#include <sys/types.h>

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace paramshard::server {

// A positive duration of at most 24 hours: 500ms, 10s, 2m, 1h30m.
absl::StatusOr<absl::Duration> ParseTimeout(absl::string_view text);

// A duration of at most 10 seconds, which may be 0.
absl::StatusOr<absl::Duration> ParseHold(absl::string_view text);

// A number of bytes, with or without a unit of KiB, MiB, GiB or TiB. May be 0.
absl::StatusOr<int64_t> ParseByteCount(absl::string_view text);

// An integer from `low` to `high`.
absl::StatusOr<int> ParseInteger(absl::string_view text, int low, int high);

// HOST:PORT or [IPV6]:PORT with PORT from `lowest_port` to 65535; returned as given.
absl::StatusOr<std::string> ParseAddress(absl::string_view text, int lowest_port);
// Returns true for 127.0.0.1, ::1 and localhost, which are not reached from other machines; for HOST:PORT likewise.
bool IsLoopbackHost(absl::string_view host);
bool IsLoopbackAddress(absl::string_view address);

// A numeric address of IPv4 or IPv6; returned as given.
absl::StatusOr<std::string> ParseIpAddress(absl::string_view text);

// Returns the number of a user given by number or name. Also NOT_FOUND: no user of this name.
absl::StatusOr<uid_t> FindUser(absl::string_view user);

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_PROCESS_VALUES_H_
