// A device that fails when a test says so, over one that works.
#ifndef PARAMSHARD_TESTS_SERVER_DEVICE_FAULTY_DEVICE_H_
#define PARAMSHARD_TESTS_SERVER_DEVICE_FAULTY_DEVICE_H_

#include <algorithm>
#include <atomic>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "server/device/compute_device.h"

namespace paramshard::server {

// Shared state of the devices of one test. Thread-safe.
struct DeviceFaults {
  // Memory, arithmetic, queues and opened pages count alike.
  std::atomic<int> allocations{0};
  std::atomic<int> failing_allocation{0};  // counted from 1; 0: none
  std::atomic<int> writes{0};
  std::atomic<int> failing_write{0};  // likewise
  std::atomic<absl::StatusCode> write_error{absl::StatusCode::kInternal};
  std::atomic<bool> failing_copies{false};  // of queues
  // Told in place of the devices' own, if not empty. Set it before they are used.
  std::string gpu_uuid = {};
  // Called before memory is written. Set it only while no memory is.
  std::function<void()> before_write = [] {};

  // Called before memory is allocated, with its name. Set it only while no memory is.
  std::function<void(const std::string& name)> before_allocation = [](const std::string&) {};

  // Most bytes read by one call of Read or ReadTo.
  std::atomic<int64_t> largest_read{0};

  // Bytes of memory that is not freed yet, and bytes that all devices together say they have.
  std::atomic<int64_t> allocated_bytes{0};
  std::atomic<int64_t> total_bytes{std::numeric_limits<int64_t>::max()};
  std::atomic<int64_t> availability_questions{0};
};

// Allocations that fail are RESOURCE_EXHAUSTED, writes DeviceFaults::write_error. A device that is broken
// (health().Break) answers with what broke it. `faults` outlives the device and its memory.
class FaultyDevice final : public ComputeDevice {
 public:
  FaultyDevice(std::unique_ptr<ComputeDevice> inner, DeviceFaults* faults)
      : ComputeDevice(inner->id()), faults_(faults), inner_(std::move(inner)) {
    inner_->health().SetListener([this](const absl::Status& why) { health().Break(why); });
  }
  ~FaultyDevice() override { inner_->health().SetListener(nullptr); }

  std::string gpu_uuid() const override { return faults_->gpu_uuid.empty() ? inner_->gpu_uuid() : faults_->gpu_uuid; }
  absl::StatusOr<Memory> Allocate(const std::string& name, int64_t size_bytes, Sharing sharing) override;
  absl::StatusOr<Memory> Adopt(const std::string& name, int64_t size_bytes, wire::FileDescriptor fd) override;
  int64_t AvailableBytes() const override {
    ++faults_->availability_questions;
    return std::min(inner_->AvailableBytes(), faults_->total_bytes - faults_->allocated_bytes);
  }
  absl::StatusOr<std::unique_ptr<Memory::Owner>> OpenHostMemory(const Memory& page) override;
  absl::Status ReadTo(const uint8_t* data, int64_t size_bytes, Sink sink) const override;
  absl::StatusOr<HostView> Read(const uint8_t* data, int64_t size_bytes) const override;
  absl::Status Write(uint8_t* data, absl::Span<const uint8_t> bytes) const override;
  absl::StatusOr<std::unique_ptr<ShardArithmetic>> MakeArithmetic(std::vector<ExtentTensors> tensors,
                                                                  StateMoves moves) override;
  int64_t MuonBytes(absl::Span<const MuonExtent> extents, absl::Span<const BandStart> bands) const override {
    return inner_->MuonBytes(extents, bands);
  }
  absl::StatusOr<std::unique_ptr<DeviceQueue>> MakeQueue() override;

 private:
  absl::Status CountAllocation();
  void CountRead(int64_t size_bytes) const;

  DeviceFaults* const faults_;
  const std::unique_ptr<ComputeDevice> inner_;
};

// Opens at most `count` devices of the kind that tests run on (tests/support/environment.h); fewer if there are fewer.
// FAILED_PRECONDITION if there is none.
absl::StatusOr<std::vector<std::unique_ptr<ComputeDevice>>> OpenFaultyDevices(int count, DeviceFaults* faults);

}  // namespace paramshard::server

#endif  // PARAMSHARD_TESTS_SERVER_DEVICE_FAULTY_DEVICE_H_
