// A fixture for tests that need a GPU, and arrays on the GPU.

#ifndef PARAMSHARD_TESTS_KERNELS_GPU_TEST_H_
#define PARAMSHARD_TESTS_KERNELS_GPU_TEST_H_

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/gpu/status.h"
#include "kernels/gpu/stream.h"

namespace paramshard::gpu {

// Skips its tests, with the reason, where there is no GPU.
class GpuTest : public testing::Test {
 protected:
  static constexpr int kDevice = 0;

  void SetUp() override {
    int count = 0;
    const absl::Status status = ToStatus(cudaGetDeviceCount(&count), "count GPUs");
    if (!status.ok()) GTEST_SKIP() << "no GPU: " << status;
    if (count == 0) GTEST_SKIP() << "no GPU: the driver finds none";
    absl::StatusOr<Stream> stream = Stream::Create(kDevice);
    ASSERT_TRUE(stream.ok()) << stream.status();
    stream_ = *std::move(stream);
  }

  cudaStream_t stream() const { return stream_.get(); }
  // Waits for the stream; a failed kernel fails the test.
  void Synchronize() const {
    const absl::Status status = stream_.Synchronize();
    ASSERT_TRUE(status.ok()) << status;
  }

 private:
  Stream stream_;
};

// An array on the current GPU, `offset` bytes past an address that is aligned to 256. Move-only. Guard bytes before and
// after it detect writes out of bounds.
template <typename T>
class DeviceArray {
 public:
  DeviceArray() = default;
  explicit DeviceArray(const std::vector<T>& values, int64_t offset = 0)
      : count_(static_cast<int64_t>(values.size())), offset_(kGuardBytes + offset) {
    const int64_t bytes = TotalBytes();
    EXPECT_EQ(cudaMalloc(&memory_, bytes), cudaSuccess);
    EXPECT_EQ(cudaMemset(memory_, kGuard, bytes), cudaSuccess);
    Upload(values);
  }
  DeviceArray(DeviceArray&& other) noexcept { *this = std::move(other); }
  DeviceArray& operator=(DeviceArray&& other) noexcept {
    std::swap(memory_, other.memory_);
    std::swap(count_, other.count_);
    std::swap(offset_, other.offset_);
    return *this;
  }
  ~DeviceArray() { cudaFree(memory_); }

  T* data() const { return reinterpret_cast<T*>(static_cast<uint8_t*>(memory_) + offset_); }

  // Requires as many values as the array has.
  void Upload(const std::vector<T>& values) {
    EXPECT_EQ(cudaMemcpy(data(), values.data(), count_ * sizeof(T), cudaMemcpyHostToDevice), cudaSuccess);
    // Streams do not wait for the default stream, and a copy may return before its last bytes have arrived.
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  }

  // The values now. Work on streams must be done.
  std::vector<T> Download() const {
    std::vector<uint8_t> bytes(TotalBytes());
    EXPECT_EQ(cudaMemcpy(bytes.data(), memory_, bytes.size(), cudaMemcpyDeviceToHost), cudaSuccess);
    const int64_t size = count_ * static_cast<int64_t>(sizeof(T));
    int64_t overwritten = 0;
    for (int64_t i = 0; i < TotalBytes(); ++i)
      overwritten += (i < offset_ || i >= offset_ + size) && bytes[i] != kGuard;
    EXPECT_EQ(overwritten, 0) << "bytes around an array of " << size;
    std::vector<T> values(count_);
    std::copy_n(bytes.data() + offset_, size, reinterpret_cast<uint8_t*>(values.data()));
    return values;
  }

 private:
  static constexpr int64_t kGuardBytes = 256;
  static constexpr uint8_t kGuard = 0xa5;

  int64_t TotalBytes() const { return offset_ + count_ * static_cast<int64_t>(sizeof(T)) + kGuardBytes; }

  void* memory_ = nullptr;
  int64_t count_ = 0;
  int64_t offset_ = 0;
};

}  // namespace paramshard::gpu

#endif  // PARAMSHARD_TESTS_KERNELS_GPU_TEST_H_
