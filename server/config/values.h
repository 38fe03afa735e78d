// The kinds of value that a setting may have, read from text.
//
// Every function here returns INVALID_ARGUMENT with a message of the form "<what is expected> expected, got <text>".
#ifndef PARAMSHARD_SERVER_CONFIG_VALUES_H_
#define PARAMSHARD_SERVER_CONFIG_VALUES_H_

#include <sys/types.h>

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace paramshard::server {

// A positive duration of at most 24 hours: 500ms, 10s, 2m, 1h30m.
absl::StatusOr<absl::Duration> ParseTimeout(absl::string_view text);

// Bytes: a number, or one of KiB, MiB, GiB, TiB. 0 is taken.
absl::StatusOr<int64_t> ParseByteCount(absl::string_view text);

// An integer from `low` to `high`.
absl::StatusOr<int> ParseInteger(absl::string_view text, int low, int high);

// HOST:PORT or [IPV6]:PORT with PORT from `lowest_port` to 65535; returned as given.
absl::StatusOr<std::string> ParseAddress(absl::string_view text, int lowest_port);
// Whether what is sent there stays on this machine: 127.0.0.1, ::1 and localhost; of HOST:PORT likewise.
bool IsLoopbackHost(absl::string_view host);
bool IsLoopbackAddress(absl::string_view address);

// An address of IPv4 or IPv6 in numbers; returned as given.
absl::StatusOr<std::string> ParseIpAddress(absl::string_view text);

// The number of a user given by number or name. Also NOT_FOUND: no user of this name.
absl::StatusOr<uid_t> FindUser(absl::string_view user);

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_CONFIG_VALUES_H_
