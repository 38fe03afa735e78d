# Everything comes from the system; nothing is downloaded.
find_package(Threads REQUIRED)
find_package(Protobuf REQUIRED)
find_package(OpenSSL REQUIRED)
find_package(gRPC CONFIG REQUIRED)
find_package(absl CONFIG REQUIRED)
find_package(Gloo CONFIG REQUIRED)
find_package(CLI11 CONFIG REQUIRED)
find_package(nlohmann_json CONFIG REQUIRED)
find_package(ZLIB REQUIRED)
find_package(PkgConfig REQUIRED)
pkg_check_modules(xxhash REQUIRED IMPORTED_TARGET GLOBAL libxxhash)
# True if the library chooses by the processor that it runs on: with AVX2 its hashes take a third of the time.
include(CheckCXXSourceCompiles)
set(CMAKE_REQUIRED_LIBRARIES PkgConfig::xxhash)
check_cxx_source_compiles(
  "#include <xxh_x86dispatch.h>
  int main() { return static_cast<int>(XXH3_128bits_withSeed_dispatch(\"\", 0, 0).low64); }"
  PARAMSHARD_XXHASH_DISPATCHES)
unset(CMAKE_REQUIRED_LIBRARIES)

if(PARAMSHARD_TESTS)
  find_package(GTest CONFIG REQUIRED)
  find_package(benchmark CONFIG REQUIRED)
endif()
