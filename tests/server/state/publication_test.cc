#include "server/state/publication.h"

#include <atomic>
#include <cstdint>
#include <optional>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/base/manual_clock.h"
#include "tests/support/status_matchers.h"

namespace paramshard::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using wire::Gate;

wire::PublishedVersion Version(int64_t commit) { return {.commit_number = commit, .version = commit}; }

// A model's publication and its readers, as processes see them: through mapped pages.
class PublicationTest : public testing::Test {
 protected:
  void Open(absl::Duration hold = absl::Milliseconds(250)) {
    ASSERT_OK_AND_ASSIGN(publication_, Publication::Create({.reader_hold = hold, .clock = &clock_}));
  }
  void SetUp() override { Open(); }

  void Publish(int64_t commit) {
    publication_->Publish([&] { return Version(commit); });
  }
  void Write(int64_t commit, Publication::Hold hold = Publication::Hold::kBounded) {
    { const Publication::Writing writing(*publication_, hold); }
    Publish(commit);
  }
  std::shared_ptr<Publication::Reader> AddReader(const std::string& name = "r") {
    auto reader = publication_->AddReader({.name = name, .pid = 1, .uid = 2});
    EXPECT_OK(reader);
    return *std::move(reader);
  }
  static wire::PublicationPage PageOf(const Publication::Reader& reader) {
    return wire::PublicationPage(reader.publication_page().data());
  }
  static wire::LeasePage LeaseOf(const Publication::Reader& reader) {
    return wire::LeasePage(reader.lease_page().data());
  }
  // Runs a writer that waits for leases, and returns once it waits.
  std::thread BeginWaiting(const Publication::Reader& reader) {
    std::thread writer([this] { const Publication::Writing writing(*publication_, Publication::Hold::kBounded); });
    while (PageOf(reader).gate().state != Gate::State::kAsked) std::this_thread::yield();
    // The writer gives its lock up when it has begun to wait: the time before does not count.
    publication_->readers();
    return writer;
  }

  ManualClock clock_;
  std::shared_ptr<Publication> publication_;
};

TEST_F(PublicationTest, PlanesAreReadableOnceTheyArePublished) {
  const auto reader = AddReader();
  const wire::PublicationPage page = PageOf(*reader);
  EXPECT_EQ(page.gate().state, Gate::State::kWriting);
  EXPECT_TRUE(publication_->is_writing());
  Publish(7);
  EXPECT_EQ(page.gate().state, Gate::State::kValid);
  EXPECT_EQ(page.version(), Version(7));
  EXPECT_FALSE(publication_->is_writing());
}

TEST_F(PublicationTest, EveryWritingIsAGeneration) {
  const auto reader = AddReader();
  Publish(0);
  const Gate before = PageOf(*reader).gate();
  EXPECT_EQ(publication_->next_generation(), before.generation + 1);
  {
    const Publication::Writing writing(*publication_, Publication::Hold::kBounded);
    EXPECT_EQ(publication_->next_generation(), before.generation + 1);
  }
  Publish(1);
  EXPECT_EQ(PageOf(*reader).gate().generation, before.generation + 1);
  EXPECT_EQ(PageOf(*reader).version(), Version(1));
}

TEST_F(PublicationTest, VersionsAndTheEndAreCounted) {
  const auto count = std::make_shared<PublicationCount>();
  ASSERT_OK_AND_ASSIGN(publication_, Publication::Create({.clock = &clock_, .count = count}));
  std::thread waiting([&] { count->AwaitChange(0, SteadyDeadline(absl::Minutes(1))); });
  Publish(0);
  waiting.join();
  EXPECT_EQ(count->count(), 1);
  Write(1);
  publication_->End("gone");
  EXPECT_EQ(count->count(), 3);
  count->AwaitChange(3, SteadyNow());
}

