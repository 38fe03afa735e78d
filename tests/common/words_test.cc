#include "common/shared_memory/words.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/common/page.h"

namespace paramshard::wire {
namespace {

constexpr WordsCounts kCounts{.slots = 3, .ranks = 2, .gradient_slots = 2};

std::vector<Word*> DaemonWords(const Words& words) {
  std::vector<Word*> found{&words.committed()};
  for (int slot = 0; slot < words.counts().slots; ++slot) {
    for (int rank = 0; rank < words.counts().ranks; ++rank) found.push_back(&words.ready(slot, rank));
  }
  for (int slot = 0; slot < words.counts().gradient_slots; ++slot) found.push_back(&words.drained(slot));
  return found;
}

std::vector<Word*> OtherWords(const Words& words) {
  std::vector<Word*> found{&words.daemon_waits(), &words.client_waits(), &words.doorbell(), &words.ring_head(),
                           &words.ring_tail()};
  for (int slot = 0; slot < words.counts().slots; ++slot) found.push_back(&words.released(slot));
  for (int slot = 0; slot < words.counts().gradient_slots; ++slot) found.push_back(&words.filled(slot));
  return found;
}

std::vector<uint32_t> Values(const std::vector<Word*>& words) {
  std::vector<uint32_t> values;
  for (const Word* word : words) values.push_back(word->value.load());
  return values;
}

// Returns begin and size of every part of the page.
std::vector<std::pair<const void*, size_t>> Parts(const Words& words) {
  std::vector<std::pair<const void*, size_t>> parts{
      {&words.status(), sizeof(Word)}, {&words.ending(), sizeof(Word)}, {words.ring_bytes(), kRingBytes}};
  for (const auto& some : {DaemonWords(words), OtherWords(words)}) {
    for (const Word* word : some) parts.emplace_back(word, sizeof(Word));
  }
  for (int record = 0; record < kCommitRecords; ++record) {
    parts.emplace_back(&words.commit_record(record), sizeof(CommitRecord));
  }
  return parts;
}

TEST(WordsTest, NoTwoPartsOverlapWhateverTheCounts) {
  constexpr uint32_t kSeed = 1;
  SCOPED_TRACE(absl::StrCat("seed ", kSeed));
  std::mt19937 random(kSeed);
  for (int i = 0; i < 100; ++i) {
    const WordsCounts counts{.slots = static_cast<int>(random() % 66),
                             .ranks = 1 + static_cast<int>(random() % 64),
                             .gradient_slots = static_cast<int>(random() % 65)};
    SCOPED_TRACE(
        absl::StrCat(counts.slots, " slots, ", counts.ranks, " ranks, ", counts.gradient_slots, " gradient slots"));
    const Page page(counts);
    // Every byte is taken once: a byte in two parts would be marked twice.
    std::vector<uint8_t> taken(page.size_bytes());
    for (const auto& [begin, size] : Parts(page.words())) {
      const size_t offset = static_cast<const uint8_t*>(begin) - page.bytes();
      ASSERT_LE(offset + size, taken.size());
      for (size_t at = offset; at < offset + size; ++at) ASSERT_EQ(taken[at]++, 0) << "byte " << at;
    }
    // Only the two texts of the end are left.
    size_t free_bytes = 0;
    for (const uint8_t mark : taken) free_bytes += mark == 0;
    EXPECT_EQ(free_bytes, 2 * kEndTextBytes);
  }
}

TEST(WordsTest, EveryWordHasACacheLineOfItsOwn) {
  const Page page(kCounts);
  for (const auto& [begin, size] : Parts(page.words())) {
    EXPECT_EQ((static_cast<const uint8_t*>(begin) - page.bytes()) % kCacheLineBytes, 0u);
  }
}

TEST(WordsTest, TwoViewsOfOnePageAgree) {
  const Page page(kCounts);
  const Words other(page.bytes(), kCounts);
  page.words().ready(2, 1).value = 7;
  page.words().filled(1).value = 9;
  page.words().commit_record(6).version = 5;
  EXPECT_EQ(other.ready(2, 1).value, 7u);
  EXPECT_EQ(other.filled(1).value, 9u);
  EXPECT_EQ(other.commit_record(6).version, 5);
  EXPECT_EQ(&other.commit_record(6), &other.commit_record(6 + kCommitRecords));
}

TEST(WordsTest, NumbersCompareCyclically) {
  EXPECT_TRUE(Reached(0, 0));
  EXPECT_TRUE(Reached(5, 4));
  EXPECT_FALSE(Reached(4, 5));
  EXPECT_TRUE(Reached(1, 0xffffffffu));
  EXPECT_FALSE(Reached(0xffffffffu, 1));
  EXPECT_TRUE(Reached(0x7fffffffu, 0));
  EXPECT_FALSE(Reached(0x80000000u, 0));
}

TEST(WordsTest, AwaitReachedReturnsAtOnceForAWordThatIsFarEnough) {
  const Page page(kCounts);
  page.words().ready(0, 0).value = 3;
  EXPECT_TRUE(page.words().AwaitReached(page.words().ready(0, 0), 3, absl::ZeroDuration()));
  EXPECT_TRUE(page.words().AwaitReached(page.words().ready(0, 0), 2, absl::ZeroDuration()));
}

TEST(WordsTest, AwaitReachedGivesUpAtTheTimeout) {
  const Page page(kCounts);
  EXPECT_FALSE(page.words().AwaitReached(page.words().ready(0, 0), 1, absl::ZeroDuration()));
  EXPECT_EQ(page.words().client_waits().value, 0u);
}

TEST(WordsTest, AWaitThatNobodyEndsLastsAsLongAsItWasTold) {
  const Page page(kCounts);
  const absl::Duration timeout = absl::Milliseconds(20);
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_FALSE(page.words().AwaitReached(page.words().ready(0, 0), 1, timeout));
  EXPECT_GE(absl::FromChrono(std::chrono::steady_clock::now() - begin), timeout);
  EXPECT_EQ(page.words().client_waits().value, 0u);
}

// Counts from below 2^32 to above, with the waiter asleep between most steps.
TEST(WordsTest, AwaitReachedSeesEveryStepAcrossTheWrap) {
  constexpr uint32_t kFirst = 0xffffff00u;
  constexpr uint32_t kSteps = 0x200;
  const Page page(kCounts);
  const Words& words = page.words();
  words.ready(1, 1).value = kFirst;
  words.released(1).value = kFirst;
  std::thread trainer([&] {
    for (uint32_t step = 1; step <= kSteps; ++step) {
      ASSERT_TRUE(words.AwaitReached(words.ready(1, 1), kFirst + step, absl::Seconds(30))) << step;
      words.released(1).value = kFirst + step;
    }
  });
  for (uint32_t step = 1; step <= kSteps; ++step) {
    while (!Reached(words.released(1).value, kFirst + step - 1)) std::this_thread::yield();
    words.Publish(words.ready(1, 1), kFirst + step);
  }
  trainer.join();
  EXPECT_EQ(words.client_waits().value, 0u);
}

// --- The end ---

// Returns the daemon's words after an end.
std::vector<uint32_t> Moved(std::vector<uint32_t> values) {
  for (uint32_t& value : values) value += kFinishedStep;
  return values;
}

// A page whose words are all different, two of them about to wrap.
class EndTest : public testing::Test {
 protected:
  EndTest() : page_(kCounts) {
    uint32_t value = 0xfffffffeu;
    for (Word* word : DaemonWords(words())) word->value = value++;
    for (Word* word : OtherWords(words())) word->value = value++;
    before_ = Values(DaemonWords(words()));
  }

