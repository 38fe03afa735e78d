#include "kernels/products/cublas_lt_products.h"

#include <cublasLt.h>

#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "kernels/gpu/memory.h"
#include "kernels/gpu/stream.h"

namespace paramshard::gpu {
namespace {

// One shape's layouts and algorithm.
struct Plan {
  cublasLtMatmulDescOpaque_t descriptor;
  cublasLtMatrixLayoutOpaque_t left, right, addend, result;
  cublasLtMatmulAlgo_t algorithm;
  int32_t algorithm_id = 0;
  uint32_t tile_id = 0;
  uint32_t stages_id = 0;
};

cublasOperation_t OperationOf(const Operand& operand) { return operand.is_transposed ? CUBLAS_OP_T : CUBLAS_OP_N; }

class CublasLtProducts final : public MatrixProducts {
 public:
  static absl::StatusOr<std::unique_ptr<MatrixProducts>> Create(const CublasLt& library, int device) {
    ASSIGN_OR_RETURN(DeviceMemory workspace,
                     DeviceMemory::Create(device, kCublasLtWorkspaceBytes, {device}, /*shareable=*/false));
    const DeviceScope scope(device);
    cublasLtHandle_t handle = nullptr;
    RETURN_IF_ERROR(library.ToStatus(library.create(&handle), "open"));
    return std::unique_ptr<MatrixProducts>(new CublasLtProducts(library, device, handle, std::move(workspace)));
  }
  ~CublasLtProducts() override {
    const DeviceScope scope(device_);
    library_.destroy(handle_);
  }

  absl::Status Enqueue(absl::Span<const MatrixProduct> products, cudaStream_t stream) override {
    const DeviceScope scope(device_);
    for (const MatrixProduct& product : products) RETURN_IF_ERROR(EnqueueOne(product, stream));
    return absl::OkStatus();
  }

  int64_t workspace_bytes() const override { return workspace_.size_bytes(); }
  std::string description() const override {
    std::string text = absl::StrCat("cuBLASLt ", library_.version);
    for (const auto& [shape, plan] : plans_) {
      if (plan == nullptr) continue;
      absl::StrAppend(&text, "; ", std::get<2>(shape), " x ", std::get<3>(shape), " x ", std::get<4>(shape),
                      ": algorithm ", plan->algorithm_id, ", tile ", plan->tile_id, ", stages ", plan->stages_id);
    }
    return text;
  }

 private:
  // Transposition of the factors, rows, columns, terms, strides.
  using Shape = std::tuple<bool, bool, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t>;

  CublasLtProducts(const CublasLt& library, int device, cublasLtHandle_t handle, DeviceMemory workspace)
      : library_(library), device_(device), handle_(handle), workspace_(std::move(workspace)) {}

  // BLAS takes rows for columns, so that it sees the transpose of every matrix: it multiplies those in reverse order.
  absl::Status EnqueueOne(const MatrixProduct& product, cudaStream_t stream) {
    ASSIGN_OR_RETURN(Plan* const plan, PlanOf(product));
    const uint16_t* const addend = AddendOf(product).data;
    return library_.ToStatus(
        library_.matmul(handle_, &plan->descriptor, &product.factor, product.right.data, &plan->left, product.left.data,
                        &plan->right, &product.addend_factor, addend, &plan->addend, product.result.data, &plan->result,
                        &plan->algorithm, workspace_.data(), workspace_.size_bytes(), stream),
        "multiply");
  }

  static const Operand& AddendOf(const MatrixProduct& product) {
    return product.addend_factor == 0 ? product.result : product.addend;
  }