TEST_F(PublicationTest, PlanesAreValidWhenTheLastWriterHasEnded) {
  const auto reader = AddReader();
  Publish(0);
  {
    const Publication::Writing first(*publication_, Publication::Hold::kBounded);
    {
      const Publication::Writing second(*publication_, Publication::Hold::kNone);
      Publish(1);
      EXPECT_EQ(PageOf(*reader).gate().state, Gate::State::kWriting);
    }
    Publish(1);
    EXPECT_EQ(PageOf(*reader).gate().state, Gate::State::kWriting);
  }
  Publish(1);
  EXPECT_EQ(PageOf(*reader).gate().state, Gate::State::kValid);
}

TEST_F(PublicationTest, ACommitIsOneWritingOfAllRanks) {
  const auto reader = AddReader();
  Publish(0);
  const uint64_t before = PageOf(*reader).gate().generation;
  publication_->BeginCommit();
  publication_->BeginCommit();
  publication_->EndCommit();
  publication_->EndCommit();
  Publish(1);
  EXPECT_EQ(PageOf(*reader).gate(), (Gate{.generation = before + 1, .state = Gate::State::kValid}));
}

TEST_F(PublicationTest, ReadersAreToldWhyTheyWait) {
  const auto reader = AddReader();
  publication_->Publish([] { return absl::UnavailableError("read m: values have not come yet"); });
  EXPECT_EQ(PageOf(*reader).gate().state, Gate::State::kWriting);
  EXPECT_EQ(PageOf(*reader).text(), "read m: values have not come yet");
}

TEST_F(PublicationTest, AWriterWaitsForALease) {
  const auto reader = AddReader();
  Publish(0);
  ASSERT_TRUE(LeaseOf(*reader).Take(PageOf(*reader), PageOf(*reader).gate()));
  std::thread writer = BeginWaiting(*reader);
  EXPECT_TRUE(PageOf(*reader).gate().readable()) << "the lease still holds";
  LeaseOf(*reader).Release();
  writer.join();
  EXPECT_EQ(PageOf(*reader).gate().state, Gate::State::kWriting);
  EXPECT_EQ(publication_->readers()[0].ended_snapshots, 0);
}

TEST_F(PublicationTest, AWaitNamesTheReadersThatItWasFor) {
  std::vector<std::shared_ptr<Publication::Reader>> readers;
  for (const char* name : {"a", "", "idle", "b", "c", "d", "e"}) readers.push_back(AddReader(name));
  Publish(0);
  for (size_t i = 0; i < readers.size(); ++i) {
    if (i == 2) continue;
    ASSERT_TRUE(LeaseOf(*readers[i]).Take(PageOf(*readers[i]), PageOf(*readers[i]).gate()));
  }
  EXPECT_TRUE(publication_->waits().empty());
  std::thread writer = BeginWaiting(*readers[0]);
  std::vector<ReaderWait> waits = publication_->waits();
  ASSERT_EQ(waits.size(), 1u);
  EXPECT_THAT(waits[0].readers, ElementsAre("a (pid 1)", "reader (pid 1)", "b (pid 1)", "c (pid 1)", "and 2 more"));
  EXPECT_EQ(waits[0].end_ns, std::nullopt);
  readers.clear();
  writer.join();
  waits = publication_->waits();
  ASSERT_EQ(waits.size(), 1u);
  ASSERT_TRUE(waits[0].end_ns.has_value());
  EXPECT_GE(*waits[0].end_ns, waits[0].begin_ns);
  Publish(1);
  Write(2);
  EXPECT_EQ(publication_->waits().size(), 1u) << "of nobody";
}

TEST_F(PublicationTest, OldWaitsAreForgotten) {
  for (int i = 0; i < 70; ++i) {
    auto reader = AddReader(absl::StrCat(i));
    const auto witness = AddReader("witness");
    Publish(i);
    ASSERT_TRUE(LeaseOf(*reader).Take(PageOf(*reader), PageOf(*reader).gate()));
    std::thread writer = BeginWaiting(*witness);
    reader.reset();
    writer.join();
  }
  const std::vector<ReaderWait> waits = publication_->waits();
  ASSERT_EQ(waits.size(), 64u);
  EXPECT_THAT(waits.back().readers, ElementsAre("69 (pid 1)"));
}