  const Words& words() const { return page_.words(); }
  void ExpectEnded(uint32_t code, const std::string& text) const {
    EXPECT_EQ(words().end_code(), code);
    EXPECT_EQ(words().EndText(), text);
    EXPECT_EQ(Values(DaemonWords(words())), Moved(before_));
  }

  const Page page_;
  std::vector<uint32_t> before_;
};

TEST_F(EndTest, MovesEveryDaemonWordAheadAndNoOther) {
  const std::vector<uint32_t> others = Values(OtherWords(words()));
  EXPECT_FALSE(words().ended());
  words().Finish(Side::kDaemon, 10, "rank 1 left");
  EXPECT_TRUE(words().ended());
  EXPECT_EQ(words().status().value, 10u) << "the code itself, for whoever knows no more";
  ExpectEnded(10, "rank 1 left");
  EXPECT_EQ(Values(OtherWords(words())), others);
}

TEST_F(EndTest, LeavesTheAnswersAndTheRing) {
  words().commit_record(2).version = 2;
  words().Finish(Side::kDaemon, 1, std::string(3 * kEndTextBytes, 'x'));
  words().Finish(Side::kClient, 1, std::string(3 * kEndTextBytes, 'x'));
  EXPECT_EQ(words().commit_record(2).version, 2);
  EXPECT_EQ(std::count(words().ring_bytes(), words().ring_bytes() + kRingBytes, 0), kRingBytes);
}

TEST_F(EndTest, TheFirstOneStaysAndNoWordMovesTwice) {
  words().Finish(Side::kClient, 4, "first");
  for (const Side side : {Side::kDaemon, Side::kClient, Side::kDaemon}) {
    words().Finish(side, 5, "second");
    ExpectEnded(4, "first");
  }
}

// Every state in which a daemon may be killed: a trainer's process then ends the page.
TEST_F(EndTest, IsCompletedWhereverItWasInterrupted) {
  const std::vector<Word*> daemon_words = DaemonWords(words());
  constexpr int kClaimed = -2, kTextBegun = -1;  // from 0 on: status is set, and `step` words are moved
  for (int step = kClaimed; step <= static_cast<int>(daemon_words.size()); ++step) {
    SCOPED_TRACE(absl::StrCat("step ", step));
    const Page page(kCounts);
    const std::vector<Word*> moving = DaemonWords(page.words());
    for (size_t i = 0; i < moving.size(); ++i) moving[i]->value = before_[i];
    // Ends the page whole, then undoes all but the steps before `step`.
    page.words().Finish(Side::kDaemon, 14, "the daemon's text");
    for (size_t i = std::max(step, 0); i < moving.size(); ++i) {
      moving[i]->value = before_[i];
      moving[i]->moved = 0;
    }
    if (step < 0) page.words().status().value = 0;
    if (step == kTextBegun)
      reinterpret_cast<char*>(page.words().ring_bytes())[-2 * static_cast<int>(kEndTextBytes) + 5] = 0;

    page.words().Finish(Side::kClient, 10, "the client's text");
    EXPECT_EQ(page.words().end_code(), step < 0 ? 10u : 14u);
    EXPECT_EQ(page.words().EndText(), step < 0 ? "the client's text" : "the daemon's text");
    EXPECT_EQ(Values(moving), Moved(before_));
  }
}

// The texts have the largest length, so a mixture of both would be neither.
TEST_F(EndTest, OfManyThreadsOfBothSidesIsOneEnd) {
  constexpr int kThreads = 8;
  const auto text = [](int i) { return std::string(kEndTextBytes - 1, static_cast<char>('a' + i)); };
  std::atomic<int> ready{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      for (++ready; ready < kThreads;) std::this_thread::yield();
      words().Finish(i % 2 == 0 ? Side::kClient : Side::kDaemon, static_cast<uint32_t>(i + 1), text(i));
    });
  }
  for (std::thread& thread : threads) thread.join();
  ASSERT_TRUE(words().ended());
  ExpectEnded(words().end_code(), text(static_cast<int>(words().end_code()) - 1));
}

