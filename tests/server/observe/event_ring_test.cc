#include "server/observe/event_ring.h"

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "server/observe/recorder.h"

namespace paramshard::server {
namespace {

// Every word of an event follows from its number.
Event NumberedEvent(int64_t number) {
  return {.kind = static_cast<EventKind>(number % kEventKinds),
          .edge = static_cast<EventEdge>(number % 3),
          .peer = static_cast<int>(number % 100) - 1,
          .unit = static_cast<int>(number % 1000) - 1,
          .time_ns = number,
          .command = -number,
          .commit_number = number * 3,
          .bytes = number << 32};
}

void ExpectNumbered(const Event& event) {
  const Event expected = NumberedEvent(event.time_ns);
  EXPECT_EQ(event.kind, expected.kind);
  EXPECT_EQ(event.edge, expected.edge);
  EXPECT_EQ(event.peer, expected.peer);
  EXPECT_EQ(event.unit, expected.unit);
  EXPECT_EQ(event.command, expected.command);
  EXPECT_EQ(event.commit_number, expected.commit_number);
  EXPECT_EQ(event.bytes, expected.bytes);
}

TEST(EventRingTest, ItHasTheLastEventsInOrder) {
  EventRing ring;
  EXPECT_TRUE(ring.Read().empty());
  const int64_t written = 3 * static_cast<int64_t>(EventRing::kSlots) + 7;
  for (int64_t number = 0; number < written; ++number) ring.Write(NumberedEvent(number));
  const std::vector<Event> events = ring.Read();
  ASSERT_EQ(events.size(), EventRing::kSlots);
  for (size_t i = 0; i < events.size(); ++i) {
    EXPECT_EQ(events[i].time_ns, written - static_cast<int64_t>(EventRing::kSlots) + static_cast<int64_t>(i));
    ExpectNumbered(events[i]);
  }
}

TEST(EventRingTest, WhoReadsBesideTheWriterSeesWholeEvents) {
  EventRing ring;
  std::atomic<bool> stop = false;
  std::thread writer([&] {
    for (int64_t number = 0; !stop; ++number) ring.Write(NumberedEvent(number));
  });
  // Until the ring was overwritten some times.
  while (ring.written() < 20 * EventRing::kSlots) {
    int64_t before = -1;
    for (const Event& event : ring.Read()) {
      ExpectNumbered(event);
      EXPECT_GT(event.time_ns, before);
      before = event.time_ns;
    }
  }
  stop = true;
  writer.join();
}

TEST(RecorderTest, ARanksMemoryIsFixed) { EXPECT_LE(Recorder::kBytesOfRank, size_t{256} << 10); }

}  // namespace
}  // namespace paramshard::server
