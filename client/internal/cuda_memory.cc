// gpu_memory.h by CUDA.
#include <cuda_runtime.h>

#include <cstdlib>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/synchronization/mutex.h"
#include "client/internal/gpu_memory.h"
#include "kernels/base/status_macros.h"
#include "kernels/copy/range_copies_cuda.h"
#include "kernels/gpu/memory.h"
#include "kernels/gpu/status.h"
#include "kernels/gpu/stream.h"
#include "kernels/gpu/word_operations.h"

namespace paramshard::internal {
namespace {

// --- Which GPU

std::string UuidOf(const cudaDeviceProp& properties) { return std::string(properties.uuid.bytes, 16); }

// "none", or the GPUs of this process, and what may have hidden others.
std::string SeenGpus(const std::vector<std::string>& uuids) {
  std::vector<std::string> names;
  for (size_t i = 0; i < uuids.size(); ++i) names.push_back(absl::StrCat(GpuName(uuids[i]), " (cuda:", i, ")"));
  const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
  return absl::StrCat(names.empty() ? "none" : absl::StrJoin(names, ", "),
                      visible == nullptr ? "; CUDA_VISIBLE_DEVICES is not set"
                                         : absl::StrCat("; CUDA_VISIBLE_DEVICES is \"", visible, "\""));
}

absl::Status NotSeen(absl::string_view uuid, absl::string_view got) {
  return absl::FailedPreconditionError(
      absl::StrCat("session memory: ", GpuName(uuid), " expected among the GPUs of this process, got ", got));
}

absl::StatusOr<int> FindGpu(absl::string_view uuid) {
  int count = 0;
  if (const absl::Status status = gpu::ToStatus(cudaGetDeviceCount(&count), "count the GPUs"); !status.ok()) {
    return NotSeen(uuid, absl::StrCat(SeenGpus({}), " (", status.message(), ")"));
  }
  std::vector<std::string> uuids;
  for (int device = 0; device < count; ++device) {
    cudaDeviceProp properties;
    RETURN_IF_ERROR(
        gpu::ToStatus(cudaGetDeviceProperties(&properties, device), absl::StrCat("describe cuda:", device)));
    uuids.push_back(UuidOf(properties));
    if (uuids.back() == uuid) return device;
  }
  return NotSeen(uuid, SeenGpus(uuids));
}

// --- Memory

class CudaTensorMemory : public TensorMemory {
 public:
  static absl::StatusOr<std::unique_ptr<TensorMemory>> Map(int device, const TensorMemoryParts& parts);
  ~CudaTensorMemory() override;

  const uint8_t* planes() const override { return planes_.data(); }
  uint8_t* slots() const override { return slots_.data(); }
  uint8_t* scratch() const override { return scratch_.data(); }
  int gpu() const override { return stream_.device(); }
  GpuStream own_stream() const override { return stream_.get(); }
  GpuStream return_stream() const override { return return_stream_.get(); }

  absl::Status Copy(absl::Span<const ByteCopy> copies, GpuStream stream) override;
  absl::Status Zero(uint8_t* data, int64_t bytes, GpuStream stream) override;
  absl::Status Synchronize(GpuStream stream) override;
  absl::Status FollowDefaultStream(GpuStream stream) override;
  absl::Status EnqueueWords(absl::Span<const WordOperation> operations, GpuStream stream) override;
  absl::Status SetMark(int mark, GpuStream stream) override;
  absl::Status AwaitMark(int mark, GpuStream stream) override;

 private:
  CudaTensorMemory(gpu::HostRegistration words, gpu::DeviceMemory planes, gpu::DeviceMemory slots,
                   gpu::DeviceMemory scratch, std::vector<gpu::Event> marks, gpu::Event default_mark,
                   gpu::Stream stream, gpu::Stream return_stream)
      : words_(std::move(words)),
        planes_(std::move(planes)),
        slots_(std::move(slots)),
        scratch_(std::move(scratch)),
        marks_(std::move(marks)),
        default_mark_(std::move(default_mark)),
        stream_(std::move(stream)),
        return_stream_(std::move(return_stream)) {}

