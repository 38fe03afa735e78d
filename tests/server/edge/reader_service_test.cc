#include "server/edge/reader_service.h"

#include <sys/mman.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/shared_memory/publication_page.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "paramshard/v1/reader.grpc.pb.h"
#include "tests/server/edge/daemon_client.h"
#include "tests/server/state/test_spec.h"
#include "tests/support/status_matchers.h"

namespace paramshard::server {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using wire::CompanionKind;
using wire::Gate;

v1::ModelSpec Spec() { return MakeSpec("m", {MakeUnit("u", {MakeParameter("w", {8, 4})})}); }

// Messages and descriptors that OpenReader passes over the companion socket.
struct ReaderMemory {
  wire::CompanionReader pages;
  std::vector<wire::FileDescriptor> page_fds;
  std::vector<wire::CompanionPlanes> planes;
  std::vector<wire::FileDescriptor> planes_fds;
};

class ReaderServiceTest : public DaemonTestBase {
 protected:
  static absl::StatusOr<v1::OpenReaderResponse> Open(const DaemonClient& client, const std::string& model,
                                                     const std::string& name = "eval") {
    const auto stub = v1::ReaderService::NewStub(client.channel());
    v1::OpenReaderRequest request;
    request.set_model(model);
    request.set_name(name);
    return client.Call(*stub, &v1::ReaderService::Stub::OpenReader, request);
  }
  static ReaderMemory Receive(const DaemonClient& client) {
    ReaderMemory memory;
    auto packet = client.companion().Receive();
    EXPECT_OK(packet);
    memory.pages = *wire::ParseCompanionPacket<wire::CompanionReader>(*packet, CompanionKind::kReader, 2);
    memory.page_fds = std::move(packet->fds);
    for (int64_t rank = 0; rank < memory.pages.ranks; ++rank) {
      packet = client.companion().Receive();
      EXPECT_OK(packet);
      memory.planes.push_back(*wire::ParseCompanionPacket<wire::CompanionPlanes>(*packet, CompanionKind::kPlanes, 1));
      memory.planes_fds.push_back(std::move(packet->fds[0]));
    }
    return memory;
  }
};

// A mapping of a whole descriptor.
class Mapping {
 public:
  Mapping(int fd, int64_t bytes, int access) : bytes_(bytes), data_(mmap(nullptr, bytes, access, MAP_SHARED, fd, 0)) {}
  ~Mapping() {
    if (valid()) munmap(data_, bytes_);
  }
  Mapping(const Mapping&) = delete;
  bool valid() const { return data_ != MAP_FAILED; }
  void* data() const { return data_; }

 private:
  const int64_t bytes_;
  void* const data_;
};

TEST_F(ReaderServiceTest, AReaderGetsThePagesAndThePlanesOfAllRanks) {
  ASSERT_OK(client_->CreateModel(Spec()));
  ASSERT_OK_AND_ASSIGN(const v1::OpenReaderResponse opened, Open(*client_, "m"));
  EXPECT_EQ(opened.shard_size(), 2);
  EXPECT_EQ(opened.spec().name(), "m");
  EXPECT_EQ(opened.gpu_uuids_size(), 2);
  const ReaderMemory memory = Receive(*client_);
  ASSERT_EQ(memory.planes.size(), 2);
  EXPECT_EQ(memory.pages.publication_bytes, wire::PublicationPage::kBytes);
  EXPECT_EQ(memory.pages.lease_bytes, wire::LeasePage::kBytes);
  const Mapping page(memory.page_fds[0].get(), memory.pages.publication_bytes, PROT_READ);
  ASSERT_TRUE(page.valid());
  const wire::PublicationPage publication(page.data());
  EXPECT_EQ(publication.gate().state, Gate::State::kValid);
  EXPECT_EQ(publication.version().commit_number, 0);
}

TEST_F(ReaderServiceTest, AReaderCanWriteItsLeasePageAlone) {
  ASSERT_OK(client_->CreateModel(Spec()));
  ASSERT_OK(Open(*client_, "m"));
  const ReaderMemory memory = Receive(*client_);
  constexpr int kWrite = PROT_READ | PROT_WRITE;
  EXPECT_FALSE(Mapping(memory.page_fds[0].get(), memory.pages.publication_bytes, kWrite).valid());
  EXPECT_TRUE(Mapping(memory.page_fds[1].get(), memory.pages.lease_bytes, kWrite).valid());
  for (size_t rank = 0; rank < memory.planes.size(); ++rank) {
    EXPECT_FALSE(Mapping(memory.planes_fds[rank].get(), memory.planes[rank].bytes, kWrite).valid());
  }
}

TEST_F(ReaderServiceTest, BadCallsAreRefused) {
  EXPECT_THAT(Open(*client_, "m"), StatusIs(absl::StatusCode::kNotFound, HasSubstr("m")));
  ASSERT_OK(client_->CreateModel(Spec()));
  EXPECT_THAT(Open(*client_, "m", std::string(65, 'x')),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("want a name of at most 64 bytes, got 65")));
  ASSERT_OK(Open(*client_, "m"));
  EXPECT_THAT(Open(*client_, "m"), StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("has a reader already")));
}

