// Matrix products for benchmarks, by cuBLAS: loaded at run time, because it is too large to carry along.
#ifndef PARAMSHARD_LAB_BENCH_BLAS_H_
#define PARAMSHARD_LAB_BENCH_BLAS_H_

#include <cublas_v2.h>
#include <cuda_runtime.h>
#include <dlfcn.h>

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "lab/bench/or_die.h"

namespace paramshard {

// The functions of cuBLAS that are used here.
class Blas {
 public:
  explicit Blas(cudaStream_t stream) {
    void* const library = dlopen("libcublas.so.13", RTLD_NOW);
    if (library == nullptr) OrDie(absl::NotFoundError(dlerror()), "load cuBLAS");
    const auto create = reinterpret_cast<decltype(&cublasCreate_v2)>(dlsym(library, "cublasCreate_v2"));
    const auto set_stream = reinterpret_cast<decltype(&cublasSetStream_v2)>(dlsym(library, "cublasSetStream_v2"));
    multiply_ = reinterpret_cast<MultiplyFunction*>(dlsym(library, "cublasGemmEx"));
    if (create == nullptr || set_stream == nullptr || multiply_ == nullptr ||
        create(&handle_) != CUBLAS_STATUS_SUCCESS || set_stream(handle_, stream) != CUBLAS_STATUS_SUCCESS) {
      OrDie(absl::InternalError("cublasCreate failed"), "load cuBLAS");
    }
  }

  // c (m x n) = a (m x k) times b (k x n), all bf16, in any layout: only the time counts.
  void Multiply(int64_t m, int64_t n, int64_t k, const void* a, const void* b, void* c) const {
    const float one = 1;
    const float zero = 0;
    const cublasStatus_t status =
        multiply_(handle_, CUBLAS_OP_N, CUBLAS_OP_N, static_cast<int>(m), static_cast<int>(n), static_cast<int>(k),
                  &one, a, CUDA_R_16BF, static_cast<int>(m), b, CUDA_R_16BF, static_cast<int>(k), &zero, c, CUDA_R_16BF,
                  static_cast<int>(m), CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
    if (status != CUBLAS_STATUS_SUCCESS) OrDie(absl::InternalError(absl::StrCat("status ", status)), "matrix product");
  }

 private:
  // cublasGemmEx, which the header overloads.
  using MultiplyFunction = cublasStatus_t(cublasHandle_t, cublasOperation_t, cublasOperation_t, int, int, int,
                                          const void*, const void*, cudaDataType, int, const void*, cudaDataType, int,
                                          const void*, void*, cudaDataType, int, cublasComputeType_t, cublasGemmAlgo_t);

  cublasHandle_t handle_ = nullptr;
  MultiplyFunction* multiply_ = nullptr;
};

}  // namespace paramshard

#endif  // PARAMSHARD_LAB_BENCH_BLAS_H_
