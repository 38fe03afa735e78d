// The model of the benches of whole trainings: blocks of Llama-3-8B.
#ifndef PARAMSHARD_LAB_BENCH_BLOCK_SPEC_H_
#define PARAMSHARD_LAB_BENCH_BLOCK_SPEC_H_

#include <cstdint>
#include <string>

#include "client/client.h"

namespace paramshard {

struct BlockWeight {
  const char* name;
  int64_t rows;
  int64_t columns;
};
// Weights of a Llama-3-8B block.
inline constexpr BlockWeight kBlockWeights[] = {{"q", 4096, 4096},    {"k", 1024, 4096},     {"v", 1024, 4096},
                                                {"o", 4096, 4096},    {"gate", 14336, 4096}, {"up", 14336, 4096},
                                                {"down", 4096, 14336}};

int64_t BlockElements();

// Such blocks in FP8 with fp32 moments and bf16 gradients, a unit each.
ModelSpec BlockSpec(const std::string& name, int blocks);

}  // namespace paramshard

#endif  // PARAMSHARD_LAB_BENCH_BLOCK_SPEC_H_
