#include "server/mirrors/planes_receiver.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "common/model/layout_fingerprint.h"
#include "common/model/model_spec_proto.h"
#include "common/shared_memory/crc32c.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "paramshard/v1/mirror.grpc.pb.h"
#include "server/mirrors/plane_versions.h"
#include "server/mirrors/planes_chunk.h"
#include "tests/server/mirrors/version_of.h"
#include "tests/server/state/test_spec.h"
#include "tests/support/status_matchers.h"

namespace paramshard::server {
namespace {

using ::testing::HasSubstr;
using Messages = std::vector<v1::FetchPlanesResponse>;

// An owner that sends what the test says.
class FakeOwner final : public v1::MirrorService::Service {
 public:
  FakeOwner() {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }
  grpc::Status FetchPlanes(grpc::ServerContext* context, const v1::FetchPlanesRequest*,
                           grpc::ServerWriter<v1::FetchPlanesResponse>* writer) override {
    Answer answer;
    {
      // A call of the transfer before, which was cancelled, may come late.
      const absl::MutexLock lock(&mu_);
      answer = answer_;
    }
    for (const v1::FetchPlanesResponse& message : answer.messages) writer->Write(message);
    while (answer.hangs && !context->IsCancelled()) std::this_thread::yield();
    return answer.status;
  }
  struct Answer {
    Messages messages = {};
    bool hangs = false;
    grpc::Status status = {};
  };
  void Set(Answer answer) {
    const absl::MutexLock lock(&mu_);
    answer_ = std::move(answer);
  }
  PlanesOwner Owner(int first_rank, int ranks) const {
    const std::string address = absl::StrCat("127.0.0.1:", port_);
    return {.address = address,
            .channel = grpc::CreateChannel(address, grpc::InsecureChannelCredentials()),
            .first_rank = first_rank,
            .ranks = ranks};
  }

 private:
  absl::Mutex mu_;
  Answer answer_ ABSL_GUARDED_BY(mu_);
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

class PlanesReceiverTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_OK_AND_ASSIGN(ModelSpec spec,
                         ParseModelSpec(MakeSpec("m", {MakeUnit("u", {MakeParameter("w", {1200, 512})})})));
    Layout layout(std::move(spec), 2);
    const uint64_t fingerprint = LayoutFingerprint(layout);
    ASSERT_OK_AND_ASSIGN(model_, MirroredModel::Create(std::move(layout), 1, fingerprint, {device_.get()}, {}));
    for (int rank = 0; rank < 2; ++rank) owners_[rank].Set({.messages = MessagesOf(rank)});
  }

  static char ByteAt(int rank, int64_t offset) { return static_cast<char>(rank * 31 + offset * 7 + offset / 253); }
  // Messages of a rank's owner.
  Messages MessagesOf(int rank) const {
    const int64_t bytes = model_->staging(rank).size_bytes();
    Messages messages(1);
    *messages[0].mutable_begin()->mutable_version() = ToProto(VersionOf(5));
    messages[0].mutable_begin()->set_reader_data("of version 5");
    auto& planes = *messages[0].mutable_begin()->add_ranks();
    planes.set_rank(rank);
    planes.set_bytes(bytes);
    PlanesHash hash;
    for (int64_t offset = 0; offset < bytes; offset += kPlanesChunkBytes) {
      auto& chunk = *messages.emplace_back().mutable_chunk();
      chunk.set_rank(rank);
      chunk.set_offset(offset);
      for (int64_t i = offset; i < std::min(bytes, offset + kPlanesChunkBytes); ++i) {
        chunk.mutable_data()->push_back(ByteAt(rank, i));
      }
      chunk.set_crc32c(wire::Crc32c(chunk.data()));
      hash.Add(offset, absl::MakeConstSpan(reinterpret_cast<const uint8_t*>(chunk.data().data()), chunk.data().size()));
    }
    auto& digest = *messages.emplace_back().mutable_end()->add_digests();
    digest.set_rank(rank);
    digest.set_digest(hash.digest());
    return messages;
  }

  static wire::PublishedVersion Wanted() {
    wire::PublishedVersion version = VersionOf(5);
    version.SetReaderData("of version 5");
    return version;
  }
  absl::StatusOr<wire::PublishedVersion> Receive() {
    model_->BeginStaging();
    return receiver_.Receive({owners_[0].Owner(0, 1), owners_[1].Owner(1, 1)}, VersionOf(5), *model_);
  }
  auto IsDamaged(const std::string& text) { return StatusIs(absl::StatusCode::kDataLoss, HasSubstr(text)); }

