// A library that a keeper is started with (LD_PRELOAD): servers break the context of their GPU 0 when GpuFault asks.

#include <cuda_runtime.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

// GpuFault::kVariable, and KeeperLink::kVariable, which servers alone have.
constexpr char kVariable[] = "PARAMSHARD_TEST_GPU_FAULT";
constexpr char kServerVariable[] = "PARAMSHARD_KEEPER_SOCKET";
constexpr useconds_t kPauseMicroseconds = 500;

__global__ void WriteKernel(volatile int* address) { *address = 1; }

// The runtimes of this library and of the server use the same context: the device's primary context.
void Break() {
  WriteKernel<<<1, 1>>>(reinterpret_cast<int*>(uintptr_t{0x10000}));
  std::fprintf(stderr, "gpu_fault: %s\n", cudaGetErrorString(cudaDeviceSynchronize()));
}

void* BreakWhenAsked(void* path) {
  while (true) {
    while (access(static_cast<const char*>(path), F_OK) != 0) usleep(kPauseMicroseconds);
    Break();
    unlink(static_cast<const char*>(path));
  }
}

// The server has signals for threads of its own.
[[gnu::constructor]] void Begin() {
  const char* const path = std::getenv(kVariable);
  if (path == nullptr || std::getenv(kServerVariable) == nullptr) return;
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, &before);
  pthread_t thread;
  if (pthread_create(&thread, nullptr, BreakWhenAsked, strdup(path)) == 0) pthread_detach(thread);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

}  // namespace
