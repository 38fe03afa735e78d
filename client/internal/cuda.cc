#include "client/cuda.h"

#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/internal/handles.h"
#include "kernels/base/status_macros.h"
#include "kernels/copy/range_copies_cuda.h"
#include "kernels/copy/strided_words_cuda.h"
#include "kernels/formats/format.h"
#include "kernels/formats/scale_layout_cuda.h"
#include "kernels/formats/transpose.h"
#include "kernels/formats/transpose_cuda.h"
#include "kernels/gpu/stream.h"

namespace paramshard::cuda {

using internal::HandleAccess;

namespace {

absl::Status CheckOnGpu(absl::string_view operation, const Matrix& matrix) {
  if (matrix.gpu >= 0) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(operation, " on a stream: want a matrix in memory of a GPU, got one in host memory"));
}

constexpr int64_t kOperandBlock = 128;

int64_t CeilDivide(int64_t size, int64_t step) { return (size + step - 1) / step; }

absl::Status CheckOperandFormat(Format format) {
  if (format == Format::kFP8Block128x128 || format == Format::kFP8TensorCurrent ||
      format == Format::kFP8TensorDelayed) {
    return absl::OkStatus();
  }
  return absl::UnimplementedError(
      absl::StrCat("copy operands: want FP8_BLOCK_128X128 or an FP8_TENSOR format, got ", FormatName(format)));
}

}  // namespace

absl::Status WaitOn(GatheredUnit& unit, cudaStream_t stream) {
  const auto& impl = HandleAccess::ImplOf(unit);
  if (impl == nullptr) return absl::FailedPreconditionError("wait: the unit was already released");
  return impl->WaitOn(stream);
}

absl::Status WaitAloneOn(GatheredUnit& unit, cudaStream_t stream) {
  const auto& impl = HandleAccess::ImplOf(unit);
  if (impl == nullptr) return absl::FailedPreconditionError("wait: the unit was already released");
  return impl->WaitOn(stream, internal::Followers::kNone);
}

absl::Status Release(GatheredUnit& unit, cudaStream_t stream) {
  const auto impl = std::move(HandleAccess::ImplOf(unit));
  if (impl == nullptr) return absl::FailedPreconditionError("release: the unit was already released");
  return impl->ReleaseOn(stream);
}

absl::StatusOr<UnitGradients> Gradients(Model& model, absl::string_view unit, cudaStream_t stream,
                                        SlotContent content) {
  const std::shared_ptr<internal::Session>& session = HandleAccess::SessionOf(model);
  ASSIGN_OR_RETURN(const internal::GradientTicket ticket,
                   session->gradients().Take(unit, stream, content == SlotContent::kZero));
  return HandleAccess::MakeGradients(session, ticket, stream);
}

absl::Status Push(UnitGradients& gradients, cudaStream_t stream) {
  auto& held = HandleAccess::ImplOf(gradients);
  if (held == nullptr) {
    return absl::FailedPreconditionError("gradients: the slot was already pushed");
  }
  RETURN_IF_ERROR(held->CheckPush());
  const auto impl = std::move(held);
  return impl->PushOn(stream);
}

absl::Status PushGradients(Model& model, absl::string_view unit, absl::Span<const ConstGradient> values,
                           cudaStream_t stream) {
  return HandleAccess::SessionOf(model)->gradients().PushValues(unit, values, stream);
}

absl::Status Decode(const Matrix& matrix, DecodedType type, void* out, cudaStream_t stream) {
  const Decoding one = {matrix, type, out};
  return Decode(absl::MakeConstSpan(&one, 1), stream);
}

absl::Status Decode(absl::Span<const Decoding> decodings, cudaStream_t stream) {
  std::vector<gpu::PlaneDecode> planes;
  for (const auto& [matrix, type, out] : decodings) {
    RETURN_IF_ERROR(CheckOnGpu("decode", matrix));
    const ConstPlane plane = {.data = matrix.data.data(), .scales = matrix.scales.data(), .amax = matrix.amax.data()};
    planes.push_back({matrix.encoding, matrix.plane, plane, matrix.rows, matrix.columns, type, out});
  }
  if (planes.empty()) return absl::OkStatus();
  const gpu::DeviceScope scope(decodings.front().matrix.gpu);
  return gpu::DecodePlanes(planes, stream);
}

absl::Status CopyOperands(absl::Span<const OperandCopy> operands, cudaStream_t stream) {
  std::vector<gpu::RangeCopy> copies;
  std::vector<gpu::Transposition> transpositions;
  std::vector<gpu::StridedWords> scales;
  for (const OperandCopy& operand : operands) {
    const Matrix& matrix = operand.matrix;
    RETURN_IF_ERROR(CheckOnGpu("copy operands", matrix));
    RETURN_IF_ERROR(CheckOperandFormat(matrix.encoding.format));
    const MatrixShape blocks = {CeilDivide(matrix.rows, kOperandBlock), CeilDivide(matrix.columns, kOperandBlock)};
    const int64_t step = matrix.encoding.format == Format::kFP8Block128x128 ? 1 : 0;  // of scales, from block to block
    gpu::StridedWords spread = {.source = matrix.scales.data(),
                                .row_stride = step * blocks.cols,
                                .col_stride = step,
                                .rows = blocks.rows,
                                .cols = blocks.cols,
                                .target = reinterpret_cast<uint32_t*>(operand.scales),
                                .target_stride = operand.scales_pitch};
    if (operand.transposed) {
      transpositions.push_back({matrix.data.data(), matrix.rows, matrix.columns, operand.data});
      std::swap(spread.row_stride, spread.col_stride);
      std::swap(spread.rows, spread.cols);
    } else {
      copies.push_back({operand.data, matrix.data.data(), static_cast<int64_t>(matrix.data.size())});
    }
    scales.push_back(spread);
  }
  if (operands.empty()) return absl::OkStatus();
  const gpu::DeviceScope scope(operands.front().matrix.gpu);
  RETURN_IF_ERROR(gpu::CopyRanges(copies, stream));
  RETURN_IF_ERROR(gpu::TransposeBytes(transpositions, stream));
  return gpu::CopyStridedWords(scales, stream);
}

absl::Status Transpose(const Matrix& matrix, uint8_t* out, cudaStream_t stream) {
  RETURN_IF_ERROR(CheckOnGpu("transpose", matrix));
  ASSIGN_OR_RETURN(const int width, TransposableWidth(matrix.encoding.format));
  const gpu::DeviceScope scope(matrix.gpu);
  const auto transpose = width == 8 ? gpu::TransposeBytes : gpu::TransposeNibbles;
  return transpose({{matrix.data.data(), matrix.rows, matrix.columns, out}}, stream);
}

absl::Status CopyScales(const Matrix& matrix, ScaleLayout layout, uint8_t* out, cudaStream_t stream,
                        std::optional<Plane> operand) {
  RETURN_IF_ERROR(CheckOnGpu("copy scales", matrix));
  ASSIGN_OR_RETURN(const ScaleArrangement arrangement,
                   FindScaleArrangement(matrix.encoding, matrix.plane, operand.value_or(matrix.plane), matrix.rows,
                                        matrix.columns, layout));
  const gpu::DeviceScope scope(matrix.gpu);
  return gpu::ArrangeScales(arrangement, matrix.scales.data(), out, stream);
}

}  // namespace paramshard::cuda
