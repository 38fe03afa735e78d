// Errors of other daemons, as this daemon passes them on.
#ifndef PARAMSHARD_SERVER_CHECKPOINTS_NODE_ERROR_H_
#define PARAMSHARD_SERVER_CHECKPOINTS_NODE_ERROR_H_

#include <cstddef>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace paramshard::server {

// Prefixes another daemon's error with its node, and limits its length.
inline absl::Status OfNode(int node, const absl::Status& status) {
  constexpr size_t kMostBytes = 1024;
  return absl::Status(status.code(), absl::StrCat("node ", node, ": ", status.message().substr(0, kMostBytes)));
}

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_CHECKPOINTS_NODE_ERROR_H_
