#include "client/python/bindings/unit_reader.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/python/bindings/calls.h"
#include "client/python/bindings/names.h"
#include "kernels/base/status_macros.h"

namespace paramshard::python {
namespace {

namespace nb = nanobind;

template <typename T>
T* At(uintptr_t address) {
  return reinterpret_cast<T*>(address);  // NOLINT(performance-no-int-to-ptr): Python has no pointers.
}

absl::Status DecodeOnHost(absl::Span<const DecodedOutput> outputs) {
  for (const DecodedOutput& output : outputs) {
    RETURN_IF_ERROR(output.element == DecodedElement::kFP32
                        ? output.matrix.Decode(At<float>(output.address))
                        : output.matrix.DecodeToBFloat16(At<uint16_t>(output.address)));
  }
  return absl::OkStatus();
}

// The scales of an operand's blocks: in the FP8_TENSOR formats all are the one that there is.
void SpreadScales(const OperandOutput& output, const MatrixShape& blocks, bool one_scale) {
  const uint8_t* const scales = output.matrix.scales.data();  // of any alignment
  const MatrixShape shape = output.transposed ? MatrixShape{blocks.cols, blocks.rows} : blocks;
  for (int64_t row = 0; row < shape.rows; ++row) {
    for (int64_t col = 0; col < shape.cols; ++col) {
      const int64_t block = output.transposed ? col * blocks.cols + row : row * blocks.cols + col;
      std::memcpy(At<float>(output.scales) + row * output.scales_pitch + col, scales + (one_scale ? 0 : 4 * block), 4);
    }
  }
}

absl::Status CopyOperandsOnHost(absl::Span<const OperandOutput> outputs) {
  for (const OperandOutput& output : outputs) {
    const Matrix& matrix = output.matrix;
    const Format format = matrix.encoding.format;
    if (matrix.gpu >= 0) return absl::FailedPreconditionError("copy operands: a stream expected where a GPU has them");
    const bool one_scale = format == Format::kFP8TensorCurrent || format == Format::kFP8TensorDelayed;
    if (!one_scale && format != Format::kFP8Block128x128) {
      return absl::UnimplementedError("copy operands: an FP8_TENSOR format or FP8_BLOCK_128X128 expected");
    }
    auto* const data = At<uint8_t>(output.data);
    if (output.transposed) {
      RETURN_IF_ERROR(matrix.Transpose(absl::MakeSpan(data, matrix.data.size())));
    } else {
      std::copy(matrix.data.begin(), matrix.data.end(), data);
    }
    SpreadScales(output, ScaleShape({Format::kFP8Block128x128}, Plane::kRowWise, matrix.rows, matrix.columns),
                 one_scale);
  }
  return absl::OkStatus();
}

}  // namespace

PyUnitReader::PyUnitReader(std::shared_ptr<SharedModel> model, std::string unit,
                           const std::vector<DecodedTuple>& decoded, const std::vector<OperandTuple>& operands)
    : model_(std::move(model)), unit_(std::move(unit)) {
  for (const auto& [parameter, type, block, offset] : decoded) {
    decoded_.push_back({parameter, Take(Parse<DecodedElement>("type", type)), {block, offset}});
    blocks_ = std::max(blocks_, block + 1);
  }
  for (const auto& [parameter, transposed, block, offset, scales, pitch] : operands) {
    operands_.push_back({parameter, transposed, {block, offset}, scales, pitch});
    blocks_ = std::max(blocks_, block + 1);
  }
}

void PyUnitReader::Read(const std::vector<uintptr_t>& blocks, std::optional<StreamAddress> stream) const {
  if (blocks.size() < blocks_) {
    Raise(absl::InvalidArgumentError(
        absl::StrCat("read ", unit_, ": ", blocks_, " blocks of memory expected, got ", blocks.size())));
  }
  Check(model_->WithModel([&](Model& model) { return ReadFrom(model, blocks, stream); }));
}

absl::Status PyUnitReader::ReadFrom(Model& model, absl::Span<const uintptr_t> blocks,
                                    std::optional<StreamAddress> stream) const {
  // Where something fails, the slot goes back behind what the stream was given.
  ASSIGN_OR_RETURN(GatheredUnit unit, model.Gather(unit_, Phase::kForward));
  RETURN_IF_ERROR(stream.has_value() ? WaitOn(unit, *stream) : unit.Wait());
  std::vector<OperandOutput> operands;
  for (const auto& [parameter, transposed, place, scales, pitch] : operands_) {
    ASSIGN_OR_RETURN(const Matrix matrix, unit.Get(parameter));
    operands.push_back({matrix, transposed, blocks[place.block] + place.offset, scales, pitch});
  }
  std::vector<DecodedOutput> decoded;
  for (const auto& [parameter, element, place] : decoded_) {
    ASSIGN_OR_RETURN(const Matrix matrix, unit.Get(parameter));
    decoded.push_back({matrix, element, blocks[place.block] + place.offset});
  }
  if (!stream.has_value()) {
    RETURN_IF_ERROR(CopyOperandsOnHost(operands));
    return DecodeOnHost(decoded);
  }
  RETURN_IF_ERROR(CopyOperandsOn(operands, *stream));
  RETURN_IF_ERROR(DecodeOn(decoded, *stream));
  return ReleaseOn(unit, *stream);
}

void BindUnitReader(nb::module_& module) {
  nb::class_<PyUnitReader>(module, "UnitReader",
                           "Reads a unit's values into memory of the caller's, whenever they are asked for.")
      .def("read", &PyUnitReader::Read, nb::arg("blocks"), nb::arg("stream") = nb::none(),
           "Gathers the unit, writes its values, and gives the slot back. `blocks`: addresses of the blocks of memory "
           "that `Model.reader` was told of. `stream`, the address of a CUDA stream of `Model.gpu`: blocks and scales "
           "are memory of that GPU, all of it is enqueued, and this call returns at once; else they are host memory. "
           "Errors of `Model.gather` and `GatheredUnit.wait`.");
}

}  // namespace paramshard::python
