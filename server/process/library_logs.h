// Log lines of libraries as events of the daemon's log.
#ifndef PARAMSHARD_SERVER_PROCESS_LIBRARY_LOGS_H_
#define PARAMSHARD_SERVER_PROCESS_LIBRARY_LOGS_H_

namespace paramshard::server {

// Logs lines of gRPC and protobuf, which otherwise write to standard error themselves, as `library says` with the
// library's level. Called before either is used.
void LogWhatLibrariesSay();

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_PROCESS_LIBRARY_LOGS_H_
