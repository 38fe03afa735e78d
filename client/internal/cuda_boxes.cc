// Implementation of gpu_boxes.h with CUDA.
#include <cuda_runtime.h>

#include <algorithm>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "client/internal/gpu_boxes.h"
#include "client/internal/gpu_memory.h"
#include "kernels/base/polling.h"
#include "kernels/base/status_macros.h"
#include "kernels/copy/range_copies_cuda.h"
#include "kernels/formats/codec.h"
#include "kernels/formats/codec_cuda.h"
#include "kernels/formats/format.h"
#include "kernels/gpu/memory.h"
#include "kernels/gpu/status.h"
#include "kernels/gpu/stream.h"

namespace paramshard::internal {
namespace {

// A copy takes milliseconds: until then a nap would be most of the wait.
constexpr absl::Duration kSpinning = absl::Milliseconds(5);
// See DecodePlanes.
constexpr size_t kDecodesOfLaunch = 16;
// The driver's copy of so many bytes is faster than ours of many ranges.
constexpr int64_t kLargeBytes = int64_t{1} << 20;
// Rows are decoded here where they do not go to their places as they are.
constexpr int64_t kScratchBytes = int64_t{16} << 20;

// Copies to one GPU, one call at a time.
class GpuBoxes {
 public:
  // Returns the copies of a GPU, which live as long as the process.
  static GpuBoxes& Of(int gpu) {
    static absl::Mutex mu(absl::kConstInit);
    static auto* const boxes = new std::map<int, GpuBoxes>;
    const absl::MutexLock lock(&mu);
    return boxes->try_emplace(gpu, gpu).first->second;
  }

  explicit GpuBoxes(int gpu) : gpu_(gpu) {}

  absl::Status Copy(absl::Span<const PlannedCopy> copies, GpuStream after) {
    const gpu::DeviceScope scope(gpu_);
    const absl::MutexLock lock(&mu_);
    RETURN_IF_ERROR(OpenLane());
    absl::Status status = FollowStream(after);
    if (status.ok()) status = CopyInLane(copies);
    // Work that is late, or that has failed, may still use its lane, which is then never used again.
    if (!status.ok()) late_.push_back(std::move(lane_));
    return status;
  }

 private:
  struct Lane {
    gpu::Stream stream;
    gpu::Event before;
    gpu::DeviceMemory scratch;
  };

  absl::Status OpenLane() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (lane_ != nullptr) return absl::OkStatus();
    ASSIGN_OR_RETURN(gpu::Stream stream, gpu::Stream::Create(gpu_));
    ASSIGN_OR_RETURN(gpu::Event before, gpu::Event::Create(gpu_));
    RETURN_IF_ERROR(gpu::LoadCopyRanges());
    lane_ = std::make_unique<Lane>(Lane{std::move(stream), std::move(before), {}});
    return absl::OkStatus();
  }

  absl::Status FollowStream(GpuStream after) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    RETURN_IF_ERROR(lane_->before.Record(after == nullptr ? cudaStreamLegacy : after));
    return gpu::ToStatus(cudaStreamWaitEvent(lane_->stream.get(), lane_->before.get(), 0),
                         "wait for the work before a copy of boxes");
  }