// A commit that was decided before the end is answered after it.
TEST_F(EndTest, WhatIsPublishedAfterItLiesAheadToo) {
  words().Finish(Side::kDaemon, 10, "rank 1 left");
  words().Publish(words().committed(), before_[0] + 1);
  EXPECT_EQ(words().committed().value, before_[0] + 1 + kFinishedStep);
  words().Finish(Side::kDaemon, 10, "rank 1 left");
  EXPECT_EQ(words().committed().value, before_[0] + 1 + kFinishedStep);
}

TEST_F(EndTest, PublishingAndEndingMayMeet) {
  constexpr uint32_t kLast = 20000;
  Word& word = words().drained(1);
  word.value = 0;
  std::thread daemon([&] {
    for (uint32_t number = 1; number <= kLast; ++number) words().Publish(word, number);
  });
  while (word.value == 0) std::this_thread::yield();
  words().Finish(Side::kClient, 10, "over");
  daemon.join();
  EXPECT_EQ(word.value, kLast + kFinishedStep);
}

// A stream of the daemon does not know of the end: words that it still writes are moved when the daemon ends the page
// again.
TEST_F(EndTest, WhatAGpuWritesAfterItIsMovedByTheNext) {
  words().Finish(Side::kDaemon, 10, "rank 1 left");
  words().ready(1, 1).value = 77;
  words().Finish(Side::kDaemon, 10, "rank 1 left");
  EXPECT_EQ(words().ready(1, 1).value, 77 + kFinishedStep);
}

