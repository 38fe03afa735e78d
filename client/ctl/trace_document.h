// What daemons have recorded as one document of Chrome's trace events, which Perfetto and chrome://tracing open.
#ifndef PARAMSHARD_CLIENT_CTL_TRACE_DOCUMENT_H_
#define PARAMSHARD_CLIENT_CTL_TRACE_DOCUMENT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "nlohmann/json.hpp"
#include "paramshard/v1/admin.pb.h"

namespace paramshard::ctl {

struct DaemonTrace {
  std::string address;  // empty: of this machine
  v1::GetTraceResponse response;
  // What is added to the daemon's clock to have this program's, and how wrong that may be.
  int64_t offset_ns = 0;
  int64_t uncertainty_ns = 0;
};

// A process for each node; for each rank threads of what its trainer has sent, of its gathers, and of its pushes and
// commits. Events of one thread nest: what does not has a further thread. Times are from the first event on.
nlohmann::ordered_json TraceDocument(const std::vector<DaemonTrace>& daemons);

}  // namespace paramshard::ctl

#endif  // PARAMSHARD_CLIENT_CTL_TRACE_DOCUMENT_H_
