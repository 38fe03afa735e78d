// Where there is no libFuzzer: the same target on random changes of good and bad files.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/fuzz/mutator.h"
#include "tests/fuzz/safetensors_fuzz.h"
#include "tests/random_seed.h"

namespace paramshard {
namespace {

constexpr int kMutations = 100'000;

std::string FileOf(const std::string& header, const std::string& data) {
  std::string bytes(8, '\0');
  const uint64_t length = header.size();
  std::memcpy(bytes.data(), &length, sizeof(length));
  return bytes + header + data;
}

std::vector<std::string> Seeds() {
  return {
      FileOf("{}", ""),
      FileOf(R"({"w":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]}})", std::string(16, 'd')),
      FileOf(R"({"__metadata__":{"format":"pt","k":"\u00e9"},"a":{"dtype":"BF16","shape":[],"data_offsets":[0,2]},)"
             R"("b":{"dtype":"U8","shape":[0,3],"data_offsets":[2,2]},"c":{"dtype":"F4","shape":[4],)"
             R"("data_offsets":[2,4]}}   )",
             "dddd"),
      FileOf(R"({"w":{"dtype":"F64","shape":[9223372036854775807,2],"data_offsets":[0,18446744073709551615]}})", "d"),
  };
}

std::vector<std::string> Words() {
  return {"{",
          "}",
          "[",
          "]",
          ",",
          ":",
          "\"",
          "0",
          "-1",
          "1e9",
          "9223372036854775807",
          "\\u0000",
          "null",
          "\"F32\"",
          "\"dtype\"",
          "\"shape\"",
          "\"data_offsets\"",
          "\"__metadata__\""};
}

// Mostly with a length that fits, so that the header is read.
std::string WithLength(std::string bytes, Mutator& mutator) {
  if (bytes.size() < 8 || mutator.Below(4) == 0) return bytes;
  const uint64_t length =
      std::min<uint64_t>(bytes.rfind('}') == std::string::npos ? 0 : bytes.rfind('}') - 7, bytes.size() - 8);
  std::memcpy(bytes.data(), &length, sizeof(length));
  return bytes;
}

TEST(SafetensorsFuzzTest, ChangedFilesAreReadOrRefused) {
  const uint64_t seed = FirstSeed(1);
  SCOPED_TRACE(testing::Message() << kSeedVariable << "=" << seed);
  const std::vector<std::string> seeds = Seeds();
  Mutator mutator(seed, Words());
  for (int i = 0; i < kMutations; ++i) {
    const std::string bytes = WithLength(mutator.Mutate(seeds[i % seeds.size()]), mutator);
    LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
  }
}

}  // namespace
}  // namespace paramshard
