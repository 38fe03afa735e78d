// The target of this program, as libFuzzer calls it.
#include <cstddef>
#include <cstdint>
#include <string>

#include "tests/fuzz/fuzz_target.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  paramshard::Target().run(std::string(reinterpret_cast<const char*>(data), size));
  return 0;
}
