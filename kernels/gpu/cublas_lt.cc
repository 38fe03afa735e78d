#include "kernels/gpu/cublas_lt.h"

#include <map>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "kernels/base/status_macros.h"
#include "kernels/gpu/loaded_library.h"

namespace paramshard::gpu {
namespace {

constexpr absl::string_view kCublasLtName = "libcublasLt.so.13";
constexpr size_t kMinimumCublasLt = 130000;

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

}  // namespace paramshard::gpu
