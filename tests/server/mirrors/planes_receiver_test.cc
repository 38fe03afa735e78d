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
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/model/layout_fingerprint.h"
#include "common/model/model_spec_proto.h"
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

using ::testing::AllOf;
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
    for (const v1::FetchPlanesResponse& message : answer.messages) {
      writer->Write(message);
      if (answer.pause > absl::ZeroDuration()) absl::SleepFor(answer.pause);
    }
    while (answer.hangs && !context->IsCancelled()) std::this_thread::yield();
    return answer.status;
  }
  struct Answer {
    Messages messages = {};
    bool hangs = false;
    absl::Duration pause = absl::ZeroDuration();  // after each message
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
                         ParseModelSpec(MakeSpec("m", {MakeUnit("u", {MakeParameter("w", {2400, 512})})})));
    Layout layout(std::move(spec), 2);
    const uint64_t fingerprint = LayoutFingerprint(layout);
    ASSERT_OK_AND_ASSIGN(model_, MirroredModel::Create(std::move(layout), 1, fingerprint, {device_.get()}, {}));
    for (int rank = 0; rank < 2; ++rank) owners_[rank].Set({.messages = MessagesOf(rank)});
  }

  static char ByteAt(int rank, int64_t offset) { return static_cast<char>(rank * 31 + offset * 7 + offset / 253); }
  // Messages of a rank's owner.
  Messages MessagesOf(int rank) const {
    const auto bytes = static_cast<int64_t>(model_->staging(rank).size());
    Messages messages(1);
    *messages[0].mutable_begin()->mutable_version() = ToProto(VersionOf(5));
    messages[0].mutable_begin()->set_reader_data("of version 5");
    auto& planes = *messages[0].mutable_begin()->add_ranks();
    planes.set_rank(rank);
    planes.set_bytes(bytes);
    PlanesHash hash;
    for (int64_t offset = 0; offset < bytes; offset += kPlanesChunkBytes) {
      std::string& chunk = *messages.emplace_back().mutable_planes();
      for (int64_t i = offset; i < std::min(bytes, offset + kPlanesChunkBytes); ++i) chunk.push_back(ByteAt(rank, i));
      hash.Add(offset, absl::MakeConstSpan(reinterpret_cast<const uint8_t*>(chunk.data()), chunk.size()));
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
  absl::StatusOr<wire::PublishedVersion> Receive() { return Receive(receiver_); }
  absl::StatusOr<wire::PublishedVersion> Receive(PlanesReceiver& receiver) {
    model_->BeginStaging();
    return receiver.Receive({owners_[0].Owner(0, 1), owners_[1].Owner(1, 1)}, VersionOf(5), *model_);
  }
  auto IsDamaged(const std::string& text) { return StatusIs(absl::StatusCode::kDataLoss, HasSubstr(text)); }

  const std::unique_ptr<ComputeDevice> device_ = MakeCpuDevice(0);
  std::shared_ptr<MirroredModel> model_;
  FakeOwner owners_[2];
  MetricRegistry metrics_;
  PlanesReceiver receiver_{{}, &metrics_};
};

TEST_F(PlanesReceiverTest, PlanesOfAllOwnersAreStaged) {
  EXPECT_GT(MessagesOf(0).size(), 3);  // several chunks
  EXPECT_THAT(Receive(), IsOkAndHolds(Wanted()));
  const auto bytes = static_cast<int64_t>(model_->staging(0).size() + model_->staging(1).size());
  EXPECT_GT(metrics_.count(Metric::kMirrorReceivedBytes, 0), bytes);
  for (const MirrorPhase phase : {MirrorPhase::kWait, MirrorPhase::kTransfer}) {
    EXPECT_GT(metrics_.sum_nanoseconds(Metric::kMirrorVersion, static_cast<int>(phase)), 0);
  }
  for (int rank = 0; rank < 2; ++rank) {
    const absl::Span<const uint8_t> staging = model_->staging(rank);
    for (size_t i = 0; i < staging.size(); ++i) {
      ASSERT_EQ(static_cast<char>(staging[i]), ByteAt(rank, i)) << rank << ": " << i;
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
  EXPECT_THAT(receive([](Messages& sent) { sent[1].mutable_planes()->at(3) ^= 1; }),
              IsDamaged("the digest of rank 1 is wrong"));
  EXPECT_THAT(receive([](Messages& sent) { sent[1].mutable_planes()->swap(*sent[2].mutable_planes()); }),
              IsDamaged("the digest of rank 1 is wrong"));
  EXPECT_THAT(receive([](Messages& sent) { sent.erase(sent.begin() + 1); }),
              IsDamaged("want 1048576 bytes of rank 1 from byte 1048576 on, got a message of"));
  EXPECT_THAT(receive([](Messages& sent) { sent.erase(sent.end() - 2); }), IsDamaged("the end came before all planes"));
  EXPECT_THAT(receive([](Messages& sent) { sent.pop_back(); }), IsDamaged("the transfer ended before its end message"));
  EXPECT_THAT(
      receive([](Messages& sent) { sent.back().mutable_end()->mutable_digests(0)->mutable_digest()->at(0) ^= 1; }),
      IsDamaged("the digest of rank 1 is wrong"));
  EXPECT_THAT(receive([](Messages& sent) { sent.back().mutable_end()->add_digests(); }),
              IsDamaged("want 1 digests, got 2"));
  EXPECT_THAT(receive([](Messages& sent) { sent[1].mutable_planes()->pop_back(); }),
              IsDamaged("want 1048576 bytes of rank 1 from byte 0 on, got a message of 1048579"));
  EXPECT_THAT(receive([](Messages& sent) { sent.insert(sent.end() - 1, sent[1]); }),
              IsDamaged("got more than all planes"));
  EXPECT_THAT(receive([](Messages& sent) { sent.insert(sent.begin() + 2, v1::FetchPlanesResponse()); }),
              IsDamaged("got an empty message"));
  EXPECT_THAT(receive([](Messages& sent) { sent[0].mutable_begin()->mutable_version()->set_commit_number(6); }),
              IsDamaged("want commit 5 once, got commit 6"));
  EXPECT_THAT(receive([](Messages& sent) { sent[0].mutable_begin()->mutable_ranks(0)->set_rank(0); }),
              IsDamaged("of rank 1, got"));
  EXPECT_THAT(receive([](Messages& sent) { sent[0].mutable_begin()->mutable_version()->set_version(4); }),
              IsDamaged("different versions"));
  const auto end_first = [](Messages& sent) {
    v1::FetchPlanesResponse end;
    end.mutable_end();
    sent.insert(sent.begin(), end);
  };
  EXPECT_THAT(receive(end_first), IsDamaged("the end came before all planes"));
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

// It has sent all but the end; with less time it is late at once.
TEST_F(PlanesReceiverTest, AnOwnerThatStandsStillInTheMiddleIsLate) {
  Messages most = MessagesOf(1);
  most.pop_back();
  owners_[1].Set({.messages = most, .hangs = true});
  PlanesReceiver receiver({.longest = absl::Milliseconds(50), .bytes_per_second = 1 << 30});
  EXPECT_THAT(Receive(receiver),
              StatusIs(absl::StatusCode::kUnavailable,
                       AllOf(HasSubstr("127.0.0.1:"), HasSubstr("it sends less than 1073741824 bytes/s for 50ms"))));
}

// A message now and then does not keep a transfer up.
TEST_F(PlanesReceiverTest, AnOwnerThatTricklesIsLate) {
  owners_[1].Set({.messages = MessagesOf(1), .pause = absl::Milliseconds(700)});
  PlanesReceiver receiver({.longest = absl::Seconds(1), .bytes_per_second = int64_t{1} << 40});
  EXPECT_THAT(Receive(receiver), StatusIs(absl::StatusCode::kUnavailable, HasSubstr("it sends less than")));
  PlanesReceiver patient({.longest = absl::Hours(1), .bytes_per_second = 1});
  owners_[1].Set({.messages = MessagesOf(1)});
  EXPECT_THAT(Receive(patient), IsOkAndHolds(Wanted()));
}

// The owner has cut a mirror off that takes its planes too slowly: it has not waited for a commit in vain.
TEST_F(PlanesReceiverTest, ATimeoutOfTheOwnerInTheMiddleIsNoMiss) {
  const Messages all = MessagesOf(1);
  owners_[1].Set({.messages = {all[0], all[1]},
                  .status = {grpc::StatusCode::DEADLINE_EXCEEDED, "FetchPlanes: timed out waiting for the caller"}});
  EXPECT_THAT(Receive(), StatusIs(absl::StatusCode::kUnavailable, HasSubstr("timed out waiting for the caller")));
  owners_[1].Set({.status = {grpc::StatusCode::DEADLINE_EXCEEDED, "timed out waiting for commit 5"}});
  EXPECT_THAT(Receive(), StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("waiting for commit 5")));
}

TEST_F(PlanesReceiverTest, AStopEndsATransfer) {
  owners_[0].Set({.hangs = true});
  std::thread stopping([&] { receiver_.Stop(); });
  EXPECT_THAT(Receive(), StatusIs(absl::StatusCode::kCancelled, HasSubstr("the mirror stops")));
  stopping.join();
}

}  // namespace
}  // namespace paramshard::server
