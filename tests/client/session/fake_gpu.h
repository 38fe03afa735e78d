// A GPU, played by a test: memory of the host, and streams that do nothing until the test lets them run.
#ifndef PARAMSHARD_TESTS_CLIENT_SESSION_FAKE_GPU_H_
#define PARAMSHARD_TESTS_CLIENT_SESSION_FAKE_GPU_H_

#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "client/internal/tensor_memory.h"

namespace paramshard {

inline constexpr int kFakeGpu = 7;
inline constexpr char kFakeGpuUuid[] = "0123456789abcdef";

// Single-threaded. Outlives the memory that it maps.
class FakeGpu {
 public:
  FakeGpu() : default_(NewStream()), own_(NewStream()), return_(NewStream()) {}

  internal::GpuStream NewStream();
  // The trainer's.
  internal::GpuStream default_stream() const { return default_; }
  // Enqueues; `operation` is tried again until it returns true, and nothing behind it before.
  void Enqueue(internal::GpuStream stream, std::function<bool()> operation);
  // Lets all streams go as far as they can.
  void Run();
  bool Idle(internal::GpuStream stream) const;

  internal::TensorMapper Mapper();
  // Returns the work enqueued since the last call, like "await", "write", "copy 3", "zero".
  std::vector<std::string> TakeLog() { return std::exchange(log_, {}); }

 private:
  class Memory;
  struct Stream {
    std::deque<std::function<bool()>> operations;
  };
  static Stream& Of(internal::GpuStream stream) { return *reinterpret_cast<Stream*>(stream); }

  std::deque<Stream> streams_;
  const internal::GpuStream default_;
  const internal::GpuStream own_, return_;
  std::vector<std::string> log_;
};

}  // namespace paramshard

#endif  // PARAMSHARD_TESTS_CLIENT_SESSION_FAKE_GPU_H_
