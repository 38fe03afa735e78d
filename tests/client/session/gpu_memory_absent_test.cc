// The client library's answers in a build without CUDA, linked in place of CUDA's whatever this build has.
#include "client/internal/gpu_memory.h"

#include <vector>

#include "client/client.h"
#include "gmock/gmock.h"
#include "tests/support/status_matchers.h"

namespace paramshard::internal {
namespace {

const auto kIsAbsent =
    StatusIs(absl::StatusCode::kUnimplemented, "the daemon's memory is on a GPU; this client was built without CUDA");

TEST(GpuMemoryAbsentTest, MemoryOfAGpuCannotBeMapped) { EXPECT_THAT(MapTensors("0123456789abcdef", {}), kIsAbsent); }

TEST(GpuMemoryAbsentTest, ViewsOfAGpuCannotBeCopied) {
  std::vector<uint8_t> bytes(4);
  EXPECT_THAT(CopyFromGpu(0, bytes, bytes.data()), kIsAbsent);
  EXPECT_THAT(CopyToGpu(0, bytes, bytes.data()), kIsAbsent);
}

}  // namespace
}  // namespace paramshard::internal
