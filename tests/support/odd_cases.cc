// Cases that fail, skip, hang and die, for the test of run_cases.py.

#include <unistd.h>

#include <cstdlib>

#include "gtest/gtest.h"

namespace {

TEST(OddTest, Passes) {}
TEST(OddTest, Skips) { GTEST_SKIP() << "no reason but this one"; }
TEST(OddTest, Fails) { EXPECT_EQ(1, 2) << "one is not two"; }
TEST(OddTest, Aborts) { std::abort(); }
TEST(OddTest, ExitsAsIfAllWereWell) { _exit(0); }
TEST(OddTest, Hangs) {
  while (true) pause();
}
TEST(OddTest, DISABLED_DoesNotRun) { FAIL(); }
TEST(OddTest, LeavesAChildThatHoldsThePipe) {
  if (fork() != 0) return;
  while (true) pause();
}
TEST(OddTest, ChangesTheProcess) { EXPECT_EQ(setenv("PARAMSHARD_ODD", "1", 1), 0); }
TEST(OddTest, RunsInAnUnchangedProcess) { EXPECT_EQ(std::getenv("PARAMSHARD_ODD"), nullptr); }
TEST(OddTest, IsLast) {}

}  // namespace
