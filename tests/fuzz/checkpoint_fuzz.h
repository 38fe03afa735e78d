// The reader of checkpoints' indices on any bytes.
#ifndef PARAMSHARD_TESTS_FUZZ_CHECKPOINT_FUZZ_H_
#define PARAMSHARD_TESTS_FUZZ_CHECKPOINT_FUZZ_H_

#include <cstddef>
#include <cstdint>

// Opens the bytes as an index beside one.safetensors (tensors a, b), two.safetensors (c, weight_map) and
// part/three.safetensors (metadata). What the reader takes must hold together: files of this folder, each once, with
// all their tensors and no others, and an index that gives the same when it was written and read again. Aborts when it
// does not. libFuzzer calls it.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

#endif  // PARAMSHARD_TESTS_FUZZ_CHECKPOINT_FUZZ_H_
