// Advice for a connection that cannot be made.
#ifndef PARAMSHARD_COMMON_TLS_CONNECT_ADVICE_H_
#define PARAMSHARD_COMMON_TLS_CONNECT_ADVICE_H_

#include <string>

#include "absl/strings/string_view.h"
#include "common/tls/files.h"

namespace paramshard::tls {

// `failure` is gRPC's message for a call that found no connection, which quotes OpenSSL and the system. Returns what to
// check, with the files of this end; empty if the failure itself is clear.
std::string ConnectAdvice(absl::string_view failure, const Files& files);

}  // namespace paramshard::tls

#endif  // PARAMSHARD_COMMON_TLS_CONNECT_ADVICE_H_