TEST_F(PublicationTest, NoLeaseIsTakenOnceAWriterHasAsked) {
  const auto reader = AddReader();
  const auto late = AddReader("late");
  Publish(0);
  const Gate valid = PageOf(*reader).gate();
  ASSERT_TRUE(LeaseOf(*reader).Take(PageOf(*reader), valid));
  std::thread writer = BeginWaiting(*reader);
  EXPECT_FALSE(LeaseOf(*late).Take(PageOf(*late), valid));
  LeaseOf(*reader).Release();
  writer.join();
}

TEST_F(PublicationTest, AWaitEndsAfterTheHold) {
  const auto reader = AddReader();
  Publish(0);
  ASSERT_TRUE(LeaseOf(*reader).Take(PageOf(*reader), PageOf(*reader).gate()));
  std::thread writer = BeginWaiting(*reader);
  clock_.Advance(absl::Milliseconds(250));
  writer.join();
  const std::vector<ReaderReport> readers = publication_->readers();
  EXPECT_EQ(readers[0].ended_snapshots, 1);
  EXPECT_EQ(readers[0].held, absl::Milliseconds(250));
}

TEST_F(PublicationTest, AReaderThatWasLateIsWaitedForAgainAfterSixteenReleasesInTime) {
  const auto reader = AddReader();
  const auto lease = [&] { return LeaseOf(*reader).Take(PageOf(*reader), PageOf(*reader).gate()); };
  Publish(0);
  ASSERT_TRUE(lease());
  std::thread writer = BeginWaiting(*reader);
  clock_.Advance(absl::Milliseconds(250));
  writer.join();
  Publish(1);
  clock_.Advance(absl::Hours(1));  // time to wait is there again
  LeaseOf(*reader).Release();      // late
  for (int i = 0; i < Publication::kReleasesAfterEnd; ++i) {
    // Late ones do not count.
    ASSERT_TRUE(lease());
    Write(2 * i + 2);  // waits for nobody: else it would not return
    LeaseOf(*reader).Release();
    ASSERT_TRUE(lease());
    LeaseOf(*reader).Release();
    Write(2 * i + 3);
  }
  ASSERT_TRUE(lease());
  writer = BeginWaiting(*reader);
  LeaseOf(*reader).Release();
  writer.join();
}

TEST_F(PublicationTest, WaitsTakeAHundredthOfTheTime) {
  const auto reader = AddReader();
  const auto other = AddReader("other");
  Publish(0);
  ASSERT_TRUE(LeaseOf(*reader).Take(PageOf(*reader), PageOf(*reader).gate()));
  std::thread writer = BeginWaiting(*reader);
  clock_.Advance(absl::Milliseconds(250));
  writer.join();
  Publish(1);
  // Half a hold is there again after 12.5 s.
  clock_.Advance(absl::Seconds(12));
  ASSERT_TRUE(LeaseOf(*other).Take(PageOf(*other), PageOf(*other).gate()));
  Write(2);
  EXPECT_EQ(publication_->readers()[1].ended_snapshots, 1);
  clock_.Advance(absl::Seconds(1));
  ASSERT_TRUE(LeaseOf(*other).Take(PageOf(*other), PageOf(*other).gate()));
  writer = BeginWaiting(*other);
  LeaseOf(*other).Release();
  writer.join();
}

TEST_F(PublicationTest, AWaitThatEndsLateIsTakenFromLaterOnes) {
  const auto reader = AddReader();
  const auto other = AddReader("other");
  Publish(0);
  ASSERT_TRUE(LeaseOf(*reader).Take(PageOf(*reader), PageOf(*reader).gate()));
  std::thread writer = BeginWaiting(*reader);
  clock_.Advance(absl::Milliseconds(500));  // twice the hold
  writer.join();
  Publish(1);
  clock_.Advance(absl::Seconds(36));
  ASSERT_TRUE(LeaseOf(*other).Take(PageOf(*other), PageOf(*other).gate()));
  Write(2);  // waits for nobody: else it would not return
  clock_.Advance(absl::Seconds(2));
  ASSERT_TRUE(LeaseOf(*other).Take(PageOf(*other), PageOf(*other).gate()));
  writer = BeginWaiting(*other);
  LeaseOf(*other).Release();
  writer.join();
}

