#include "kernels/gpu/cublas_lt.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "kernels/base/status_macros.h"
#include "kernels/gpu/loaded_library.h"
#include "kernels/gpu/stream.h"

namespace paramshard::gpu {
namespace {

constexpr absl::string_view kCublasLtName = "libcublasLt.so.13";
constexpr size_t kMinimumCublasLt = 130000;
// Recommended for GPUs of compute capability 9.0.
constexpr int64_t kWorkspaceBytes = int64_t{32} << 20;
constexpr uint32_t kAlignmentBytes = 16;

std::string CublasLtVersion(size_t version) {
  return absl::StrCat(version / 10000, ".", version % 10000 / 100, ".", version % 100);
}

absl::StatusOr<CublasLt> LoadCublasLt(const std::string& name) {
  ASSIGN_OR_RETURN(
      const LoadedLibrary library,
      LoadedLibrary::Open(name, absl::StrCat("cuBLASLt: want ", CublasLtVersion(kMinimumCublasLt), " or newer")));
  decltype(&cublasLtGetVersion) get_version = nullptr;
  RETURN_IF_ERROR(library.LookUp("cublasLtGetVersion", get_version));
  CublasLt lt;
  lt.version = CublasLtVersion(get_version());
  if (get_version() < kMinimumCublasLt) return library.Reject(absl::StrCat("is ", lt.version));
  RETURN_IF_ERROR(library.LookUp("cublasLtGetStatusString", lt.get_status_string));
  RETURN_IF_ERROR(library.LookUp("cublasLtCreate", lt.create));
  RETURN_IF_ERROR(library.LookUp("cublasLtDestroy", lt.destroy));
  RETURN_IF_ERROR(library.LookUp("cublasLtMatmulDescInit_internal", lt.descriptor_init));
  RETURN_IF_ERROR(library.LookUp("cublasLtMatmulDescSetAttribute", lt.descriptor_set));
  RETURN_IF_ERROR(library.LookUp("cublasLtMatrixLayoutInit_internal", lt.layout_init));
  RETURN_IF_ERROR(library.LookUp("cublasLtMatmulPreferenceInit_internal", lt.preference_init));
  RETURN_IF_ERROR(library.LookUp("cublasLtMatmulPreferenceSetAttribute", lt.preference_set));
  RETURN_IF_ERROR(library.LookUp("cublasLtMatmulAlgoGetHeuristic", lt.find_algorithm));
  RETURN_IF_ERROR(library.LookUp("cublasLtMatmulAlgoConfigGetAttribute", lt.algorithm_get));
  RETURN_IF_ERROR(library.LookUp("cublasLtMatmul", lt.matmul));
  return lt;
}

cublasOperation_t OperationOf(const Bf16Products::Matrix& matrix) {
  return matrix.is_transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
}

}  // namespace

absl::StatusOr<const CublasLt*> CublasLt::Load(const std::string& path) {
  static absl::Mutex& mu = *new absl::Mutex;
  static std::map<std::string, CublasLt>& loaded = *new std::map<std::string, CublasLt>;
  const std::string name = path.empty() ? std::string(kCublasLtName) : path;
  absl::MutexLock lock(&mu);
  if (const auto found = loaded.find(name); found != loaded.end()) return &found->second;
  ASSIGN_OR_RETURN(const CublasLt library, LoadCublasLt(name));
  return &loaded.emplace(name, library).first->second;
}

absl::Status CublasLt::ToStatus(cublasStatus_t status, absl::string_view operation) const {
  const auto code = [&] {
    switch (status) {
      case CUBLAS_STATUS_SUCCESS:
        return absl::StatusCode::kOk;
      case CUBLAS_STATUS_ALLOC_FAILED:
        return absl::StatusCode::kResourceExhausted;
      case CUBLAS_STATUS_NOT_SUPPORTED:
      case CUBLAS_STATUS_ARCH_MISMATCH:
        return absl::StatusCode::kUnimplemented;
      default:
        return absl::StatusCode::kInternal;
    }
  }();
  if (code == absl::StatusCode::kOk) return absl::OkStatus();
  return absl::Status(code, absl::StrCat("cuBLASLt ", version, ": ", operation, ": ", get_status_string(status)));
}

// One shape's layouts and algorithm.
struct Bf16Products::Plan {
  cublasLtMatmulDescOpaque_t descriptor;
  cublasLtMatrixLayoutOpaque_t left, right, result;
  cublasLtMatmulAlgo_t algorithm;
  int32_t algorithm_id = 0;
  uint32_t tile_id = 0;
  uint32_t stages_id = 0;
};

absl::StatusOr<Bf16Products> Bf16Products::Create(const CublasLt& library, int device) {
  Bf16Products products;
  products.library_ = &library;
  products.device_ = device;
  ASSIGN_OR_RETURN(products.workspace_, DeviceMemory::Create(device, kWorkspaceBytes, {device}, /*shareable=*/false));
  const DeviceScope scope(device);
  RETURN_IF_ERROR(library.ToStatus(library.create(&products.handle_), "open"));
  return products;
}

Bf16Products::Bf16Products(Bf16Products&& other) noexcept { *this = std::move(other); }

Bf16Products& Bf16Products::operator=(Bf16Products&& other) noexcept {
  std::swap(library_, other.library_);
  std::swap(device_, other.device_);
  std::swap(handle_, other.handle_);
  std::swap(workspace_, other.workspace_);
  std::swap(plans_, other.plans_);
  return *this;
}

Bf16Products::~Bf16Products() {
  if (handle_ == nullptr) return;
  const DeviceScope scope(device_);
  library_->destroy(handle_);
}

absl::StatusOr<Bf16Products::Plan*> Bf16Products::PlanOf(const Product& product) {
  const Matrix& left = product.left;
  const Matrix& right = product.right;
  const Shape shape = {left.is_transposed, right.is_transposed, product.rows, product.columns,
                       product.terms,      left.stride,         right.stride, product.result.stride};
  std::unique_ptr<Plan>& plan = plans_[shape];
  if (plan != nullptr) return plan.get();
  const CublasLt& lt = *library_;
  auto made = std::make_unique<Plan>();
  const cublasOperation_t left_operation = OperationOf(left);
  const cublasOperation_t right_operation = OperationOf(right);
  const auto lay_out = [&](cublasLtMatrixLayoutOpaque_t& layout, int64_t rows, int64_t columns, int64_t stride,
                           bool is_transposed) {
    if (is_transposed) std::swap(rows, columns);
    return lt.ToStatus(lt.layout_init(&layout, sizeof(layout), CUDA_R_16BF, rows, columns, stride), "lay out");
  };
  RETURN_IF_ERROR(lt.ToStatus(
      lt.descriptor_init(&made->descriptor, sizeof(made->descriptor), CUBLAS_COMPUTE_32F, CUDA_R_32F), "describe"));
  RETURN_IF_ERROR(lt.ToStatus(
      lt.descriptor_set(&made->descriptor, CUBLASLT_MATMUL_DESC_TRANSA, &left_operation, sizeof(left_operation)),
      "describe"));
  RETURN_IF_ERROR(lt.ToStatus(
      lt.descriptor_set(&made->descriptor, CUBLASLT_MATMUL_DESC_TRANSB, &right_operation, sizeof(right_operation)),
      "describe"));
  RETURN_IF_ERROR(lay_out(made->left, product.rows, product.terms, left.stride, left.is_transposed));
  RETURN_IF_ERROR(lay_out(made->right, product.terms, product.columns, right.stride, right.is_transposed));
  RETURN_IF_ERROR(lay_out(made->result, product.rows, product.columns, product.result.stride, false));

  cublasLtMatmulPreferenceOpaque_t preference;
  RETURN_IF_ERROR(lt.ToStatus(lt.preference_init(&preference, sizeof(preference)), "choose an algorithm"));
  const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
    return lt.ToStatus(lt.preference_set(&preference, attribute, &value, sizeof(value)), "choose an algorithm");
  };
  RETURN_IF_ERROR(prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t{kWorkspaceBytes}));
  RETURN_IF_ERROR(prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, uint32_t{CUBLASLT_REDUCTION_SCHEME_NONE}));
  RETURN_IF_ERROR(prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, kAlignmentBytes));
  RETURN_IF_ERROR(prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, kAlignmentBytes));
  RETURN_IF_ERROR(prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, kAlignmentBytes));
  RETURN_IF_ERROR(prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, kAlignmentBytes));
  cublasLtMatmulHeuristicResult_t found;
  int count = 0;
  RETURN_IF_ERROR(lt.ToStatus(lt.find_algorithm(handle_, &made->descriptor, &made->left, &made->right, &made->result,
                                                &made->result, &preference, 1, &found, &count),
                              "choose an algorithm"));
  if (count == 0) {
    return absl::UnimplementedError(absl::StrCat("cuBLASLt ", lt.version, ": no algorithm for ", product.rows, " x ",
                                                 product.columns, " x ", product.terms, " in BF16"));
  }
  made->algorithm = found.algo;
  const auto read = [&](cublasLtMatmulAlgoConfigAttributes_t attribute, auto& value) {
    return lt.ToStatus(lt.algorithm_get(&made->algorithm, attribute, &value, sizeof(value), nullptr),
                       "read an algorithm");
  };
  RETURN_IF_ERROR(read(CUBLASLT_ALGO_CONFIG_ID, made->algorithm_id));
  RETURN_IF_ERROR(read(CUBLASLT_ALGO_CONFIG_TILE_ID, made->tile_id));
  RETURN_IF_ERROR(read(CUBLASLT_ALGO_CONFIG_STAGES_ID, made->stages_id));
  plan = std::move(made);
  return plan.get();
}

absl::Status Bf16Products::Enqueue(const Product& product, cudaStream_t stream) {
  const DeviceScope scope(device_);
  ASSIGN_OR_RETURN(Plan* const plan, PlanOf(product));
  return library_->ToStatus(
      library_->matmul(handle_, &plan->descriptor, &product.factor, product.left.data, &plan->left, product.right.data,
                       &plan->right, &product.addend_factor, product.addend.data, &plan->result, product.result.data,
                       &plan->result, &plan->algorithm, workspace_.data(), workspace_.size_bytes(), stream),
      "multiply");
}

std::string Bf16Products::description() const {
  std::string text = absl::StrCat("cuBLASLt ", library_->version);
  for (const auto& [shape, plan] : plans_) {
    if (plan == nullptr) continue;
    absl::StrAppend(&text, "; ", std::get<2>(shape), " x ", std::get<3>(shape), " x ", std::get<4>(shape),
                    ": algorithm ", plan->algorithm_id, ", tile ", plan->tile_id, ", stages ", plan->stages_id);
  }
  return text;
}

}  // namespace paramshard::gpu
