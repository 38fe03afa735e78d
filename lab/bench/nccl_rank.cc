#include "lab/bench/nccl_rank.h"

#include <dlfcn.h>

#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "kernels/gpu/nccl.h"
#include "lab/bench/or_die.h"
#include "tests/support/environment.h"

namespace paramshard {
namespace {

constexpr int kZeroCtaVersion = NCCL_VERSION(2, 28, 0);

void* Library() {
  static void* const library = [] {
    gpu::SetNcclEnvironment();
    return dlopen(test::EnvironmentOr("PARAMSHARD_NCCL_LIBRARY", "libnccl.so.2").c_str(), RTLD_NOW | RTLD_LOCAL);
  }();
  return library;
}

template <typename Function>
Function* LookUp(Function*, const char* name) {
  auto* const function = reinterpret_cast<Function*>(dlsym(Library(), name));
  if (function == nullptr) OrDie(absl::NotFoundError(name), "NCCL");
  return function;
}
// The library's function of the header's type.
#define NCCL_FUNCTION(name) LookUp(&name, #name)

void Check(ncclResult_t result, const char* operation) {
  if (result == ncclSuccess) return;
  OrDie(absl::InternalError(NCCL_FUNCTION(ncclGetErrorString)(result)), operation);
}

}  // namespace

absl::Status NcclRank::Available(Kind kind) {
  if (Library() == nullptr) return absl::FailedPreconditionError(absl::StrCat("no NCCL: ", dlerror()));
  if (kind == Kind::kKernels) return absl::OkStatus();
  if (NCCL_VERSION_CODE < kZeroCtaVersion) {
    return absl::FailedPreconditionError(absl::StrCat("built with NCCL ", NCCL_VERSION_CODE, ", before zero-CTA"));
  }
  int version = 0;
  Check(NCCL_FUNCTION(ncclGetVersion)(&version), "version");
  if (version >= kZeroCtaVersion) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("NCCL ", version, " is here, zero-CTA came with 2.28"));
}

ncclUniqueId NcclRank::MakeId() {
  ncclUniqueId id;
  Check(NCCL_FUNCTION(ncclGetUniqueId)(&id), "make an id");
  return id;
}

NcclRank::NcclRank(Kind kind, const ncclUniqueId& id, int rank, int size) : kind_(kind), rank_(rank) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 28, 0)
  if (kind == Kind::kZeroCta) config.CTAPolicy = NCCL_CTA_POLICY_ZERO;
#endif
  Check(NCCL_FUNCTION(ncclCommInitRankConfig)(&communicator_, size, id, rank, &config), "join");
}

uint8_t* NcclRank::Allocate(int64_t size_bytes) const {
  const auto size = static_cast<size_t>((size_bytes + 4095) / 4096 * 4096);
  void* data = nullptr;
  Check(NCCL_FUNCTION(ncclMemAlloc)(&data, size), "allocate");
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 28, 0)
  ncclWindow_t window;
  if (kind_ == Kind::kZeroCta) {
    Check(NCCL_FUNCTION(ncclCommWindowRegister)(communicator_, data, size, &window, NCCL_WIN_COLL_SYMMETRIC),
          "register a window");
  }
#endif
  return static_cast<uint8_t*>(data);
}

void NcclRank::AllGather(uint8_t* data, int64_t bytes_per_rank, cudaStream_t stream) const {
  static auto* const all_gather = NCCL_FUNCTION(ncclAllGather);
  Check(all_gather(data + rank_ * bytes_per_rank, data, static_cast<size_t>(bytes_per_rank), ncclUint8, communicator_,
                   stream),
        "all-gather");
}

void NcclRank::ReduceScatter(const void* data, void* out, int64_t count, cudaStream_t stream) const {
  static auto* const reduce_scatter = NCCL_FUNCTION(ncclReduceScatter);
  Check(reduce_scatter(data, out, static_cast<size_t>(count), ncclBfloat16, ncclSum, communicator_, stream),
        "reduce-scatter");
}

void NcclRank::SumOverRanks(double* value, cudaStream_t stream) const {
  static auto* const all_reduce = NCCL_FUNCTION(ncclAllReduce);
  Check(all_reduce(value, value, 1, ncclFloat64, ncclSum, communicator_, stream), "all-reduce");
}

}  // namespace paramshard
