#include "kernels/gpu/faults.h"

#include <errno.h>
#include <unistd.h>

#include <atomic>
#include <map>
#include <set>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"

namespace paramshard::gpu {
namespace {

struct Faults {
  // True once any device is broken. Every wait reads it, so it needs no lock.
  std::atomic<bool> any{false};
  absl::Mutex mu;
  std::map<int, absl::Status> by_device ABSL_GUARDED_BY(mu);
  std::set<const FaultWatch*> watches ABSL_GUARDED_BY(mu);
};

Faults& AllFaults() {
  static Faults& faults = *new Faults;
  return faults;
}

}  // namespace

bool IsFault(cudaError_t error) {
  switch (error) {
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalAddress:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorAssert:
    case cudaErrorLaunchFailure:
    case cudaErrorLaunchTimeout:
    case cudaErrorTensorMemoryLeak:
    case cudaErrorContained:
    case cudaErrorExternalDevice:
    case cudaErrorContextIsDestroyed:
      return true;
    default:
      return false;
  }
}

absl::Status FaultOf(int device) {
  Faults& faults = AllFaults();
  if (!faults.any.load(std::memory_order_acquire)) return absl::OkStatus();
  absl::MutexLock lock(&faults.mu);
  const auto found = faults.by_device.find(device);
  return found == faults.by_device.end() ? absl::OkStatus() : found->second;
}

absl::Status ReportFault(int device, absl::string_view what) {
  Faults& faults = AllFaults();
  absl::MutexLock lock(&faults.mu);
  const auto [fault, is_new] = faults.by_device.try_emplace(
      device, absl::InternalError(absl::StrCat("cuda:", device, " is broken: ", what, "; restart ",
                                               program_invocation_short_name, " (process ", getpid(), ")")));
  if (!is_new) return fault->second;
  faults.any.store(true, std::memory_order_release);
  for (const FaultWatch* watch : faults.watches) {
    if (watch->device_ == device) watch->on_fault_(fault->second);
  }
  return fault->second;
}

FaultWatch::FaultWatch(int device, std::function<void(const absl::Status&)> on_fault)
    : device_(device), on_fault_(std::move(on_fault)) {
  Faults& faults = AllFaults();
  absl::MutexLock lock(&faults.mu);
  faults.watches.insert(this);
  if (const auto found = faults.by_device.find(device); found != faults.by_device.end()) on_fault_(found->second);
}

FaultWatch::~FaultWatch() {
  Faults& faults = AllFaults();
  absl::MutexLock lock(&faults.mu);
  faults.watches.erase(this);
}

}  // namespace paramshard::gpu
