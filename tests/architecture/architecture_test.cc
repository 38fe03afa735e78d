#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "tests/architecture/includes.h"

namespace paramshard {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

using Tower = std::vector<Floor>;

// "paramshard/v1/..." are the headers that protoc makes of the messages and services.
const std::vector<std::string> kGrpc = {"paramshard/v1/", "google/protobuf/", "grpc/", "grpcpp/"};

std::vector<std::string> operator+(std::vector<std::string> a, const std::vector<std::string>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

Tower operator+(Tower below, const Tower& above) {
  below.insert(below.end(), above.begin(), above.end());
  return below;
}

// Floors from the ground up. Servers and clients stand on the same floors, and do not know each other.
const Tower kShared = {
    {"kernels/base/", {}},
    {"kernels/gpu/", {"cuda.h", "cuda_runtime.h", "nccl.h"}},
    {"kernels/copy/", {"cuda_runtime.h"}},
    {"kernels/formats/", {"cuda_runtime.h", "cuda_bf16.h", "cuda_fp8.h"}},
    {"kernels/random/", {"cuda_runtime.h"}},
    {"kernels/reduce/", {"cuda_runtime.h"}},
    {"kernels/products/", {"cuda.h", "cuda_runtime.h", "cuda_bf16.h", "cublasLt.h"}},
    {"kernels/optim/", {"cuda_runtime.h"}},
    {"proto/", {}},
    {"common/rpc/", kGrpc},
    {"common/shared_memory/", {}},
    {"common/safetensors/", {"nlohmann/"}},
    {"common/weights/", {"nlohmann/"}},
    {"common/tls/", {"grpc/", "grpcpp/", "openssl/"}},
    {"common/model/", {"paramshard/v1/", "google/protobuf/", "xxhash.h"}},
    {"common/checkpoint/", {"nlohmann/", "paramshard/v1/trainer.pb.h", "xxh_x86dispatch.h", "xxhash.h"}},
};

const Tower kServer = {
    {"server/base/", {"grpc/", "grpcpp/"}},
    {"server/observe/", {"nlohmann/"}},
    {"server/terms/", {"xxhash.h"}},
    // No gRPC and no devices: nothing in the keeper fails while models run.
    {"server/keeper/", {}},
    {"server/journal/", {"xxhash.h"}},
    {"server/device/", {"cuda_runtime.h"}},
    {"server/data_plane/", {"gloo/", "paramshard/v1/", "xxhash.h"}},
    {"server/world/", kGrpc},
    {"server/state/", {"paramshard/v1/cluster.pb.h", "xxhash.h"}},
    // Commands stay as they were sent: one is parsed once, and ranks are compared by its bytes. No gRPC.
    {"server/training/", {"paramshard/v1/trainer.pb.h", "paramshard/v1/cluster.pb.h", "xxhash.h"}},
    {"server/models/", {"paramshard/v1/trainer.pb.h", "paramshard/v1/cluster.pb.h", "xxhash.h"}},
    {"server/checkpoints/", {}},
    {"server/mirrors/", kGrpc},
    {"server/edge/", kGrpc},
    {"server/process/", kGrpc + std::vector<std::string>{"CLI/"}},
};

const Tower kClient = {
    {"client/", {"cuda_runtime.h"}},
    {"client/internal/", kGrpc + std::vector<std::string>{"cuda_runtime.h"}},
    {"client/ctl/", kGrpc + std::vector<std::string>{"CLI/", "nlohmann/"}},
    {"client/ctl/commands/", kGrpc + std::vector<std::string>{"CLI/", "nlohmann/"}},
    {"client/demo/", {"CLI/", "nlohmann/", "zlib.h"}},
    {"client/examples/", {}},
    {"python/", {"nanobind/", "cuda_runtime.h"}},
};

fs::path Repository() { return PARAMSHARD_SOURCE_DIR; }

bool IsOfCuda(const std::string& header) {
  return header == "cuda.h" || header == "cuda_runtime.h" || absl::StartsWith(header, "kernels/gpu/") ||
         absl::EndsWith(header, "_cuda.h");
}

// Returns true for the client's files that may use CUDA. Trainers are free to choose.
bool MayKnowCuda(const std::string& file) {
  return file == "client/cuda.h" || absl::StartsWith(file, "client/internal/cuda") ||
         file == "python/bindings/streams.cc";
}

TEST(ArchitectureTest, FloorsIncludeFloorsBelow) {
  for (const Tower& above : {kServer, kClient}) {
    const std::vector<std::string> violations = FindViolations(Repository(), kShared + above);
    EXPECT_THAT(violations, IsEmpty()) << absl::StrJoin(violations, "\n");
  }
}

TEST(ArchitectureTest, TrainersAndReadersNeedNoProtobufAndNoGrpcHeader) {
  for (const std::string root : {"client/client.h", "client/plan.h"}) {
    for (const std::string& header : ReachableHeaders(Repository(), root)) {
      EXPECT_TRUE(absl::StartsWith(header, "client/") || absl::StartsWith(header, "common/model/") ||
                  absl::StartsWith(header, "kernels/") || absl::StartsWith(header, "absl/"))
          << root << " reaches " << header;
    }
  }
}

TEST(ArchitectureTest, TrainersAndReadersNeedNoCudaButForItsOwnHeader) {
  for (const Include& include : ScanIncludes(Repository(), "client")) {
    EXPECT_TRUE(!IsOfCuda(include.header) || MayKnowCuda(include.file))
        << include.file << ":" << include.line << ": includes " << include.header;
  }
  for (const std::string root : {"client/client.h", "client/plan.h"}) {
    for (const std::string& header : ReachableHeaders(Repository(), root)) {
      EXPECT_FALSE(IsOfCuda(header)) << root << " reaches " << header;
    }
  }
}

// A small repository that breaks rules.
class IncludesTest : public testing::Test {
 protected:
  IncludesTest() : root_(fs::path(testing::TempDir()) / testing::UnitTest::GetInstance()->current_test_info()->name()) {
    fs::remove_all(root_);
  }
  ~IncludesTest() override { fs::remove_all(root_); }

  void Write(const std::string& file, const std::string& text) {
    fs::create_directories((root_ / file).parent_path());
    std::ofstream(root_ / file) << text;
  }

  const fs::path root_;
};

TEST_F(IncludesTest, WhatIsNotBelowIsFound) {
  Write("kernels/sum.h", "#include <vector>\n#include <sys/mman.h>\n#include \"kernels/add.h\"\n");
  Write("kernels/sum.cc", "#include \"kernels/sum.h\"\n\n  #  include \"server/state.h\"  // no\n");
  Write("client/client.cc", "#include <grpcpp/grpcpp.h>\n#include <xxhash.h>\n#include \"tests/fake.h\"\n");
  Write("client/client.h", "#include \"absl/time.h\"\n#include \"kernels/sum.h\"\n#include \"client/ctl/table.h\"\n");
  Write("client/readme.md", "#include \"server/state.h\"\n");

  EXPECT_THAT(
      FindViolations(root_, {{"kernels/", {}}, {"client/", {"grpcpp/"}}, {"client/ctl/", {}}}),
      ElementsAre("client/client.cc:2: includes xxhash.h", "client/client.cc:3: includes tests/fake.h",
                  "client/client.h:3: includes client/ctl/table.h", "kernels/sum.cc:3: includes server/state.h"));
}

TEST_F(IncludesTest, FilesWithoutAFloorAreFound) {
  Write("server/state/state.cc", "#include \"server/state/state.h\"\n");
  Write("server/odd/odd.cc", "#include \"server/state/state.h\"\n");

  EXPECT_THAT(FindViolations(root_, {{"server/state/", {}}}),
              ElementsAre("server/odd/odd.cc:1: includes server/state/state.h"));
}

TEST_F(IncludesTest, HeadersAreReachedThroughOthers) {
  Write("client/client.h", "#include \"kernels/format.h\"\n");
  Write("kernels/format.h", "#include \"kernels/base.h\"\n");
  Write("kernels/base.h", "#include <grpcpp/grpcpp.h>\n#include \"client/client.h\"\n");

  EXPECT_THAT(ReachableHeaders(root_, "client/client.h"),
              ElementsAre("client/client.h", "grpcpp/grpcpp.h", "kernels/base.h", "kernels/format.h"));
}

}  // namespace
}  // namespace paramshard
