#include "tests/client/session/fake_gpu.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/check.h"
#include "kernels/base/status_macros.h"

namespace paramshard {

using internal::ByteCopy;
using internal::GpuStream;
using internal::GradientCopy;
using internal::MappedMemory;
using internal::WordOperation;

class FakeGpu::Memory : public internal::TensorMemory {
 public:
  Memory(FakeGpu* gpu, MappedMemory planes, MappedMemory slots, int64_t scratch_bytes, int marks)
      : gpu_(gpu), planes_(std::move(planes)), slots_(std::move(slots)), scratch_(scratch_bytes + 1), marks_(marks) {}

  void Unmap() override {
    planes_ = MappedMemory();
    slots_ = MappedMemory();
  }

  const uint8_t* planes() const override { return planes_.data(); }
  uint8_t* slots() const override { return slots_.data(); }
  uint8_t* scratch() const override { return const_cast<uint8_t*>(scratch_.data()); }
  int gpu() const override { return kFakeGpu; }
  GpuStream own_stream() const override { return gpu_->own_; }
  GpuStream return_stream() const override { return gpu_->return_; }

  absl::Status Copy(absl::Span<const ByteCopy> copies, GpuStream stream) override {
    if (copies.empty()) return absl::OkStatus();
    gpu_->log_.push_back(absl::StrCat("copy ", copies.size()));
    gpu_->Enqueue(stream, [list = std::vector<ByteCopy>(copies.begin(), copies.end())] {
      for (const ByteCopy& copy : list) std::memcpy(copy.target, copy.source, copy.bytes);
      return true;
    });
    return absl::OkStatus();
  }
  absl::Status Zero(uint8_t* data, int64_t bytes, GpuStream stream) override {
    gpu_->log_.push_back("zero");
    gpu_->Enqueue(stream, [=] { return std::memset(data, 0, bytes), true; });
    return absl::OkStatus();
  }
  absl::Status CopyGradients(absl::Span<const GradientCopy> copies, GpuStream stream) override {
    gpu_->log_.push_back(absl::StrCat("copy gradients ", copies.size()));
    gpu_->Enqueue(stream, [list = std::vector<GradientCopy>(copies.begin(), copies.end())] {
      for (const GradientCopy& copy : list) internal::CopyGradientOnHost(copy);
      return true;
    });
    return absl::OkStatus();
  }
  absl::Status Synchronize(GpuStream stream) override {
    gpu_->Run();
    if (gpu_->Idle(stream)) return absl::OkStatus();
    return absl::DeadlineExceededError("fake GPU: a stream that nobody will wake");
  }

  absl::Status FollowDefaultStream(GpuStream stream) override {
    const auto passed = std::make_shared<bool>(false);
    gpu_->Enqueue(gpu_->default_, [passed] { return *passed = true; });
    gpu_->Enqueue(stream, [passed] { return *passed; });
    return absl::OkStatus();
  }

  uint64_t IdOf(GpuStream stream) const override { return reinterpret_cast<uintptr_t>(stream); }
  absl::Status EnqueueWords(absl::Span<const WordOperation> operations, GpuStream stream) override {
    for (const WordOperation& operation : operations) {
      const bool awaits = operation.kind == WordOperation::Kind::kAwait;
      gpu_->log_.push_back(awaits ? "await" : "write");
      gpu_->Enqueue(stream, [=] {
        if (awaits) return wire::Reached(operation.word->value, operation.value);
        return operation.word->value = operation.value, true;
      });
    }
    return absl::OkStatus();
  }
  absl::Status SetMark(int mark, GpuStream stream) override {
    marks_[mark] = std::make_shared<bool>(false);
    gpu_->Enqueue(stream, [passed = marks_[mark]] { return *passed = true; });
    return absl::OkStatus();
  }
  absl::Status AwaitMark(int mark, GpuStream stream) override {
    PARAMSHARD_CHECK(marks_[mark] != nullptr);
    gpu_->Enqueue(stream, [passed = marks_[mark]] { return *passed; });
    return absl::OkStatus();
  }

 private:
  FakeGpu* const gpu_;
  MappedMemory planes_, slots_;
  const std::vector<uint8_t> scratch_;
  std::vector<std::shared_ptr<bool>> marks_;
};

GpuStream FakeGpu::NewStream() { return reinterpret_cast<GpuStream>(&streams_.emplace_back()); }

void FakeGpu::Enqueue(GpuStream stream, std::function<bool()> operation) {
  Of(stream).operations.push_back(std::move(operation));
}

void FakeGpu::Run() {
  bool progress = true;
  while (progress) {
    progress = false;
    for (Stream& stream : streams_) {
      while (!stream.operations.empty() && stream.operations.front()()) {
        stream.operations.pop_front();
        progress = true;
      }
    }
  }
}

bool FakeGpu::Idle(GpuStream stream) const { return Of(stream).operations.empty(); }

internal::TensorMapper FakeGpu::Mapper() {
  return [this](absl::string_view,
                const internal::TensorMemoryParts& parts) -> absl::StatusOr<std::unique_ptr<internal::TensorMemory>> {
    const internal::SessionMemory& memory = *parts.memory;
    ASSIGN_OR_RETURN(MappedMemory planes, MappedMemory::Map("planes", memory.planes, memory.sizes.planes_bytes,
                                                            MappedMemory::Access::kRead));
    ASSIGN_OR_RETURN(MappedMemory slots, MappedMemory::Map("slots", memory.slots, memory.sizes.slots_bytes,
                                                           MappedMemory::Access::kReadWrite));
    return std::make_unique<Memory>(this, std::move(planes), std::move(slots), parts.scratch_bytes, parts.marks);
  };
}

}  // namespace paramshard
