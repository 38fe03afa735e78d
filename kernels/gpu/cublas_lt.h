// cuBLASLt, loaded when it is first needed: a program that linked it would not start without it.
#ifndef PARAMSHARD_KERNELS_GPU_CUBLAS_LT_H_
#define PARAMSHARD_KERNELS_GPU_CUBLAS_LT_H_

#include <cublasLt.h>
#include <cuda_runtime.h>

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace paramshard::gpu {

struct CublasLt {
  // Returns the library at `path`; empty: libcublasLt.so.13 in the search path of the dynamic linker. The object lives
  // as long as the process. Thread-safe. FAILED_PRECONDITION if there is no such library, it is not cuBLASLt, or it is
  // older than 13.0; the message says what was found.
  static absl::StatusOr<const CublasLt*> Load(const std::string& path);

  // RESOURCE_EXHAUSTED if memory is missing; UNIMPLEMENTED if the library cannot do this on this GPU; INTERNAL otherwise.
  absl::Status ToStatus(cublasStatus_t status, absl::string_view operation) const;

  std::string version;  // "13.1.0"
  decltype(&cublasLtGetStatusString) get_status_string = nullptr;
  decltype(&cublasLtCreate) create = nullptr;
  decltype(&cublasLtDestroy) destroy = nullptr;
  decltype(&cublasLtMatmulDescInit_internal) descriptor_init = nullptr;
  decltype(&cublasLtMatmulDescSetAttribute) descriptor_set = nullptr;
  decltype(&cublasLtMatrixLayoutInit_internal) layout_init = nullptr;
  decltype(&cublasLtMatmulPreferenceInit_internal) preference_init = nullptr;
  decltype(&cublasLtMatmulPreferenceSetAttribute) preference_set = nullptr;
  decltype(&cublasLtMatmulAlgoGetHeuristic) find_algorithm = nullptr;
  decltype(&cublasLtMatmulAlgoConfigGetAttribute) algorithm_get = nullptr;
  decltype(&cublasLtMatmul) matmul = nullptr;
};

}  // namespace paramshard::gpu

#endif  // PARAMSHARD_KERNELS_GPU_CUBLAS_LT_H_
