#include "server/world/stream_writer.h"

#include <memory>
#include <string>

#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "paramshard/v1/cluster.pb.h"
#include "tests/support/status_matchers.h"

namespace paramshard::server {
namespace {

// Stream whose other end does not read before it is released.
class HeldStream {
 public:
  bool Write(const v1::JoinResponse&) {
    is_writing.Notify();
    release.WaitForNotification();
    return false;
  }

  absl::Notification is_writing;
  absl::Notification release;
};

v1::JoinResponse Refusal(size_t size_bytes) {
  v1::JoinResponse response;
  response.mutable_refusal()->set_model(std::string(size_bytes, 'm'));
  return response;
}

TEST(StreamWriterTest, AStreamThatNobodyReadsIsEndedBeforeItsQueueTakesAllMemory) {
  using Writer = StreamWriter<HeldStream, v1::JoinResponse>;
  HeldStream stream;
  int ends = 0;
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<Writer> writer, Writer::Start(&stream, [&] { ++ends; }));
  writer->Write(Refusal(1));
  stream.is_writing.WaitForNotification();
  constexpr size_t kPiece = Writer::kMostBytes / 4;
  for (int i = 0; i < 3; ++i) writer->Write(Refusal(kPiece));
  EXPECT_EQ(ends, 0);
  for (int i = 0; i < 3; ++i) writer->Write(Refusal(kPiece));
  EXPECT_EQ(ends, 1);
  stream.release.Notify();
}

}  // namespace
}  // namespace paramshard::server
