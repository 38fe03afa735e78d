#include "tests/server/device/faulty_device.h"

#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "tests/support/environment.h"

namespace paramshard::server {
namespace {

// Counts a range for as long as it lives.
class CountedRange final : public Memory::Owner {
 public:
  CountedRange(Memory memory, DeviceFaults* faults) : memory_(std::move(memory)), faults_(faults) {
    faults_->allocated_bytes += memory_.size_bytes();
  }
  ~CountedRange() override { faults_->allocated_bytes -= memory_.size_bytes(); }
  void Discard() override { memory_.Discard(); }

 private:
  Memory memory_;
  DeviceFaults* const faults_;
};

class FaultyQueue final : public DeviceQueue {
 public:
  FaultyQueue(std::unique_ptr<DeviceQueue> inner, const DeviceFaults* faults)
      : inner_(std::move(inner)), faults_(faults) {}
  absl::Status Run(absl::Span<const CopyTask> copies, absl::Span<const SumTask> sums) override {
    if (faults_->failing_copies && !copies.empty()) return absl::InternalError("copy: the test lets it fail");
    return inner_->Run(copies, sums);
  }

 private:
  const std::unique_ptr<DeviceQueue> inner_;
  const DeviceFaults* const faults_;
};

}  // namespace

absl::Status FaultyDevice::CountAllocation() {
  RETURN_IF_ERROR(health().status());
  const int number = ++faults_->allocations;
  if (number != faults_->failing_allocation) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat("allocation ", number, " on ", Name(), ": the test lets it fail"));
}

absl::StatusOr<Memory> FaultyDevice::Allocate(const std::string& name, int64_t size_bytes, Sharing sharing) {
  faults_->before_allocation(name);
  RETURN_IF_ERROR(CountAllocation());
  ASSIGN_OR_RETURN(Memory memory, inner_->Allocate(name, size_bytes, sharing));
  uint8_t* const data = memory.data();
  wire::FileDescriptor fd(memory.fd() < 0 ? -1 : dup(memory.fd()));
  return Memory(data, size_bytes, std::move(fd), std::make_unique<CountedRange>(std::move(memory), faults_));
}

absl::StatusOr<Memory> FaultyDevice::Adopt(const std::string& name, int64_t size_bytes, wire::FileDescriptor fd) {
  faults_->before_allocation(name);
  RETURN_IF_ERROR(CountAllocation());
  return inner_->Adopt(name, size_bytes, std::move(fd));
}

absl::StatusOr<std::unique_ptr<Memory::Owner>> FaultyDevice::OpenHostMemory(const Memory& page) {
  RETURN_IF_ERROR(CountAllocation());
  return inner_->OpenHostMemory(page);
}

absl::Status FaultyDevice::ReadTo(const uint8_t* data, int64_t size_bytes, Sink sink) const {
  RETURN_IF_ERROR(health().status());
  CountRead(size_bytes);
  return inner_->ReadTo(data, size_bytes, sink);
}

absl::StatusOr<HostView> FaultyDevice::Read(const uint8_t* data, int64_t size_bytes) const {
  RETURN_IF_ERROR(health().status());
  CountRead(size_bytes);
  return inner_->Read(data, size_bytes);
}

void FaultyDevice::CountRead(int64_t size_bytes) const {
  int64_t largest = faults_->largest_read;
  while (size_bytes > largest && !faults_->largest_read.compare_exchange_weak(largest, size_bytes)) {
  }
}

absl::Status FaultyDevice::Write(uint8_t* data, absl::Span<const uint8_t> bytes) const {
  RETURN_IF_ERROR(health().status());
  faults_->before_write();
  if (++faults_->writes != faults_->failing_write) return inner_->Write(data, bytes);
  return absl::Status(faults_->write_error, absl::StrCat("write to ", Name(), ": the test lets it fail"));
}

absl::StatusOr<std::unique_ptr<ShardArithmetic>> FaultyDevice::MakeArithmetic(std::vector<ExtentTensors> tensors,
                                                                              StateMoves moves) {
  RETURN_IF_ERROR(CountAllocation());
  return inner_->MakeArithmetic(std::move(tensors), std::move(moves));
}

absl::StatusOr<std::unique_ptr<DeviceQueue>> FaultyDevice::MakeQueue() {
  RETURN_IF_ERROR(CountAllocation());
  ASSIGN_OR_RETURN(std::unique_ptr<DeviceQueue> queue, inner_->MakeQueue());
  return std::make_unique<FaultyQueue>(std::move(queue), faults_);
}

absl::StatusOr<std::vector<std::unique_ptr<ComputeDevice>>> OpenFaultyDevices(int count, DeviceFaults* faults) {
  const DeviceKind kind = test::TestDevices() == "cuda" ? DeviceKind::kCuda : DeviceKind::kCpu;
  std::vector<Device> ids;
  for (int index = 0; index < count; ++index) ids.push_back({.kind = kind, .index = index});
  absl::StatusOr<std::vector<std::unique_ptr<ComputeDevice>>> opened = OpenDevices(ids);
  while (absl::IsFailedPrecondition(opened.status()) && ids.size() > 1) {
    ids.pop_back();
    opened = OpenDevices(ids);
  }
  RETURN_IF_ERROR(opened.status());
  std::vector<std::unique_ptr<ComputeDevice>> devices;
  for (auto& device : *opened) devices.push_back(std::make_unique<FaultyDevice>(std::move(device), faults));
  return devices;
}

}  // namespace paramshard::server
