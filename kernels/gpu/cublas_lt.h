// cuBLASLt, loaded when it is first needed: a program that linked it would not start without it.
#ifndef PARAMSHARD_KERNELS_GPU_CUBLAS_LT_H_
#define PARAMSHARD_KERNELS_GPU_CUBLAS_LT_H_

#include <cublasLt.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <tuple>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kernels/gpu/memory.h"

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

// Products of BF16 matrices with sums in float32, on one GPU. Move-only. Not thread-safe; the work of one stream at a
// time.
//
// The same matrices give the same bytes on one kind of GPU with one version of the library: the algorithm of a shape is
// the first that the library proposes among algorithms that do not split sums.
class Bf16Products {
 public:
  static absl::StatusOr<Bf16Products> Create(const CublasLt& library, int device);

  Bf16Products(Bf16Products&& other) noexcept;
  Bf16Products& operator=(Bf16Products&& other) noexcept;
  ~Bf16Products();

  // A matrix as BLAS has it: columns of elements that follow each other, `stride` elements from column to column. Data
  // and columns begin at multiples of 16 bytes.
  struct Matrix {
    uint16_t* data = nullptr;
    int64_t stride = 0;
    bool is_transposed = false;  // as an operand
  };
  // result = factor * left * right + addend_factor * addend: rows x columns with sums of `terms` products. `addend` may
  // be `result`.
  struct Product {
    Matrix left, right, addend, result;
    int64_t rows = 0;
    int64_t columns = 0;
    int64_t terms = 0;
    float factor = 1;
    float addend_factor = 0;
  };
  // Enqueues the product.
  absl::Status Enqueue(const Product& product, cudaStream_t stream);

  // Version of the library, and the algorithm of each shape so far.
  std::string description() const;

 private:
  // Operands' transposition, rows, columns, terms, strides.
  using Shape = std::tuple<bool, bool, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t>;
  struct Plan;

  Bf16Products() = default;
  absl::StatusOr<Plan*> PlanOf(const Product& product);

  const CublasLt* library_ = nullptr;
  int device_ = 0;
  cublasLtHandle_t handle_ = nullptr;
  DeviceMemory workspace_;
  std::map<Shape, std::unique_ptr<Plan>> plans_;
};

}  // namespace paramshard::gpu

#endif  // PARAMSHARD_KERNELS_GPU_CUBLAS_LT_H_
