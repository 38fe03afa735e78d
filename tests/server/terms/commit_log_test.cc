#include "server/terms/commit_log.h"

#include <optional>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace paramshard::server {
namespace {

TEST(CommitLogTest, BeginsWithNothing) {
  const CommitLog log(2);
  EXPECT_EQ(log.numbers().commit_number, 0);
  EXPECT_EQ(log.numbers().version, 0);
  EXPECT_EQ(log.last_answer(), std::nullopt);
  EXPECT_EQ(log.client_state(1), "");
}

TEST(CommitLogTest, AppliedAndSkippedCommitsAreCountedApart) {
  CommitLog log(1);
  log.Answer(/*applied=*/true, 1.5, 0, {"a"});
  const CommitAnswer answer = log.Answer(/*applied=*/false, 2.5, 3, {"b"});
  EXPECT_EQ(answer.commit_number, 2);
  EXPECT_EQ(answer.version, 1);
  EXPECT_TRUE(answer.skipped);
  EXPECT_EQ(answer.gradient_norm, 2.5);
  EXPECT_EQ(answer.non_finite_count, 3);
  EXPECT_EQ(log.numbers().commit_number, 2);
  EXPECT_EQ(log.numbers().version, 1);
  EXPECT_EQ(log.numbers().skipped, 1);
  EXPECT_EQ(log.last_answer(), answer);
}

TEST(CommitLogTest, EveryRankGetsItsOwnStateOfTheLastCommit) {
  CommitLog log(2);
  log.Answer(true, 0, 0, {"zero", "one"});
  EXPECT_EQ(log.client_state(0), "zero");
  EXPECT_EQ(log.client_state(1), "one");
  log.Answer(true, 0, 0, {"", "two"});
  EXPECT_EQ(log.client_state(0), "");
  EXPECT_EQ(log.client_state(1), "two");
}

TEST(CommitLogTest, AnotherLogGoesOnFromItsState) {
  CommitLog log(2);
  log.Answer(true, 1.5, 0, {"a", "b"});
  const CommitAnswer last = log.Answer(false, 2.5, 3, {"c", "d"}, std::nullopt, "for readers");
  CommitLog other(2);
  other.Restore(log.state());
  EXPECT_EQ(other.numbers().commit_number, 2);
  EXPECT_EQ(other.numbers().version, 1);
  EXPECT_EQ(other.numbers().skipped, 1);
  EXPECT_EQ(other.last_answer(), last);
  EXPECT_EQ(other.client_state(0), "c");
  EXPECT_EQ(other.client_state(1), "d");
  EXPECT_EQ(other.reader_data(), "for readers");
}

TEST(CommitLogTest, WhatAStateLeavesOutIsForgotten) {
  CommitLog log(1);
  log.Answer(true, 0, 0, {"a"}, std::nullopt, "for readers");
  log.Restore({.numbers = {.commit_number = 10, .version = 7}});
  EXPECT_EQ(log.numbers().commit_number, 10);
  EXPECT_EQ(log.numbers().version, 7);
  EXPECT_EQ(log.last_answer(), std::nullopt);
  EXPECT_EQ(log.client_state(0), "");
  EXPECT_EQ(log.reader_data(), "");
  EXPECT_EQ(log.Answer(true, 0, 0, {""}).commit_number, 11);
}

}  // namespace
}  // namespace paramshard::server
