// Traces of daemons as one document of Chrome's trace events, which Perfetto and chrome://tracing open.
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
  // Difference from the daemon's clock to this program's, and its largest error.
  int64_t offset_ns = 0;
  int64_t uncertainty_ns = 0;
};

// Returns a document with a process for each node; for each rank threads of its trainer's commands, of its gathers, and
// of its pushes and commits. Events of one thread nest: others have a further thread. Times count from the first event.
nlohmann::ordered_json TraceDocument(const std::vector<DaemonTrace>& daemons);

}  // namespace paramshard::ctl

#endif  // PARAMSHARD_CLIENT_CTL_TRACE_DOCUMENT_H_
