// A shared library that is loaded when it is first needed: a program that linked it would not start without it.
#ifndef PARAMSHARD_KERNELS_GPU_LOADED_LIBRARY_H_
#define PARAMSHARD_KERNELS_GPU_LOADED_LIBRARY_H_

#include <dlfcn.h>

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

namespace paramshard::gpu {

// Stays loaded as long as the process. `wanted` begins every message: "NCCL: want 2.24.0 or newer".
class LoadedLibrary {
 public:
  // FAILED_PRECONDITION if there is no such library, here and below.
  static absl::StatusOr<LoadedLibrary> Open(const std::string& name, std::string wanted) {
    void* const library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library != nullptr) return LoadedLibrary(library, name, std::move(wanted));
    return absl::FailedPreconditionError(absl::StrCat(wanted, ", failed to load it: ", dlerror()));
  }

  // Sets `function` to a function of the library.
  template <typename Function>
  absl::Status LookUp(const char* symbol, Function& function) const {
    function = Find<Function>(symbol);
    return function != nullptr ? absl::OkStatus() : Reject(absl::StrCat("has no function ", symbol));
  }
  // Null if the library has no such function.
  template <typename Function>
  Function Find(const char* symbol) const {
    return reinterpret_cast<Function>(dlsym(library_, symbol));
  }

  // The error for a library that `is_or_has` something else: "is 2.23.4".
  absl::Status Reject(const std::string& is_or_has) const {
    return absl::FailedPreconditionError(absl::StrCat(wanted_, ", ", name_, " ", is_or_has));
  }

 private:
  LoadedLibrary(void* library, std::string name, std::string wanted)
      : library_(library), name_(std::move(name)), wanted_(std::move(wanted)) {}

  void* library_;
  std::string name_;
  std::string wanted_;
};

}  // namespace paramshard::gpu

#endif  // PARAMSHARD_KERNELS_GPU_LOADED_LIBRARY_H_
