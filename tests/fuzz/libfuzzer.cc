// The target of this program for libFuzzer. Without a corpus it begins with the target's seeds. Half of the mutations
// are the mutations of fuzz_test.cc, which know the words of inputs.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>

#include "tests/fuzz/fuzz_target.h"

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  paramshard::Target().run(std::string(reinterpret_cast<const char*>(data), size));
  return 0;
}

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned seed) {
  const paramshard::FuzzTarget& target = paramshard::Target();
  paramshard::Mutator mutator(seed, target.words);
  if (mutator.Below(2) == 0) return LLVMFuzzerMutate(data, size, max_size);
  std::string input(reinterpret_cast<const char*>(data), size);
  if (input.size() < 2 || mutator.Below(16) == 0) input = target.seeds[mutator.Below(target.seeds.size())];
  input = mutator.Mutate(std::move(input));
  if (target.mend != nullptr) input = target.mend(std::move(input), mutator);
  size = std::min(input.size(), max_size);
  std::memcpy(data, input.data(), size);
  return size;
}
