// Random model specs, small enough to check every byte of their layout.
#ifndef PARAMSHARD_TESTS_COMMON_MODEL_RANDOM_MODEL_H_
#define PARAMSHARD_TESTS_COMMON_MODEL_RANDOM_MODEL_H_

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "common/model/model_spec.h"

namespace paramshard {

ParameterSpec MakeParameter(std::string name, std::vector<int64_t> shape, Format format);

class RandomModel {
 public:
  explicit RandomModel(uint64_t seed) : generator_(seed) {}

  // Returns a uniform number in [low, high].
  int64_t Integer(int64_t low, int64_t high) { return std::uniform_int_distribution<int64_t>(low, high)(generator_); }
  bool OneIn(int64_t n) { return Integer(1, n) == 1; }

  // Returns a spec with all formats, 0 to 5 dimensions, resident units, small, large and frozen parameters.
  ModelSpec Spec();

  // Gives some parameters owners of whole matrices.
  void OwnSome(ModelSpec& spec);

  // Returns 1 to 64, often a power of two.
  int Ranks();

 private:
  std::vector<int64_t> Shape();
  ParameterSpec Parameter(std::string name);
  UnitSpec Unit(int index);

  std::mt19937_64 generator_;
};

}  // namespace paramshard

#endif  // PARAMSHARD_TESTS_COMMON_MODEL_RANDOM_MODEL_H_