TEST_F(EndTest, ALongTextIsCut) {
  for (const Side side : {Side::kDaemon, Side::kClient}) {
    const Page page(kCounts);
    page.words().Finish(side, 1, std::string(kEndTextBytes, 'x'));
    EXPECT_EQ(page.words().EndText(), std::string(kEndTextBytes - 1, 'x'));
  }
}

// A trainer can write the memory of the texts, too.
TEST_F(EndTest, ATextWithoutAnEndIsReadToItsLimit) {
  words().Finish(Side::kClient, 1, "x");
  char* const text = reinterpret_cast<char*>(words().ring_bytes()) - kEndTextBytes;
  std::fill_n(text, kEndTextBytes, 'y');
  EXPECT_EQ(words().EndText().size(), kEndTextBytes);
}

TEST_F(EndTest, WakesEveryWaiter) {
  const Page page(kCounts);
  std::vector<std::thread> waiters;
  for (Word* word : DaemonWords(page.words())) {
    waiters.emplace_back([&page, word] { EXPECT_TRUE(page.words().AwaitReached(*word, 1000, absl::Minutes(1))); });
  }
  page.words().Finish(Side::kDaemon, 1, "over");
  for (std::thread& waiter : waiters) waiter.join();
  EXPECT_EQ(page.words().client_waits().value, 0u);
}

// A trainer may write all of the page, as fast as it can: no call of the daemon on it takes forever.
TEST_F(EndTest, ATrainerThatKeepsWritingHoldsNobodyUp) {
  std::atomic<bool> over{false};
  std::thread trainer([&] {
    for (uint32_t value = 0; !over; value += 0x9e3779b9u) {
      for (Word* word : DaemonWords(words())) {
        word->value = value;
        word->moved = value;
      }
      words().status().value = value & 1;
    }
  });
  for (uint32_t number = 1; number <= 2000; ++number) {
    words().Publish(words().committed(), number);
    words().Finish(Side::kDaemon, 10, "over");
  }
  over = true;
  trainer.join();
}

TEST(WordsTest, RingCountsTheDoorbellUp) {
  const Page page(kCounts);
  page.words().Ring();
  page.words().daemon_waits().value = 1;
  page.words().Ring();
  EXPECT_EQ(page.words().doorbell().value, 2u);
}

}  // namespace
}  // namespace paramshard::wire