TEST_F(PublicationTest, SomeWritersWaitForNobody) {
  const auto reader = AddReader();
  Publish(0);
  ASSERT_TRUE(LeaseOf(*reader).Take(PageOf(*reader), PageOf(*reader).gate()));
  Write(0, Publication::Hold::kNone);
  Open(absl::ZeroDuration());
  const auto another = AddReader();
  Publish(0);
  ASSERT_TRUE(LeaseOf(*another).Take(PageOf(*another), PageOf(*another).gate()));
  Write(1);
}

TEST_F(PublicationTest, AReaderThatLeavesHoldsNobody) {
  auto reader = AddReader();
  const auto witness = AddReader("witness");
  Publish(0);
  ASSERT_TRUE(LeaseOf(*reader).Take(PageOf(*reader), PageOf(*reader).gate()));
  std::thread writer = BeginWaiting(*witness);
  reader.reset();
  writer.join();
  EXPECT_EQ(publication_->readers().size(), 1);
}

TEST_F(PublicationTest, WhatAReaderWritesInItsPageHoldsAWriterNoLonger) {
  const auto reader = AddReader();
  Publish(0);
  auto* const words = reinterpret_cast<uint64_t*>(reader->lease_page().data());
  for (const uint64_t any : {uint64_t{1}, ~uint64_t{0}, PageOf(*reader).gate().packed() + 4, uint64_t{1} << 63}) {
    words[0] = any;
    words[1] = any;
    Write(1);
  }
}

TEST_F(PublicationTest, AnEndIsFinal) {
  const auto reader = AddReader();
  Publish(0);
  publication_->End("model m was deleted");
  EXPECT_EQ(PageOf(*reader).gate().state, Gate::State::kEnded);
  EXPECT_EQ(PageOf(*reader).text(), "model m was deleted");
  Write(1);
  EXPECT_EQ(PageOf(*reader).gate().state, Gate::State::kEnded);
  EXPECT_TRUE(publication_->is_writing()) << "planes may go";
  EXPECT_THAT(publication_->AddReader({}), StatusIs(absl::StatusCode::kUnavailable, HasSubstr("deleted")));
}

TEST_F(PublicationTest, ReadersHaveALimit) {
  std::vector<std::shared_ptr<Publication::Reader>> readers;
  for (int i = 0; i < Publication::kMostReaders; ++i) readers.push_back(AddReader());
  EXPECT_THAT(publication_->AddReader({}),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("want at most 256 readers")));
  readers.pop_back();
  EXPECT_OK(publication_->AddReader({}));
}

// Readers take leases and read while writers write: what was read under a lease that still holds is one version's.
TEST_F(PublicationTest, NoReadUnderALeaseIsTorn) {
  constexpr int kWrites = 2000;
  ASSERT_OK_AND_ASSIGN(publication_, Publication::Create({.reader_hold = absl::Milliseconds(1)}));
  std::vector<std::atomic<int64_t>> planes(64);
  std::atomic<bool> done = false;
  std::atomic<int64_t> accepted = 0, torn = 0;
  std::vector<std::thread> threads;
  Publish(0);
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&, reader = AddReader(absl::StrCat(i))] {
      const wire::PublicationPage page = PageOf(*reader);
      const wire::LeasePage lease = LeaseOf(*reader);
      while (!done) {
        const Gate gate = page.gate();
        if (gate.state != Gate::State::kValid) {
          page.AwaitChange(gate, absl::Milliseconds(1));
          continue;
        }
        if (!lease.Take(page, gate)) continue;
        const int64_t version = page.version().version;
        bool is_whole = true;
        for (const auto& value : planes) is_whole = is_whole && value.load(std::memory_order_relaxed) == version;
        std::atomic_thread_fence(std::memory_order_acquire);
        const Gate after = page.gate();
        if (after.readable() && after.generation == gate.generation) {
          ++accepted;
          if (!is_whole) ++torn;
        }
        lease.Release();
      }
    });
  }
  for (int64_t i = 1; i <= kWrites || accepted < 1000; ++i) {
    {
      const Publication::Writing writing(*publication_, Publication::Hold::kBounded);
      for (auto& value : planes) value.store(i, std::memory_order_relaxed);
    }
    Publish(i);
  }
  done = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(torn, 0);
}

