# Compiles the headers that most sources include once for all libraries, and once for all tests: half of the time of a
# build that does not optimize much. Sources include what they need all the same; builds without this say what they
# forget.
if(NOT PARAMSHARD_PRECOMPILE)
  return()
endif()

set(precompiled_headers
  <algorithm> <atomic> <chrono> <cmath> <cstdint> <cstring> <filesystem> <fstream> <functional> <iostream> <map> <memory>
  <numeric> <optional> <random> <set> <string> <thread> <utility> <vector>
  <absl/status/status.h> <absl/status/statusor.h> <absl/strings/str_cat.h> <absl/strings/str_format.h>
  <absl/strings/str_join.h> <absl/strings/str_split.h> <absl/synchronization/mutex.h>
  <absl/synchronization/notification.h> <absl/time/clock.h> <absl/time/time.h> <absl/types/span.h>
  <google/protobuf/message.h> <grpcpp/grpcpp.h>
  <paramshard/v1/admin.pb.h> <paramshard/v1/trainer.pb.h>)

# Targets that link gRPC or GoogleTest have this flag anyhow, and compiled headers are for one set of flags.
target_compile_options(paramshard_flags INTERFACE -pthread)

# Libraries and tests differ in theirs.
file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/precompiled/none.cc CONTENT "")
foreach(kind library test)
  add_library(paramshard_precompiled_${kind} OBJECT ${PROJECT_BINARY_DIR}/precompiled/none.cc)
  target_precompile_headers(paramshard_precompiled_${kind} PRIVATE ${precompiled_headers})
  target_link_libraries(paramshard_precompiled_${kind} PRIVATE paramshard_flags paramshard_proto)
endforeach()
target_compile_options(paramshard_precompiled_library PRIVATE -fPIC)
if(PARAMSHARD_TESTS)
  target_precompile_headers(paramshard_precompiled_test PRIVATE <gmock/gmock.h> <gtest/gtest.h>)
  target_compile_options(paramshard_precompiled_test PRIVATE -fPIE)
  target_link_libraries(paramshard_precompiled_test PRIVATE paramshard_test_flags GTest::gmock)
endif()