  absl::Status CopyInLane(absl::Span<const PlannedCopy> copies) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    decodes_.clear();
    ranges_.clear();
    bool has_host_sources = false;
    for (const PlannedCopy& each : copies) {
      has_host_sources = has_host_sources || each.copy.matrix.gpu < 0;
      if (each.copy.matrix.gpu >= 0) RETURN_IF_ERROR(Add(each.copy));
    }
    RETURN_IF_ERROR(LaunchDecodes());
    RETURN_IF_ERROR(gpu::CopyRanges(ranges_, lane_->stream.get()));
    RETURN_IF_ERROR(AwaitLane());
    if (!has_host_sources) return absl::OkStatus();
    for (const PlannedCopy& each : copies) {
      if (each.copy.matrix.gpu < 0) RETURN_IF_ERROR(CopyFromHost(each.copy));
    }
    return absl::OkStatus();
  }

  absl::Status AwaitLane() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    ASSIGN_OR_RETURN(const bool done, Poll({.timeout = kStreamWorkTimeout, .spinning = kSpinning},
                                           [this] { return lane_->stream.IsIdle(); }));
    if (done) return absl::OkStatus();
    return absl::DeadlineExceededError(
        absl::StrCat("copy boxes to cuda:", gpu_, ": timed out after ", absl::FormatDuration(kStreamWorkTimeout)));
  }

  absl::Status Add(const BoxCopy& copy) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (copy.rows.size() == 0 || copy.columns == 0) return absl::OkStatus();
    if (IsAsItLies(copy)) return AddBytes(BytesOf(copy), copy.out, copy.out_stride);
    // A plan on a GPU has no other values.
    const gpu::DecodedType type =
        copy.content == BoxContent::kFloat32 ? gpu::DecodedType::kFP32 : gpu::DecodedType::kBF16;
    const Matrix& matrix = copy.matrix;
    const int64_t value_bytes = OutputOf(matrix.encoding, copy.content, 1, 1).element_bytes;
    const int64_t granule = GranuleRows(matrix.encoding.format);
    const int64_t begin = copy.rows.begin / granule * granule;
    if (begin == copy.rows.begin && copy.columns == matrix.columns &&
        (copy.out_stride == copy.columns * value_bytes || copy.rows.size() == 1)) {
      decodes_.push_back(DecodeOf(matrix, copy.rows, type, copy.out));
      // The GPU begins while the rest is made ready. Copies that are alike lie side by side.
      return decodes_.size() < kDecodesOfLaunch ? absl::OkStatus() : LaunchDecodes();
    }
    return DecodeThroughScratch(copy, type, value_bytes, granule);
  }

  absl::Status LaunchDecodes() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    RETURN_IF_ERROR(gpu::DecodePlanes(decodes_, lane_->stream.get()));
    decodes_.clear();
    return absl::OkStatus();
  }

  absl::Status AddBytes(const ByteRows& bytes, uint8_t* out, int64_t out_stride) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if ((bytes.stride == bytes.row_bytes && out_stride == bytes.row_bytes) || bytes.rows == 1) {
      const int64_t size = bytes.rows * bytes.row_bytes;
      if (size >= kLargeBytes) return Copy2D(out, size, bytes.first, size, size, 1);
      ranges_.push_back({out, bytes.first, size});
      return absl::OkStatus();
    }
    return Copy2D(out, out_stride, bytes.first, bytes.stride, bytes.row_bytes, bytes.rows);
  }

  // Decodes whole rows from a multiple of the granule on, some at a time, and copies what the box has of them.
  absl::Status DecodeThroughScratch(const BoxCopy& copy, gpu::DecodedType type, int64_t value_bytes, int64_t granule)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const Matrix& matrix = copy.matrix;
    const int64_t row_bytes = matrix.columns * value_bytes;
    const int64_t rows_at_once = std::max<int64_t>(1, kScratchBytes / (row_bytes * granule)) * granule;
    RETURN_IF_ERROR(OpenScratch(rows_at_once * row_bytes));
    uint8_t* const scratch = lane_->scratch.data();
    for (int64_t row = copy.rows.begin / granule * granule; row < copy.rows.end; row += rows_at_once) {
      const RowRange decoded{.begin = row, .end = std::min(row + rows_at_once, copy.rows.end)};
      const int64_t first = std::max(row, copy.rows.begin);
      const gpu::PlaneDecode decode = DecodeOf(matrix, decoded, type, scratch);
      RETURN_IF_ERROR(gpu::DecodePlanes(absl::MakeConstSpan(&decode, 1), lane_->stream.get()));
      RETURN_IF_ERROR(Copy2D(copy.out + (first - copy.rows.begin) * copy.out_stride, copy.out_stride,
                             scratch + (first - row) * row_bytes + copy.first_column * value_bytes, row_bytes,
                             copy.columns * value_bytes, decoded.end - first));
    }
    return absl::OkStatus();
  }

  absl::Status OpenScratch(int64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (lane_->scratch.size_bytes() >= bytes) return absl::OkStatus();
    RETURN_IF_ERROR(AwaitLane());
    lane_->scratch = {};
    ASSIGN_OR_RETURN(lane_->scratch,
                     gpu::DeviceMemory::Create(gpu_, std::max(bytes, kScratchBytes), {gpu_}, /*shareable=*/false));
    return absl::OkStatus();
  }

  absl::Status Copy2D(uint8_t* out, int64_t out_stride, const uint8_t* source, int64_t stride, int64_t row_bytes,
                      int64_t rows) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (rows == 1) {
      return gpu::ToStatus(cudaMemcpyAsync(out, source, row_bytes, cudaMemcpyDeviceToDevice, lane_->stream.get()),
                           "copy a box");
    }
    return gpu::ToStatus(cudaMemcpy2DAsync(out, out_stride, source, stride, row_bytes, rows, cudaMemcpyDeviceToDevice,
                                           lane_->stream.get()),
                         "copy a box");
  }

  static gpu::PlaneDecode DecodeOf(const Matrix& matrix, const RowRange& rows, gpu::DecodedType type, void* out) {
    return {.encoding = matrix.encoding,
            .plane = matrix.plane,
            .encoded = PlaneFrom(matrix, rows.begin),
            .rows = rows.size(),
            .cols = matrix.columns,
            .type = type,
            .out = out};
  }

  // A daemon on cpu devices, and a reader on a GPU.
  absl::Status CopyFromHost(const BoxCopy& copy) const {
    return ForEachPart(copy, [this](const BoxCopy& part, absl::Span<const uint8_t> bytes) -> absl::Status {
      const BoxOutput output = OutputOf(part.matrix.encoding, part.content, part.rows.size(), part.columns);
      if (part.out_stride == output.row_bytes) return CopyToGpu(gpu_, bytes, part.out);
      for (int64_t row = 0; row < output.rows; ++row) {
        RETURN_IF_ERROR(
            CopyToGpu(gpu_, bytes.subspan(row * output.row_bytes, output.row_bytes), part.out + row * part.out_stride));
      }
      return absl::OkStatus();
    });
  }

  const int gpu_;
  absl::Mutex mu_;
  std::unique_ptr<Lane> lane_ ABSL_GUARDED_BY(mu_);
  std::vector<std::unique_ptr<Lane>> late_ ABSL_GUARDED_BY(mu_);
  std::vector<gpu::PlaneDecode> decodes_ ABSL_GUARDED_BY(mu_);  // of one launch
  std::vector<gpu::RangeCopy> ranges_ ABSL_GUARDED_BY(mu_);     // of one call
};

}  // namespace

absl::Status AwaitGpuStream(int gpu, GpuStream stream) { return GpuBoxes::Of(gpu).Copy({}, stream); }

absl::Status CopyBoxesToGpu(int gpu, absl::Span<const PlannedCopy> copies, GpuStream after) {
  return GpuBoxes::Of(gpu).Copy(copies, after);
}

}  // namespace paramshard::internal
