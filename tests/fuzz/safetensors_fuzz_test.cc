// Where there is no libFuzzer: the same target on random changes of good and bad files.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
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

// Words that a header is made of, so that changes are not all refused by the parser of JSON.
const char* const kWords[] = {"{",
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

class Mutator {
 public:
  explicit Mutator(uint64_t seed) : random_(seed) {}

  std::string Mutate(std::string bytes) {
    for (int changes = 1 + Below(4); changes > 0; --changes) Change(bytes);
    // Mostly a length that fits, so that the header is read.
    if (bytes.size() >= 8 && Below(4) != 0) {
      const uint64_t length =
          std::min<uint64_t>(bytes.rfind('}') == std::string::npos ? 0 : bytes.rfind('}') - 7, bytes.size() - 8);
      std::memcpy(bytes.data(), &length, sizeof(length));
    }
    return bytes;
  }

 private:
  size_t Below(size_t limit) { return random_() % limit; }
  void Change(std::string& bytes) {
    const size_t at = Below(bytes.size() + 1);
    switch (Below(5)) {
      case 0:
        if (at < bytes.size()) bytes[at] = static_cast<char>(random_());
        break;
      case 1:
        if (at < bytes.size()) bytes[at] = static_cast<char>(bytes[at] ^ (1 << Below(8)));
        break;
      case 2:
        bytes.erase(at, Below(8));
        break;
      case 3:
        bytes.insert(at, kWords[Below(std::size(kWords))]);
        break;
      default:
        bytes.insert(at, bytes.substr(Below(bytes.size() + 1), Below(32)));
    }
  }

  std::mt19937_64 random_;
};

TEST(SafetensorsFuzzTest, ChangedFilesAreReadOrRefused) {
  const uint64_t seed = FirstSeed(1);
  SCOPED_TRACE(testing::Message() << kSeedVariable << "=" << seed);
  const std::vector<std::string> seeds = Seeds();
  Mutator mutator(seed);
  for (int i = 0; i < kMutations; ++i) {
    const std::string bytes = mutator.Mutate(seeds[i % seeds.size()]);
    LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
  }
}

}  // namespace
}  // namespace paramshard
