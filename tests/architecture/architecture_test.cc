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

using Headers = std::vector<std::string>;

Headers operator+(Headers a, const Headers& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

const Headers kMessages = {"paramshard/v1/trainer.pb.h", "paramshard/v1/admin.pb.h", "paramshard/v1/cluster.pb.h",
                           "google/protobuf/"};
const Headers kServices = {"paramshard/v1/", "grpc/", "grpcpp/"};

// The domain knows messages but no gRPC; engines alone know what moves their bytes.
const Headers kDomain = Headers{"server/", "proto/", "kernels/", "absl/", "xxhash.h"} + kMessages;

// The store answers in plain values, and service/ makes messages of them.
const Headers kStore = {"server/", "proto/model/", "proto/wire/", "kernels/", "absl/", "xxhash.h"};
// Commands stay as they were sent: one is parsed once, in seat.cc, and its canonical bytes are what ranks are compared
// by. These files are where commands are read, ordered, described and applied.
const Headers kCommands = kStore + Headers{"paramshard/v1/trainer.pb.h"};

const std::vector<Rule> kRules = {
    {"proto/", Headers{"proto/", "absl/"} + kMessages + kServices},
    // What both sides share of a model, formats included. It knows neither side, and no gRPC.
    {"proto/model/", Headers{"proto/", "kernels/", "absl/", "xxhash.h"} + kMessages},
    {"proto/safetensors/", {"proto/", "absl/", "nlohmann/"}},
    // Weights in foreign files: no side, and nothing of what a model is.
    {"proto/weights/", {"proto/weights/", "proto/safetensors/", "kernels/", "absl/", "nlohmann/"}},
    // The format of saved models: no side, no message but the spec's.
    {"proto/checkpoint/",
     {"proto/checkpoint/", "proto/model/", "proto/safetensors/", "proto/wire/", "kernels/", "absl/", "nlohmann/",
      "xxh_x86dispatch.h", "xxhash.h", "paramshard/v1/trainer.pb.h"}},
    // Who speaks on a connection: gRPC's credentials and OpenSSL's certificates.
    {"proto/tls/",
     {"proto/tls/", "proto/safetensors/regular_file.h", "kernels/base/", "absl/", "grpc/", "grpcpp/", "openssl/"}},
    {"server/transport/",
     {"server/transport/", "server/log/", "proto/tls/", "kernels/base/", "absl/", "grpc/", "grpcpp/"}},
    {"kernels/", {"kernels/", "absl/", "cuda.h", "cuda_bf16.h", "cuda_fp8.h", "cuda_runtime.h", "nccl.h"}},
    {"client/", Headers{"client/", "proto/", "kernels/", "absl/"} + kMessages + kServices},
    {"client/cuda", {"client/", "kernels/", "absl/", "cuda_runtime.h"}},
    {"client/internal/cuda", {"client/", "proto/", "kernels/", "absl/", "cuda_runtime.h"}},
    {"client/ctl/", Headers{"client/", "proto/", "kernels/", "absl/", "CLI/", "nlohmann/"} + kMessages + kServices},
    {"client/python/", {"client/", "absl/", "nanobind/", "kernels/base/status_macros.h"}},
    {"client/python/bindings/weights.cc",
     {"client/", "proto/weights/", "proto/safetensors/dtype.h", "absl/", "nanobind/"}},
    {"client/python/bindings/streams.cc", {"client/", "absl/", "kernels/base/status_macros.h", "cuda_runtime.h"}},
    {"client/examples/", {"client/", "kernels/", "absl/", "CLI/", "nlohmann/", "zlib.h"}},
    {"server/", kDomain + kServices + Headers{"CLI/", "nlohmann/"}},
    {"server/base/", {"server/base/", "absl/", "grpc/support/time.h"}},
    {"server/collective/", kDomain + Headers{"gloo/"}},
    {"server/device/", kDomain},
    {"server/device/cuda_devices.cc", kDomain + Headers{"cuda_runtime.h"}},
    {"server/disk/", {"server/disk/", "proto/safetensors/page_buffer.h", "kernels/base/", "absl/"}},
    // Who observes knows the registry, and not the other way round.
    {"server/metrics/", {"server/metrics/", "server/base/", "proto/wire/handoff.h", "kernels/base/", "absl/"}},
    // What writes checkpoints knows shards, and no model: nothing of epochs, commits and clusters.
    {"server/saves/",
     {"server/saves/", "server/disk/", "server/device/memory.h", "server/device/compute_device.h",
      "server/store/shard.h", "server/base/crew.h", "proto/checkpoint/", "proto/model/", "proto/safetensors/",
      "kernels/", "absl/"}},
    // But who makes saves fall due.
    {"server/saves/saver",
     {"server/saves/", "server/disk/", "server/store/", "server/cluster/save_news.h", "server/base/",
      "server/log/log.h", "proto/checkpoint/", "proto/model/", "kernels/", "absl/"}},
    // And those who carry them out, in step with the other daemons.
    {"server/saves/daemon_images",
     {"server/saves/", "server/disk/", "server/store/", "server/base/", "proto/checkpoint/", "kernels/base/", "absl/"}},
    {"server/saves/following_saver",
     {"server/saves/", "server/disk/", "server/store/", "server/cluster/save_news.h", "server/base/", "kernels/base/",
      "absl/"}},
    {"server/saves/save_records",
     {"server/saves/", "server/store/model_saver.h", "server/log/log.h", "server/metrics/metric_registry.h", "absl/"}},
    {"server/restores/",
     {"server/restores/", "server/store/", "server/cluster/restore_news.h", "server/base/", "server/log/",
      "proto/checkpoint/", "proto/model/", "proto/safetensors/page_buffer.h", "kernels/", "absl/"}},
    // A journal's reader knows no model: what it says is a server's to do.
    {"server/journal/",
     {"server/journal/", "server/store/commit_log.h", "server/store/history.h", "kernels/base/",
      "kernels/optim/hyperparameters.h", "kernels/optim/state_bands.h", "absl/", "xxhash.h"}},
    // The keeper does nothing that can fail while models run: no gRPC, no devices, no domain.
    {"server/keeper/",
     {"server/keeper/", "server/base/", "server/descriptor_limit.h", "server/exit_codes.h", "server/log/log.h",
      "proto/wire/handoff.h", "kernels/base/", "absl/"}},
    // What is recorded knows nothing of what it is recorded for.
    {"server/trace/", {"server/trace/", "absl/"}},
    {"server/store/", kStore},
    {"server/store/command_text.h", kCommands},
    {"server/store/commit_under_way.h", kCommands},
    {"server/store/model_journal.h", kCommands},
    // What daemons send each other of a model.
    {"server/store/replica_state.cc", kStore + Headers{"paramshard/v1/cluster.pb.h"}},
    {"server/store/seat.cc", kCommands},
    {"server/store/sequence.h", kCommands},
};

fs::path Repository() { return PARAMSHARD_SOURCE_DIR; }

bool IsOfCuda(const std::string& header) {
  return header == "cuda.h" || header == "cuda_runtime.h" || absl::StartsWith(header, "kernels/gpu/") ||
         absl::EndsWith(header, "_cuda.h");
}

// Among the client's files; those of trainers are theirs to choose.
bool MayKnowCuda(const std::string& file) {
  return absl::StartsWith(file, "client/cuda") || absl::StartsWith(file, "client/internal/cuda") ||
         file == "client/python/bindings/streams.cc";
}

TEST(ArchitectureTest, FoldersIncludeOnlyWhatTheyMay) {
  const std::vector<std::string> violations = FindViolations(Repository(), kRules);
  EXPECT_THAT(violations, IsEmpty()) << absl::StrJoin(violations, "\n");
}

TEST(ArchitectureTest, TrainersNeedNoProtobufAndNoGrpcHeader) {
  for (const std::string& header : ReachableHeaders(Repository(), "client/client.h")) {
    EXPECT_TRUE(absl::StartsWith(header, "client/") || absl::StartsWith(header, "proto/model/") ||
                absl::StartsWith(header, "kernels/") || absl::StartsWith(header, "absl/"))
        << "client/client.h reaches " << header;
  }
}

TEST(ArchitectureTest, TrainersNeedNoCudaButForItsOwnHeader) {
  for (const Include& include : ScanIncludes(Repository(), "client")) {
    EXPECT_TRUE(!IsOfCuda(include.header) || MayKnowCuda(include.file))
        << include.file << ":" << include.line << ": includes " << include.header;
  }
  for (const std::string& header : ReachableHeaders(Repository(), "client/client.h")) {
    EXPECT_FALSE(IsOfCuda(header)) << "client/client.h reaches " << header;
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

TEST_F(IncludesTest, PlantedViolationsAreFound) {
  Write("kernels/sum.h", "#include <vector>\n#include <sys/mman.h>\n#include \"kernels/add.h\"\n");
  Write("kernels/sum.cc", "#include \"kernels/sum.h\"\n\n  #  include \"server/store.h\"  // no\n");
  Write("client/client.cc", "#include <grpcpp/grpcpp.h>\n#include <xxhash.h>\n#include \"tests/fake.h\"\n");
  Write("client/readme.md", "#include \"server/store.h\"\n");

  EXPECT_THAT(FindViolations(root_, {{"kernels/", {"kernels/"}}, {"client/", {"client/", "grpcpp/"}}}),
              ElementsAre("client/client.cc:2: includes xxhash.h", "client/client.cc:3: includes tests/fake.h",
                          "kernels/sum.cc:3: includes server/store.h"));
}

TEST_F(IncludesTest, LaterRulesRefineEarlierOnes) {
  Write("server/store/store.cc", "#include <grpcpp/grpcpp.h>\n");
  Write("server/service.cc", "#include <grpcpp/grpcpp.h>\n");

  EXPECT_THAT(FindViolations(root_, {{"server/", {"grpcpp/"}}, {"server/store/", {"server/"}}}),
              ElementsAre("server/store/store.cc:1: includes grpcpp/grpcpp.h"));
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
