// A device that tells a test when it steps: the points at which tests let a server die.
#ifndef PARAMSHARD_TESTS_SERVER_MODELS_WATCHED_DEVICE_H_
#define PARAMSHARD_TESTS_SERVER_MODELS_WATCHED_DEVICE_H_

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "server/device/compute_device.h"

namespace paramshard::server {

// A call that a test hands to another thread: it is set while that thread may be at work.
class Hook {
 public:
  void Set(std::function<void()> hook) {
    absl::MutexLock lock(&mu_);
    hook_ = std::move(hook);
  }
  void Call() {
    std::function<void()> hook;
    {
      absl::MutexLock lock(&mu_);
      hook = hook_;
    }
    if (hook) hook();
  }

 private:
  absl::Mutex mu_;
  std::function<void()> hook_ ABSL_GUARDED_BY(mu_);
};

// Calls what a test gives it around every step of a rank, and around the encoding that follows it.
class WatchedDevice final : public ComputeDevice {
 public:
  struct Hooks {
    Hook before_step;
    Hook after_step;
    // Called for formats that need the amax of the whole tensor: all ranks' are known by then, and in the book.
    Hook before_encode;
    Hook after_encode;
  };
  WatchedDevice(std::unique_ptr<ComputeDevice> inner, Hooks* hooks)
      : ComputeDevice(inner->id()), inner_(std::move(inner)), hooks_(hooks) {}

  absl::StatusOr<Memory> Allocate(const std::string& name, int64_t size_bytes, Sharing sharing) override {
    return inner_->Allocate(name, size_bytes, sharing);
  }
  absl::StatusOr<Memory> Adopt(const std::string& name, int64_t size_bytes, wire::FileDescriptor fd) override {
    return inner_->Adopt(name, size_bytes, std::move(fd));
  }
  int64_t AvailableBytes() const override { return inner_->AvailableBytes(); }
  absl::StatusOr<std::unique_ptr<Memory::Owner>> OpenHostMemory(const Memory& page) override {
    return inner_->OpenHostMemory(page);
  }
  absl::Status ReadTo(const uint8_t* data, int64_t size_bytes, Sink sink) const override {
    return inner_->ReadTo(data, size_bytes, sink);
  }
  absl::StatusOr<HostView> Read(const uint8_t* data, int64_t size_bytes) const override {
    return inner_->Read(data, size_bytes);
  }
  absl::Status Write(uint8_t* data, absl::Span<const uint8_t> bytes) const override {
    return inner_->Write(data, bytes);
  }
  absl::StatusOr<std::unique_ptr<ShardArithmetic>> MakeArithmetic(std::vector<ExtentTensors> tensors,
                                                                  StateMoves moves) override;
  int64_t MuonBytes(absl::Span<const MuonExtent> extents, absl::Span<const BandStart> bands) const override {
    return inner_->MuonBytes(extents, bands);
  }
  absl::StatusOr<std::unique_ptr<DeviceQueue>> MakeQueue() override { return inner_->MakeQueue(); }

 private:
  const std::unique_ptr<ComputeDevice> inner_;
  Hooks* const hooks_;
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_TESTS_SERVER_MODELS_WATCHED_DEVICE_H_
