#include "client/internal/grpc_status.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"

namespace paramshard::internal {
namespace {

using ::testing::HasSubstr;

TEST(GrpcStatusTest, CodesAndWordsAreTheSame) {
  EXPECT_OK(FromGrpc(grpc::Status::OK));
  EXPECT_THAT(FromGrpc({grpc::StatusCode::DATA_LOSS, "torn"}), StatusIs(absl::StatusCode::kDataLoss, "torn"));
  EXPECT_THAT(FromGrpc({grpc::StatusCode::CANCELLED, "detached"}), StatusIs(absl::StatusCode::kCancelled, "detached"));
}

// Trainers come again for what passes.
TEST(GrpcStatusTest, WhatAServerCancelsWithoutAWordPasses) {
  for (const char* const words : {"", "CANCELLED", "Cancelled"}) {
    EXPECT_THAT(FromGrpc({grpc::StatusCode::CANCELLED, words}),
                StatusIs(absl::StatusCode::kUnavailable, HasSubstr("the daemon cancelled the call")));
  }
}

}  // namespace
}  // namespace paramshard::internal
