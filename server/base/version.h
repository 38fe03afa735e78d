// The version that binaries report.
#ifndef PARAMSHARD_SERVER_BASE_VERSION_H_
#define PARAMSHARD_SERVER_BASE_VERSION_H_

namespace paramshard::server {

inline constexpr char kVersion[] = "0.1.0";
#ifdef NDEBUG
inline constexpr char kBuildType[] = "release";
#else
inline constexpr char kBuildType[] = "debug";
#endif

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_BASE_VERSION_H_
