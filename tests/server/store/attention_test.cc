#include "server/store/attention.h"

#include <sys/mman.h>

#include <thread>

#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "proto/wire/words.h"

namespace paramshard::server {
namespace {

using For = Attention::For;

// Nothing here takes so long: a wait that does not end shows.
constexpr absl::Duration kNever = absl::Minutes(5);

class AttentionTest : public ::testing::Test {
 protected:
  AttentionTest()
      : page_(
            mmap(nullptr, wire::Words::SizeBytes(kCounts), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)),
        words_(page_, kCounts) {}
  ~AttentionTest() override { munmap(page_, wire::Words::SizeBytes(kCounts)); }

  static constexpr wire::WordsCounts kCounts{.slots = 1, .ranks = 1, .gradient_slots = 1};
  void* const page_;
  const wire::Words words_;
};

TEST_F(AttentionTest, ARingAfterTheLookEndsTheWaitAtOnce) {
  for (const bool on_gpu : {false, true}) {
    Attention attention(words_, on_gpu);
    attention.Look();
    words_.Ring();
    attention.Wait(For::kNothing, absl::Now() + kNever);
  }
}

TEST_F(AttentionTest, ARingWakesASleeper) {
  Attention attention(words_, /*on_gpu=*/false);
  attention.Look();
  std::thread trainer([&] {
    while (words_.daemon_waits().value.load() == 0) std::this_thread::yield();
    words_.Ring();
  });
  attention.Wait(For::kNothing, absl::Now() + kNever);
  trainer.join();
  EXPECT_EQ(words_.daemon_waits().value.load(), 0);
}

TEST_F(AttentionTest, TheDeadlineEndsTheWait) {
  Attention attention(words_, /*on_gpu=*/false);
  attention.Look();
  const absl::Time deadline = absl::Now() + absl::Milliseconds(5);
  while (absl::Now() < deadline) attention.Wait(For::kWord, deadline);
}

TEST_F(AttentionTest, WhatAGpuWritesIsLookedForWithoutARing) {
  Attention attention(words_, /*on_gpu=*/true);
  for (const For expected : {For::kWord, For::kCopies}) {
    attention.Look();
    attention.Wait(expected, absl::Now() + kNever);  // nothing has happened for long
    attention.Renew();
    attention.Look();
    attention.Wait(expected, absl::Now() + kNever);  // something just has
  }
}

TEST_F(AttentionTest, JustAfterAnEventNothingSleeps) {
  Attention attention(words_, /*on_gpu=*/true);
  attention.Renew();
  attention.Look();
  attention.Wait(For::kNothing, absl::Now() + kNever);
  EXPECT_EQ(words_.doorbell().value.load(), 0);
}

}  // namespace
}  // namespace paramshard::server
