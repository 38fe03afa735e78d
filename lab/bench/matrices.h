// A model of nothing but matrices, for benchmarks to which size alone matters.
#ifndef PARAMSHARD_LAB_BENCH_MATRICES_H_
#define PARAMSHARD_LAB_BENCH_MATRICES_H_

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/client.h"

namespace paramshard {

inline constexpr double kMatricesStateBytes = 12;  // of a parameter: a master and two moments

// Returns a model of `millions` million parameters in BF16, in units of 50 million.
inline ModelSpec Matrices(int millions) {
  constexpr int64_t kColumns = 4096;
  ModelSpec spec;
  spec.name = "m";
  spec.groups.resize(1);
  for (int i = 0; i < millions; i += 50) {
    ParameterSpec parameter;
    parameter.name = absl::StrCat("w", i);
    parameter.shape = {std::min(50, millions - i) * int64_t{1'000'000} / kColumns, kColumns};
    parameter.encoding.format = Format::kBF16;
    UnitSpec unit;
    unit.name = absl::StrCat("u", i);
    unit.parameters.push_back(std::move(parameter));
    spec.units.push_back(std::move(unit));
  }
  return spec;
}

}  // namespace paramshard

#endif  // PARAMSHARD_LAB_BENCH_MATRICES_H_