  const gpu::HostRegistration words_;
  const gpu::DeviceMemory planes_;
  const gpu::DeviceMemory slots_;
  const gpu::DeviceMemory scratch_;
  std::vector<gpu::Event> marks_;
  gpu::Event default_mark_;  // of the default stream
  const gpu::Stream stream_;
  const gpu::Stream return_stream_;
  std::vector<gpu::RangeCopy> copies_;
  gpu::WordOperations word_operations_;
};

// The driver says only that it does not like what it got.
absl::StatusOr<gpu::DeviceMemory> Import(const std::string& name, int device, const wire::FileDescriptor& fd,
                                         int64_t bytes, bool read_only) {
  auto memory = gpu::DeviceMemory::Import(device, fd.get(), bytes, read_only);
  if (memory.ok()) return memory;
  return absl::Status(memory.status().code(),
                      absl::StrCat("map ", name, ": a descriptor of ", bytes, " bytes of cuda:", device,
                                   " expected, got one that cannot be mapped so: ", memory.status().message()));
}

absl::StatusOr<std::unique_ptr<TensorMemory>> CudaTensorMemory::Map(int device, const TensorMemoryParts& parts) {
  const gpu::DeviceScope scope(device);
  const SessionMemory& memory = *parts.memory;
  ASSIGN_OR_RETURN(gpu::Stream stream, gpu::Stream::Create(device));
  ASSIGN_OR_RETURN(gpu::Stream return_stream, gpu::Stream::Create(device));
  RETURN_IF_ERROR(gpu::LoadCopyRanges());
  std::vector<gpu::Event> marks;
  for (int i = 0; i < parts.marks; ++i) {
    ASSIGN_OR_RETURN(gpu::Event mark, gpu::Event::Create(device));
    marks.push_back(std::move(mark));
  }
  ASSIGN_OR_RETURN(gpu::Event default_mark, gpu::Event::Create(device));
  ASSIGN_OR_RETURN(gpu::DeviceMemory planes,
                   Import("planes", device, memory.planes, memory.sizes.planes_bytes, /*read_only=*/true));
  ASSIGN_OR_RETURN(gpu::DeviceMemory slots,
                   Import("slots", device, memory.slots, memory.sizes.slots_bytes, /*read_only=*/false));
  ASSIGN_OR_RETURN(gpu::DeviceMemory scratch,
                   gpu::DeviceMemory::Create(device, parts.scratch_bytes, {device}, /*shareable=*/false));
  ASSIGN_OR_RETURN(gpu::HostRegistration words,
                   gpu::HostRegistration::Register(parts.words->data(), parts.words->size_bytes()));
  return std::unique_ptr<TensorMemory>(
      new CudaTensorMemory(std::move(words), std::move(planes), std::move(slots), std::move(scratch), std::move(marks),
                           std::move(default_mark), std::move(stream), std::move(return_stream)));
}

// The trainer's streams may still have words to write here. Unregistering the words would wait for the device too, but
// only after the tensors are gone.
CudaTensorMemory::~CudaTensorMemory() {
  const gpu::DeviceScope scope(gpu());
  cudaDeviceSynchronize();
}

absl::Status CudaTensorMemory::Copy(absl::Span<const ByteCopy> copies, GpuStream stream) {
  const gpu::DeviceScope scope(gpu());
  copies_.clear();
  for (const ByteCopy& copy : copies) copies_.push_back({copy.target, copy.source, copy.bytes});
  return gpu::CopyRanges(copies_, stream);
}

absl::Status CudaTensorMemory::Zero(uint8_t* data, int64_t bytes, GpuStream stream) {
  const gpu::DeviceScope scope(gpu());
  return gpu::ToStatus(cudaMemsetAsync(data, 0, bytes, stream), "zero a gradient slot");
}

absl::Status CudaTensorMemory::Synchronize(GpuStream stream) {
  const gpu::DeviceScope scope(gpu());
  return gpu::ToStatus(cudaStreamSynchronize(stream), "wait for a stream");
}

// An event of the legacy default stream comes after the work of all streams that wait for that one. So does the rest of
// a copy from pageable memory, which cudaMemcpy may leave under way when it returns.
absl::Status CudaTensorMemory::FollowDefaultStream(GpuStream stream) {
  const gpu::DeviceScope scope(gpu());
  RETURN_IF_ERROR(default_mark_.Record(cudaStreamLegacy));
  return gpu::ToStatus(cudaStreamWaitEvent(stream, default_mark_.get(), 0), "wait for the default stream");
}

absl::Status CudaTensorMemory::EnqueueWords(absl::Span<const WordOperation> operations, GpuStream stream) {
  if (operations.empty()) return absl::OkStatus();
  const gpu::DeviceScope scope(gpu());
  word_operations_.Clear();
  for (const WordOperation& operation : operations) {
    if (operation.kind == WordOperation::Kind::kAwait) {
      word_operations_.Await(operation.word, operation.value);
    } else {
      word_operations_.Write(operation.word, operation.value);
    }
  }
  return word_operations_.Enqueue(stream);
}

absl::Status CudaTensorMemory::SetMark(int mark, GpuStream stream) {
  const gpu::DeviceScope scope(gpu());
  return marks_[mark].Record(stream);
}

absl::Status CudaTensorMemory::AwaitMark(int mark, GpuStream stream) {
  const gpu::DeviceScope scope(gpu());
  return gpu::ToStatus(cudaStreamWaitEvent(stream, marks_[mark].get(), 0), "wait for an event");
}

// --- Views, which know their GPU alone

// One stream a GPU for the life of the process: the default one would wait for the trainer's.
class ViewStreams {
 public:
  static ViewStreams& Get() {
    static ViewStreams* const streams = new ViewStreams;
    return *streams;
  }

