// What libraries have to say becomes events of the daemon's log.
#ifndef PARAMSHARD_SERVER_LIBRARY_LOGS_H_
#define PARAMSHARD_SERVER_LIBRARY_LOGS_H_

namespace paramshard::server {

// Lines of gRPC and protobuf, which would write to standard error themselves, are logged as `library says` with the
// level that the library gives them. Before either is used.
void LogWhatLibrariesSay();

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_LIBRARY_LOGS_H_