  absl::StatusOr<Plan*> PlanOf(const MatrixProduct& product) {
    const Operand& left = product.right;
    const Operand& right = product.left;
    const Shape shape = {left.is_transposed,   right.is_transposed, product.columns, product.rows,
                         product.terms,        left.stride,         right.stride,    AddendOf(product).stride,
                         product.result.stride};
    std::unique_ptr<Plan>& plan = plans_[shape];
    if (plan != nullptr) return plan.get();
    auto made = std::make_unique<Plan>();
    const cublasOperation_t left_operation = OperationOf(left);
    const cublasOperation_t right_operation = OperationOf(right);
    RETURN_IF_ERROR(
        Check(library_.descriptor_init(&made->descriptor, sizeof(made->descriptor), CUBLAS_COMPUTE_32F, CUDA_R_32F)));
    RETURN_IF_ERROR(Check(library_.descriptor_set(&made->descriptor, CUBLASLT_MATMUL_DESC_TRANSA, &left_operation,
                                                  sizeof(left_operation))));
    RETURN_IF_ERROR(Check(library_.descriptor_set(&made->descriptor, CUBLASLT_MATMUL_DESC_TRANSB, &right_operation,
                                                  sizeof(right_operation))));
    RETURN_IF_ERROR(LayOut(made->left, product.columns, product.terms, left));
    RETURN_IF_ERROR(LayOut(made->right, product.terms, product.rows, right));
    RETURN_IF_ERROR(LayOut(made->addend, product.columns, product.rows, AddendOf(product)));
    RETURN_IF_ERROR(LayOut(made->result, product.columns, product.rows, product.result));
    RETURN_IF_ERROR(ChooseAlgorithm(product, *made));
    plan = std::move(made);
    return plan.get();
  }

  absl::Status LayOut(cublasLtMatrixLayoutOpaque_t& layout, int64_t rows, int64_t columns,
                      const Operand& operand) const {
    if (operand.is_transposed) std::swap(rows, columns);
    return Check(library_.layout_init(&layout, sizeof(layout), CUDA_R_16BF, rows, columns, operand.stride));
  }

  absl::Status ChooseAlgorithm(const MatrixProduct& product, Plan& plan) const {
    cublasLtMatmulPreferenceOpaque_t preference;
    RETURN_IF_ERROR(Check(library_.preference_init(&preference, sizeof(preference))));
    const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
      return Check(library_.preference_set(&preference, attribute, &value, sizeof(value)));
    };
    constexpr uint32_t kAlignment = kOperandAlignment;
    RETURN_IF_ERROR(prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t{kCublasLtWorkspaceBytes}));
    RETURN_IF_ERROR(prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, uint32_t{CUBLASLT_REDUCTION_SCHEME_NONE}));
    RETURN_IF_ERROR(prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, kAlignment));
    RETURN_IF_ERROR(prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, kAlignment));
    RETURN_IF_ERROR(prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, kAlignment));
    RETURN_IF_ERROR(prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, kAlignment));
    cublasLtMatmulHeuristicResult_t found;
    int count = 0;
    RETURN_IF_ERROR(Check(library_.find_algorithm(handle_, &plan.descriptor, &plan.left, &plan.right, &plan.addend,
                                                  &plan.result, &preference, 1, &found, &count)));
    if (count == 0) {
      return absl::UnimplementedError(absl::StrCat("cuBLASLt ", library_.version, ": no algorithm for ", product.rows,
                                                   " x ", product.columns, " x ", product.terms, " in BF16"));
    }
    plan.algorithm = found.algo;
    const auto read = [&](cublasLtMatmulAlgoConfigAttributes_t attribute, auto& value) {
      return Check(library_.algorithm_get(&plan.algorithm, attribute, &value, sizeof(value), nullptr));
    };
    RETURN_IF_ERROR(read(CUBLASLT_ALGO_CONFIG_ID, plan.algorithm_id));
    RETURN_IF_ERROR(read(CUBLASLT_ALGO_CONFIG_TILE_ID, plan.tile_id));
    return read(CUBLASLT_ALGO_CONFIG_STAGES_ID, plan.stages_id);
  }

  absl::Status Check(cublasStatus_t status) const { return library_.ToStatus(status, "choose an algorithm"); }

  // Constant after construction.
  const CublasLt& library_;
  const int device_;
  const cublasLtHandle_t handle_;
  const DeviceMemory workspace_;

  std::map<Shape, std::unique_ptr<Plan>> plans_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<MatrixProducts>> MakeCublasLtProducts(const CublasLt& library, int device) {
  return CublasLtProducts::Create(library, device);
}

}  // namespace paramshard::gpu
