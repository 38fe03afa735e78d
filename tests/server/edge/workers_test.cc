#include "server/edge/workers.h"

#include <unistd.h>

#include <atomic>
#include <memory>
#include <string>

#include "absl/synchronization/notification.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"

namespace paramshard::server {
namespace {

// Works that last until the end of the test.
class WorkersTest : public testing::Test {
 protected:
  void Start(Workers::Options options) {
    absl::StatusOr<std::unique_ptr<Workers>> workers = Workers::Start("tests", options);
    ASSERT_OK(workers.status());
    workers_ = *std::move(workers);
  }
  ~WorkersTest() override { End(); }
  void End() {
    if (!end_.HasBeenNotified()) end_.Notify();
  }

  bool Post(const std::string& token, uid_t user = geteuid()) {
    return workers_->Post({.token = token, .peer = {.pid = 1, .uid = user}},
                          [this](const Workers::Place&) { end_.WaitForNotification(); });
  }
  int PostAll(const std::string& token, uid_t user = geteuid()) {
    int posted = 0;
    while (Post(token, user)) ++posted;
    return posted;
  }

  static constexpr uid_t kOther = 65533;
  absl::Notification end_;
  std::unique_ptr<Workers> workers_;  // ends first
};

TEST_F(WorkersTest, OneConnectionDoesNotTakeAll) {
  Start({.threads = 1, .max_works = 16, .max_works_of_connection = 4});
  EXPECT_EQ(PostAll("a"), 4);
  EXPECT_EQ(PostAll("b"), 4);
}

TEST_F(WorkersTest, OtherUsersLeaveSomeToTheDaemonsOwn) {
  if (geteuid() == kOther) GTEST_SKIP() << "needs another user";
  Start({.threads = 1, .max_works = 16, .max_works_of_connection = 5});
  EXPECT_EQ(PostAll("a", kOther), 5);
  EXPECT_EQ(PostAll("b", kOther), 3) << "half of all";
  EXPECT_EQ(PostAll("c", kOther + 1), 4) << "three quarters with the first one's";
  EXPECT_EQ(PostAll("d"), 4);
}

TEST_F(WorkersTest, WhatIsDoneGivesItsPlaceBack) {
  Start({.threads = 1, .max_works = 1, .max_works_of_connection = 1});
  for (int i = 0; i < 3; ++i) {
    absl::Notification done;
    ASSERT_TRUE(workers_->Post({.token = "a", .peer = {.pid = 1, .uid = geteuid()}}, [&](Workers::Place place) {
      { const Workers::Place ends = std::move(place); }
      done.Notify();
    }));
    done.WaitForNotification();
  }
}

TEST_F(WorkersTest, OtherUsersLeaveThreadsToTheDaemonsOwn) {
  if (geteuid() == kOther) GTEST_SKIP() << "needs another user";
  Start({.threads = 4, .max_works = 16});
  EXPECT_EQ(PostAll("a", kOther), 8);
  EXPECT_EQ(PostAll("b", kOther + 1), 4);
  absl::Notification done;
  ASSERT_TRUE(workers_->Post({.token = "c", .peer = {.pid = 1, .uid = geteuid()}},
                             [&](const Workers::Place&) { done.Notify(); }));
  done.WaitForNotification();
}

TEST_F(WorkersTest, WhatWaitsForAThreadOfItsUserIsCarriedOutAtTheEnd) {
  Start({.threads = 2, .max_works = 16});
  std::atomic<int> carried_out = 0;
  for (int i = 0; i < 8; ++i) {
    ASSERT_TRUE(workers_->Post({.token = "a", .peer = {.pid = 1, .uid = kOther}}, [&](const Workers::Place&) {
      end_.WaitForNotification();
      ++carried_out;
    }));
  }
  End();
  workers_.reset();
  EXPECT_EQ(carried_out, 8);
}

TEST_F(WorkersTest, TheDaemonsOwnWorkIsNeverTooMuch) {
  Start({.threads = 1, .max_works = 1});
  ASSERT_TRUE(Post("a"));
  EXPECT_FALSE(Post("a"));
  absl::Notification done;
  workers_->Post([&] { done.Notify(); });
  End();
  done.WaitForNotification();
}

}  // namespace
}  // namespace paramshard::server
