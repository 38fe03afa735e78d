// Energy and clock of a GPU, by NVML: loaded at run time, because a machine without a driver lacks it.
#ifndef PARAMSHARD_LAB_BENCH_GPU_POWER_H_
#define PARAMSHARD_LAB_BENCH_GPU_POWER_H_

#include <cuda_runtime.h>
#include <dlfcn.h>

namespace paramshard {

// Readings are 0 if NVML is not found or fails.
class GpuPower {
 public:
  explicit GpuPower(int gpu) {
    void* const library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    char bus_id[32];
    if (library == nullptr || cudaDeviceGetPCIBusId(bus_id, sizeof(bus_id), gpu) != cudaSuccess) return;
    const auto start = reinterpret_cast<int (*)()>(dlsym(library, "nvmlInit_v2"));
    const auto find =
        reinterpret_cast<int (*)(const char*, void**)>(dlsym(library, "nvmlDeviceGetHandleByPciBusId_v2"));
    energy_ = reinterpret_cast<EnergyFunction*>(dlsym(library, "nvmlDeviceGetTotalEnergyConsumption"));
    clock_ = reinterpret_cast<ClockFunction*>(dlsym(library, "nvmlDeviceGetClockInfo"));
    if (start == nullptr || find == nullptr || start() != 0 || find(bus_id, &device_) != 0) device_ = nullptr;
  }

  // Since the driver was loaded.
  double Joules() const {
    unsigned long long millijoules = 0;
    if (device_ == nullptr || energy_ == nullptr || energy_(device_, &millijoules) != 0) return 0;
    return static_cast<double>(millijoules) / 1e3;
  }

  // Current clock of the multiprocessors.
  int Megahertz() const {
    constexpr int kMultiprocessors = 1;
    unsigned megahertz = 0;
    if (device_ == nullptr || clock_ == nullptr || clock_(device_, kMultiprocessors, &megahertz) != 0) return 0;
    return static_cast<int>(megahertz);
  }

 private:
  using EnergyFunction = int(void*, unsigned long long*);
  using ClockFunction = int(void*, int, unsigned*);

  void* device_ = nullptr;
  EnergyFunction* energy_ = nullptr;
  ClockFunction* clock_ = nullptr;
};

}  // namespace paramshard

#endif  // PARAMSHARD_LAB_BENCH_GPU_POWER_H_
