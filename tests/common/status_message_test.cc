#include "common/rpc/status.h"

#include "gtest/gtest.h"

namespace paramshard {
namespace {

TEST(StatusMessageTest, EveryErrorComesBack) {
  for (int code = 1; code <= 16; ++code) {
    const absl::Status status(static_cast<absl::StatusCode>(code), "push w: want 8 x 4, got 4 x 4");
    EXPECT_EQ(ReasonFromProto(StatusToProto(status)), status);
  }
}

TEST(StatusMessageTest, WhatIsNoErrorIsUnknown) {
  for (int code : {-1, 0, 17, 1 << 30}) {
    v1::Status message;
    message.set_code(code);
    message.set_text("why");
    EXPECT_EQ(ReasonFromProto(message), absl::UnknownError("why")) << code;
  }
}

}  // namespace
}  // namespace paramshard
