// What to look at where no connection can be made.
#ifndef PARAMSHARD_PROTO_TLS_CONNECT_ADVICE_H_
#define PARAMSHARD_PROTO_TLS_CONNECT_ADVICE_H_

#include <string>

#include "absl/strings/string_view.h"
#include "proto/tls/files.h"

namespace paramshard::tls {

// `failure` is what gRPC says of a call that found no connection, which quotes OpenSSL and the system. Returns what is to
// be looked at, with the files of this end; empty where the failure says it all.
std::string ConnectAdvice(absl::string_view failure, const Files& files);

}  // namespace paramshard::tls

#endif  // PARAMSHARD_PROTO_TLS_CONNECT_ADVICE_H_