TEST_F(ReaderServiceTest, TooManyReadersNameTheModel) {
  ASSERT_OK(client_->CreateModel(Spec()));
  std::vector<std::unique_ptr<DaemonClient>> readers;
  for (int i = 0; i < Publication::kMostReaders; ++i) {
    readers.push_back(std::make_unique<DaemonClient>(socket_dir()));
    ASSERT_OK(Open(*readers.back(), "m"));
  }
  EXPECT_THAT(Open(*client_, "m"),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("read m: want at most 256 readers")));
}

TEST(CheckMayMapTest, AnotherUserReadsGpusOnlyIfTrusted) {
  const uid_t other = geteuid() + 1;
  for (const bool on_gpus : {false, true}) {
    for (const bool trusts : {false, true}) {
      for (const uid_t user : {geteuid(), uid_t{0}}) EXPECT_OK(CheckMayMap("m", on_gpus, user, trusts));
      const absl::Status status = CheckMayMap("m", on_gpus, other, trusts);
      if (!on_gpus || trusts) {
        EXPECT_OK(status);
      } else {
        EXPECT_THAT(status, StatusIs(absl::StatusCode::kFailedPrecondition,
                                     AllOf(HasSubstr(absl::StrCat("read m: user ", other, " is not the daemon's")),
                                           HasSubstr("--trust-gpu-readers=on"))));
      }
    }
  }
}

TEST(CheckIsWholeTest, AWholeShardGroupIsWanted) {
  ASSERT_OK_AND_ASSIGN(const Topology spans, Topology::Create({.device_counts = {2, 2}, .node = 1}, 4));
  EXPECT_THAT(CheckIsWhole("m", spans),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("read m: this daemon has ranks 2 to 3 of 4")));
  ASSERT_OK_AND_ASSIGN(const Topology replicas, Topology::Create({.device_counts = {2, 2}, .node = 1}, 2));
  EXPECT_OK(CheckIsWhole("m", replicas));
}

TEST_F(ReaderServiceTest, ADeletedModelEndsItsPage) {
  ASSERT_OK(client_->CreateModel(Spec()));
  DaemonClient reader(socket_dir());
  ASSERT_OK(Open(reader, "m"));
  const ReaderMemory memory = Receive(reader);
  const Mapping page(memory.page_fds[0].get(), memory.pages.publication_bytes, PROT_READ);
  v1::DeleteModelRequest request;
  request.set_model("m");
  ASSERT_OK(client_->Call(client_->trainer(), &v1::TrainerService::Stub::DeleteModel, request));
  EXPECT_EQ(wire::PublicationPage(page.data()).gate().state, Gate::State::kEnded);
}

}  // namespace
}  // namespace paramshard::server