bool NeverCancelled() { return false; }

// A copy by the daemon itself begins in the moment of the publication: no writer comes between.
TEST_F(PublicationTest, ALeaseIsTakenOnAVersionAsItIsPublished) {
  Publish(4);
  absl::StatusOr<Publication::Lease> lease;
  std::thread taking([&] {
    lease = publication_->TakeAt({.name = "c"}, Version(6), SteadyDeadline(absl::Minutes(1)), NeverCancelled);
  });
  while (publication_->readers().empty()) std::this_thread::yield();
  Write(5);
  EXPECT_FALSE(publication_->readers()[0].is_reading);
  Write(6);
  EXPECT_TRUE(publication_->readers()[0].is_reading);
  taking.join();
  ASSERT_OK(lease);
  EXPECT_EQ(lease->version, Version(6));
  EXPECT_TRUE(publication_->IsHeld(lease->generation));
  lease->reader.reset();
  EXPECT_TRUE(publication_->readers().empty());
}

TEST_F(PublicationTest, ALeaseIsTakenOnThePresentVersionAtOnce) {
  Publish(4);
  ASSERT_OK_AND_ASSIGN(const Publication::Lease lease,
                       publication_->TakeAt({.name = "c"}, Version(4), SteadyNow(), NeverCancelled));
  EXPECT_TRUE(LeaseOf(*lease.reader).Holds(lease.generation));
  Write(5, Publication::Hold::kNone);
  EXPECT_FALSE(publication_->IsHeld(lease.generation));
}

TEST_F(PublicationTest, AVersionThatIsPassedIsNotTaken) {
  Publish(4);
  const auto take = [&](const wire::PublishedVersion& version, absl::Duration wait = absl::Minutes(1)) {
    return publication_->TakeAt({.name = "c"}, version, SteadyDeadline(wait), NeverCancelled).status();
  };
  EXPECT_THAT(take(Version(3)),
              StatusIs(absl::StatusCode::kAborted, HasSubstr("want commit 3, the model is at commit 4")));
  wire::PublishedVersion other = Version(9);
  other.history_id[0] = 'a';
  EXPECT_THAT(take(other), StatusIs(absl::StatusCode::kAborted, HasSubstr("of another history")));
  EXPECT_THAT(take(Version(5), absl::ZeroDuration()),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("timed out waiting for commit 5")));
  EXPECT_THAT(publication_->TakeAt({.name = "c"}, Version(5), SteadyDeadline(absl::Minutes(1)), [] { return true; }),
              StatusIs(absl::StatusCode::kCancelled));
  // Asked without the publication's lock, which the end of another reader takes under the lock of calls.
  EXPECT_THAT(publication_->TakeAt({.name = "c"}, Version(5), SteadyDeadline(absl::Minutes(1)),
                                   [&] { return !publication_->readers().empty(); }),
              StatusIs(absl::StatusCode::kCancelled));
  publication_->End("model m was deleted");
  EXPECT_THAT(take(Version(5)), StatusIs(absl::StatusCode::kUnavailable, HasSubstr("deleted")));
  EXPECT_TRUE(publication_->readers().empty());
}

}  // namespace
}  // namespace paramshard::server