  absl::StatusOr<cudaStream_t> Of(int gpu) {
    const absl::MutexLock lock(&mu_);
    const auto found = streams_.find(gpu);
    if (found != streams_.end()) return found->second.get();
    ASSIGN_OR_RETURN(gpu::Stream stream, gpu::Stream::Create(gpu));
    return streams_.emplace(gpu, std::move(stream)).first->second.get();
  }

 private:
  absl::Mutex mu_;
  std::map<int, gpu::Stream> streams_ ABSL_GUARDED_BY(mu_);
};

absl::Status CopyAndWait(int gpu, absl::Span<const uint8_t> source, uint8_t* target, cudaMemcpyKind kind) {
  if (source.empty()) return absl::OkStatus();
  const gpu::DeviceScope scope(gpu);
  ASSIGN_OR_RETURN(const cudaStream_t stream, ViewStreams::Get().Of(gpu));
  RETURN_IF_ERROR(gpu::ToStatus(cudaMemcpyAsync(target, source.data(), source.size(), kind, stream),
                                absl::StrCat("copy between the host and cuda:", gpu)));
  return gpu::ToStatus(cudaStreamSynchronize(stream), absl::StrCat("copy between the host and cuda:", gpu));
}

}  // namespace

absl::StatusOr<std::unique_ptr<TensorMemory>> MapGpuTensors(absl::string_view gpu_uuid,
                                                            const TensorMemoryParts& parts) {
  ASSIGN_OR_RETURN(const int device, FindGpu(gpu_uuid));
  return CudaTensorMemory::Map(device, parts);
}

absl::Status CopyFromGpu(int gpu, absl::Span<const uint8_t> source, uint8_t* target) {
  return CopyAndWait(gpu, source, target, cudaMemcpyDeviceToHost);
}

absl::Status CopyToGpu(int gpu, absl::Span<const uint8_t> source, uint8_t* target) {
  return CopyAndWait(gpu, source, target, cudaMemcpyHostToDevice);
}

}  // namespace paramshard::internal
