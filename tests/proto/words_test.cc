#include "proto/wire/words.h"

#include <algorithm>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/proto/page.h"

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

// Begin and size of everything in the page.
std::vector<std::pair<const void*, size_t>> Parts(const Words& words) {
  std::vector<std::pair<const void*, size_t>> parts{{&words.status(), sizeof(Word)}, {words.ring_bytes(), kRingBytes}};
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
    // Every byte is taken once: what two parts shared would be marked twice.
    std::vector<uint8_t> taken(page.size_bytes());
    for (const auto& [begin, size] : Parts(page.words())) {
      const size_t offset = static_cast<const uint8_t*>(begin) - page.bytes();
      ASSERT_LE(offset + size, taken.size());
      for (size_t at = offset; at < offset + size; ++at) ASSERT_EQ(taken[at]++, 0) << "byte " << at;
    }
    // What nobody takes here is the text of the end and a spare word.
    size_t free_bytes = 0;
    for (const uint8_t mark : taken) free_bytes += mark == 0;
    EXPECT_EQ(free_bytes, kEndTextBytes + sizeof(Word));
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
  EXPECT_FALSE(page.words().AwaitReached(page.words().ready(0, 0), 1, absl::Milliseconds(2)));
  EXPECT_EQ(page.words().client_waits().value, 0u);
}

// From below 2^32 to above, with the waiter asleep between most steps.
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

TEST(WordsTest, FinishMovesEveryDaemonWordAheadAndNoOther) {
  const Page page(kCounts);
  const Words& words = page.words();
  uint32_t value = 0xfffffff0u;
  for (Word* word : DaemonWords(words)) word->value = value++;
  for (Word* word : OtherWords(words)) word->value = value++;
  std::vector<uint32_t> expected = Values(DaemonWords(words));
  for (uint32_t& word : expected) word += kFinishedStep;
  const std::vector<uint32_t> others = Values(OtherWords(words));

  words.Finish(10, "rank 1 left");
  EXPECT_EQ(words.status().value, 10u);
  EXPECT_EQ(words.EndText(), "rank 1 left");
  EXPECT_EQ(Values(DaemonWords(words)), expected);
  EXPECT_EQ(Values(OtherWords(words)), others);
}

TEST(WordsTest, FinishLeavesTheAnswersAndTheRing) {
  const Page page(kCounts);
  page.words().commit_record(2).version = 2;
  page.words().Finish(1, std::string(3 * kEndTextBytes, 'x'));
  EXPECT_EQ(page.words().commit_record(2).version, 2);
  EXPECT_EQ(std::count(page.words().ring_bytes(), page.words().ring_bytes() + kRingBytes, 0), kRingBytes);
}

TEST(WordsTest, TheFirstEndStays) {
  const Page page(kCounts);
  page.words().Finish(4, "first");
  const std::vector<uint32_t> ended = Values(DaemonWords(page.words()));
  page.words().Finish(5, "second");
  EXPECT_EQ(page.words().status().value, 4u);
  EXPECT_EQ(page.words().EndText(), "first");
  EXPECT_EQ(Values(DaemonWords(page.words())), ended);
}

TEST(WordsTest, ALongTextIsCut) {
  const Page page(kCounts);
  page.words().Finish(1, std::string(kEndTextBytes, 'x'));
  EXPECT_EQ(page.words().EndText(), std::string(kEndTextBytes - 1, 'x'));
}

// The text is in memory that a trainer writes, too.
TEST(WordsTest, ATextWithoutAnEndIsReadToItsLimit) {
  const Page page(kCounts);
  page.words().Finish(1, "x");
  char* text = reinterpret_cast<char*>(page.words().ring_bytes()) - kEndTextBytes;
  std::fill_n(text, kEndTextBytes, 'y');
  EXPECT_EQ(page.words().EndText().size(), kEndTextBytes);
}

TEST(WordsTest, FinishWakesEveryWaiter) {
  const Page page(kCounts);
  const Words& words = page.words();
  std::vector<std::thread> waiters;
  for (Word* word : DaemonWords(words)) {
    waiters.emplace_back([&words, word] { EXPECT_TRUE(words.AwaitReached(*word, 1000, absl::Minutes(1))); });
  }
  words.Finish(1, "over");
  for (std::thread& waiter : waiters) waiter.join();
  EXPECT_EQ(words.client_waits().value, 0u);
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
