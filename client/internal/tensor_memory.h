// Memory of a session's tensors, planes and slots, on the host or on a GPU.
#ifndef PARAMSHARD_CLIENT_INTERNAL_TENSOR_MEMORY_H_
#define PARAMSHARD_CLIENT_INTERNAL_TENSOR_MEMORY_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "client/internal/companion.h"
#include "client/internal/mapped_memory.h"
#include "common/shared_memory/words.h"
#include "kernels/reduce/gradient.h"

struct CUstream_st;

namespace paramshard::internal {

// A cudaStream_t, without CUDA's headers.
using GpuStream = CUstream_st*;

struct ByteCopy {
  const uint8_t* source = nullptr;
  uint8_t* target = nullptr;
  int64_t bytes = 0;
};

// A copy of gradients, which are rounded where the target's type has fewer bits.
struct GradientCopy {
  ConstGradient source;
  MutableGradient target;
  int64_t count = 0;
};

struct WordOperation {
  enum class Kind : uint8_t { kAwait, kWrite };
  Kind kind = Kind::kAwait;
  wire::Word* word = nullptr;
  uint32_t value = 0;  // kAwait: ends when the word has reached it, as wire::Reached compares
};

// Work on the memory of a GPU is enqueued on a stream and done in the stream's order; on host memory, which has no
// streams, it is done at once. Destroying the object waits until every stream of the GPU is done, and unmaps; where
// they are not done within the timeout, the memory stays mapped for the life of the process. Used by one thread at a
// time.
class TensorMemory {
 public:
  virtual ~TensorMemory() = default;

  // Waits and unmaps as the destructor does. Nothing that reads or writes the memory may be called after it.
  virtual void Unmap() = 0;

  virtual const uint8_t* planes() const = 0;
  virtual uint8_t* slots() const = 0;
  // Memory of the session alone, beside the slots: only on a GPU, null elsewhere.
  virtual uint8_t* scratch() const = 0;
  // This process's index of the GPU; -1: host memory.
  virtual int gpu() const = 0;
  // The session's own stream, which the host waits for; null in host memory.
  virtual GpuStream own_stream() const = 0;
  // Stream that gives back slots which the trainer's work may still use; the host never waits for it. Null in host
  // memory.
  virtual GpuStream return_stream() const = 0;

  // Copies inside this memory that do not overlap, in any order among themselves.
  virtual absl::Status Copy(absl::Span<const ByteCopy> copies, GpuStream stream) = 0;
  virtual absl::Status Zero(uint8_t* data, int64_t bytes, GpuStream stream) = 0;
  // Copies from memory of the trainer, of the same GPU or host, into this memory.
  virtual absl::Status CopyGradients(absl::Span<const GradientCopy> copies, GpuStream stream) = 0;
  // Waits until the stream has done everything that was enqueued so far. DEADLINE_EXCEEDED after the timeout.
  virtual absl::Status Synchronize(GpuStream stream) = 0;
  // Lets `stream` wait for the work so far of the GPU's default stream, and of every other stream that waits for that
  // one (all but cudaStreamNonBlocking streams). Does nothing in host memory.
  virtual absl::Status FollowDefaultStream(GpuStream stream) = 0;

  // --- Only on a GPU.

  // Returns a number that no other stream of the process has or will have; 0: not known.
  virtual uint64_t IdOf(GpuStream stream) const = 0;
  // Enqueues in order. Words are in the page that the memory was mapped with.
  virtual absl::Status EnqueueWords(absl::Span<const WordOperation> operations, GpuStream stream) = 0;
  // Records a point in `stream` in place of the earlier point of `mark`; AwaitMark lets a stream wait until that point.
  // Marks are numbered from 0.
  virtual absl::Status SetMark(int mark, GpuStream stream) = 0;
  virtual absl::Status AwaitMark(int mark, GpuStream stream) = 0;
};

// A trainer's stream also does the trainer's own work, of unknown length; no step takes this long.
inline constexpr absl::Duration kStreamWorkTimeout = absl::Minutes(5);

// Arguments of MapTensors.
struct TensorMemoryParts {
  const SessionMemory* memory = nullptr;           // descriptors of planes and slots, and their sizes
  std::shared_ptr<const MappedMemory> words = {};  // kept as long as streams may touch them
  int64_t scratch_bytes = 0;
  int marks = 0;
  absl::Duration timeout = kStreamWorkTimeout;  // of every wait of the host for streams
};

// Maps memory from the daemon: host memory where `gpu_uuid` is empty, else memory of that GPU.
// FAILED_PRECONDITION: this process does not see the GPU; UNIMPLEMENTED: this client was built without CUDA.
absl::StatusOr<std::unique_ptr<TensorMemory>> MapTensors(absl::string_view gpu_uuid, const TensorMemoryParts& parts);

using TensorMapper = std::function<decltype(MapTensors)>;

// One rank's planes, mapped read-only. The last reference unmaps them, on a GPU as TensorMemory does.
struct PlaneMemory {
  std::shared_ptr<const uint8_t> data;
  int gpu = -1;  // as TensorMemory::gpu()
};

// Maps planes without the rest of a session. Errors of MapTensors, and of MappedMemory::Map.
absl::StatusOr<PlaneMemory> MapPlanes(absl::string_view gpu_uuid, const wire::FileDescriptor& fd, int64_t size_bytes);

// Copies in host memory.
void CopyGradientOnHost(const GradientCopy& copy);

// Formats a UUID as NVIDIA's tools do: "GPU-01234567-89ab-cdef-0123-456789abcdef". Requires 16 bytes.
std::string GpuName(absl::string_view uuid);

}  // namespace paramshard::internal

#endif  // PARAMSHARD_CLIENT_INTERNAL_TENSOR_MEMORY_H_
