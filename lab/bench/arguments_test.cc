#include "lab/bench/arguments.h"

#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace paramshard {
namespace {

struct Counts {
  int gpus = 2;
  int iterations = 200;
};

Counts Read(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "bench");
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  Counts counts;
  ReadCounts(static_cast<int>(argv.size()), argv.data(),
             {{"GPUS", &counts.gpus, 2, 8}, {"ITERATIONS", &counts.iterations}});
  return counts;
}

TEST(ReadCountsTest, CountsThatAreNotGivenKeepTheirValues) {
  EXPECT_EQ(Read({}).gpus, 2);
  const Counts one = Read({"8"});
  EXPECT_EQ(one.gpus, 8);
  EXPECT_EQ(one.iterations, 200);
  EXPECT_EQ(Read({"4", "17"}).iterations, 17);
}

TEST(ReadCountsDeathTest, WhatIsNoNumberOfTheRangeIsNamed) {
  for (const char* gpus : {"", "four", "4x", "4.5", "1", "9", "99999999999", "--help"}) {
    EXPECT_EXIT(Read({gpus}), testing::ExitedWithCode(2), "argument 1, GPUS: want a number from 2 to 8, got '") << gpus;
  }
  EXPECT_EXIT(Read({"4", "0"}), testing::ExitedWithCode(2), "ITERATIONS: want a number from 1 to 1000000, got '0'");
  EXPECT_EXIT(Read({"4", "5", "6"}), testing::ExitedWithCode(2), "want at most 2 counts, got 3");
}

}  // namespace
}  // namespace paramshard
