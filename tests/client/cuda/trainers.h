// One training in three ways: by the host in host memory, by the host in memory of a GPU, and on streams. What they see
// and what they send must be the same, bit for bit.
#ifndef PARAMSHARD_TESTS_CLIENT_CUDA_TRAINERS_H_
#define PARAMSHARD_TESTS_CLIENT_CUDA_TRAINERS_H_

#include <cuda_runtime.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/client.h"
#include "kernels/gpu/memory.h"

namespace paramshard {

// Units "a" and "b": a matrix "a.w" in the format, whose rows divide badly, with BF16 gradients in "b", and a small
// FP32 vector "a.bias".
ModelSpec TwoUnits(Format format);

// Results of a training: every decoded plane of every step, in order, and the answers of commits.
struct Seen {
  std::vector<float> planes;
  std::vector<double> gradient_norms;
};

inline constexpr int kSteps = 4;

// The first works in either memory.
absl::StatusOr<Seen> TrainByHost(Model& model);
absl::StatusOr<Seen> TrainOnStreams(Model& model);

// Memory of the GPU for `count` values.
absl::StatusOr<gpu::DeviceMemory> DeviceFloats(int gpu, int64_t count);

// A word that the host opens and streams wait for: a kernel that takes as long as the test wants. Opens at its end.
class Gate {
 public:
  Gate();
  ~Gate();
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;

  absl::Status Await(cudaStream_t stream);
  void Open();

 private:
  uint32_t* word_ = nullptr;
};

}  // namespace paramshard

#endif  // PARAMSHARD_TESTS_CLIENT_CUDA_TRAINERS_H_
