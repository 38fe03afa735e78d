// Where there is no libFuzzer: the same target on random changes of good and bad indices.

#include <cstdint>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/fuzz/checkpoint_fuzz.h"
#include "tests/fuzz/mutator.h"
#include "tests/random_seed.h"

namespace paramshard {
namespace {

constexpr int kMutations = 20'000;

std::vector<std::string> Seeds() {
  return {
      R"({"weight_map":{}})",
      R"({"weight_map":{"a":"one.safetensors","b":"one.safetensors"}})",
      R"({"metadata":{"total_size":3},"weight_map":{"c":"two.safetensors","weight_map":"two.safetensors",)"
      R"("metadata":"part/three.safetensors"}})",
      R"({"weight_map":{"metadata":"./part//three.safetensors"},"metadata":{"weight_map":{"a":[[{"a":null}]]}}})",
      R"({"weight_map":{"a":"../one.safetensors","b":"/one.safetensors"},"weight_map":{"\u0061":"one.safetensors\u0000"}})",
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
          "/",
          "..",
          "1e999",
          "\\u0000",
          "\\ud800",
          "null",
          "\"a\":\"one.safetensors\"",
          "\"b\":\"one.safetensors\"",
          "\"c\":\"two.safetensors\"",
          "\"weight_map\":",
          "\"metadata\":",
          "one.safetensors"};
}

TEST(CheckpointFuzzTest, ChangedIndicesAreReadOrRefused) {
  const uint64_t seed = FirstSeed(1);
  SCOPED_TRACE(testing::Message() << kSeedVariable << "=" << seed);
  const std::vector<std::string> seeds = Seeds();
  Mutator mutator(seed, Words());
  for (int i = 0; i < kMutations; ++i) {
    const std::string text = mutator.Mutate(seeds[i % seeds.size()]);
    LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(text.data()), text.size());
  }
}

}  // namespace
}  // namespace paramshard