  const std::unique_ptr<ComputeDevice> device_ = MakeCpuDevice(0);
  std::shared_ptr<MirroredModel> model_;
  FakeOwner owners_[2];
  PlanesReceiver receiver_;
};

TEST_F(PlanesReceiverTest, PlanesOfAllOwnersAreStaged) {
  EXPECT_GT(MessagesOf(0).size(), 3);  // several chunks
  EXPECT_THAT(Receive(), IsOkAndHolds(Wanted()));
  for (int rank = 0; rank < 2; ++rank) {
    const Memory& staging = model_->staging(rank);
    for (int64_t i = 0; i < staging.size_bytes(); ++i) {
      ASSERT_EQ(static_cast<char>(staging.data()[i]), ByteAt(rank, i)) << rank << ": " << i;
    }
  }
}

TEST_F(PlanesReceiverTest, DamageIsFound) {
  const Messages whole = MessagesOf(1);
  const auto receive = [&](const std::function<void(Messages&)>& damage) {
    Messages sent = whole;
    damage(sent);
    owners_[1].Set({.messages = std::move(sent)});
    return Receive();
  };
  EXPECT_THAT(receive([](Messages& sent) { sent[1].mutable_chunk()->mutable_data()->at(3) ^= 1; }),
              IsDamaged("the checksum of rank 1 at byte 0 is wrong"));
  EXPECT_THAT(receive([](Messages& sent) { std::swap(sent[1], sent[2]); }),
              IsDamaged("want rank 1 from byte 0 on, got byte 1048576"));
  EXPECT_THAT(receive([](Messages& sent) { sent.erase(sent.end() - 2); }), IsDamaged("rank 1 is not whole"));
  EXPECT_THAT(receive([](Messages& sent) { sent.pop_back(); }), IsDamaged("the transfer ended before its end message"));
  EXPECT_THAT(
      receive([](Messages& sent) { sent.back().mutable_end()->mutable_digests(0)->mutable_digest()->at(0) ^= 1; }),
      IsDamaged("the digest of rank 1 is wrong"));
  EXPECT_THAT(receive([](Messages& sent) { sent[1].mutable_chunk()->mutable_data()->pop_back(); }),
              IsDamaged("want a chunk of 1048576 bytes, got 1048575"));
  EXPECT_THAT(receive([](Messages& sent) { sent[0].mutable_begin()->mutable_version()->set_commit_number(6); }),
              IsDamaged("want commit 5 once, got commit 6"));
  EXPECT_THAT(receive([](Messages& sent) { sent[0].mutable_begin()->mutable_ranks(0)->set_rank(0); }),
              IsDamaged("want ranks 1 to 1, got rank 0"));
  EXPECT_THAT(receive([](Messages& sent) { sent[0].mutable_begin()->mutable_version()->set_version(4); }),
              IsDamaged("different versions"));
  const auto end_first = [](Messages& sent) {
    v1::FetchPlanesResponse end;
    end.mutable_end();
    sent.insert(sent.begin(), end);
  };
  EXPECT_THAT(receive(end_first), IsDamaged("want 0 digests once, got 0"));
  const auto nothing_more = [](Messages& sent) {
    v1::FetchPlanesResponse::Chunk& chunk = *sent.emplace(sent.end() - 1)->mutable_chunk();
    chunk.set_rank(1);
    chunk.set_offset(sent[0].begin().ranks(0).bytes());
    chunk.set_crc32c(wire::Crc32c(""));
  };
  EXPECT_THAT(receive(nothing_more), IsDamaged("want a chunk of 0 bytes, got 0"));
  EXPECT_THAT(receive([](Messages& sent) { sent[0].mutable_begin()->set_reader_data(std::string(4097, 'x')); }),
              IsDamaged("want at most 4096 bytes of data, got 4097"));
  EXPECT_THAT(receive([](Messages&) {}), IsOkAndHolds(Wanted()));
}

// The other owner would send for ever.
TEST_F(PlanesReceiverTest, TheFirstErrorEndsAllTransfers) {
  owners_[0].Set({.hangs = true});
  owners_[1].Set({.status = {grpc::StatusCode::ABORTED, "want commit 5, the model is at commit 6"}});
  EXPECT_THAT(Receive(), StatusIs(absl::StatusCode::kAborted, HasSubstr("the model is at commit 6")));
}

TEST_F(PlanesReceiverTest, AStopEndsATransfer) {
  owners_[0].Set({.hangs = true});
  std::thread stopping([&] { receiver_.Stop(); });
  EXPECT_THAT(Receive(), StatusIs(absl::StatusCode::kCancelled, HasSubstr("the mirror stops")));
  stopping.join();
}

}  // namespace
}  // namespace paramshard::server
