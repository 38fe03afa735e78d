// The safetensors reader on any bytes.
#ifndef PARAMSHARD_TESTS_FUZZ_SAFETENSORS_FUZZ_H_
#define PARAMSHARD_TESTS_FUZZ_SAFETENSORS_FUZZ_H_

#include <cstddef>
#include <cstdint>

// Opens the bytes as a file. What the reader takes must hold together: tensors that fill the file, all of them
// readable, and a header that is the same after it was written and read again. Aborts when it does not. libFuzzer calls
// it.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

#endif  // PARAMSHARD_TESTS_FUZZ_SAFETENSORS_FUZZ_H_
