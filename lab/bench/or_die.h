// Benchmarks end where something fails.
#ifndef PARAMSHARD_LAB_BENCH_OR_DIE_H_
#define PARAMSHARD_LAB_BENCH_OR_DIE_H_

#include <cstdlib>
#include <iostream>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace paramshard {

inline void OrDie(const absl::Status& status, const char* what) {
  if (status.ok()) return;
  std::cerr << what << ": " << status << std::endl;
  std::_Exit(1);
}

template <typename T>
T OrDie(absl::StatusOr<T> value, const char* what) {
  OrDie(value.status(), what);
  return *std::move(value);
}

}  // namespace paramshard

#endif  // PARAMSHARD_LAB_BENCH_OR_DIE_H_
