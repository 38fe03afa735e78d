#include "python/bindings/unit_reader.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "kernels/formats/format.h"
#include "python/bindings/calls.h"
#include "python/bindings/names.h"
#include "python/bindings/output_ranges.h"

namespace paramshard::python {
namespace {

namespace nb = nanobind;

// Largest number of blocks.
constexpr size_t kMostBlocks = size_t{1} << 20;

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

int64_t ElementBytes(DecodedElement element) { return element == DecodedElement::kFP32 ? 4 : 2; }

bool HasOneScale(Format format) { return format == Format::kFP8TensorCurrent || format == Format::kFP8TensorDelayed; }

// Formats whose planes are multiplied without decoding, as operands.
bool IsOperand(Format format) { return HasOneScale(format) || format == Format::kFP8Block128x128; }

MatrixShape OperandBlocks(const Matrix& matrix) {
  return ScaleShape({Format::kFP8Block128x128}, Plane::kRowWise, matrix.rows, matrix.columns);
}

// Memory of the operands and of the decoded values.
absl::StatusOr<std::vector<OutputRange>> RangesOf(absl::Span<const absl::string_view> names,
                                                  const std::vector<OperandOutput>& operands,
                                                  const std::vector<DecodedOutput>& decoded) {
  std::vector<OutputRange> ranges;
  ranges.reserve(2 * operands.size() + decoded.size());
  auto name = names.begin();
  for (const OperandOutput& output : operands) {
    const Format format = output.matrix.encoding.format;
    if (!IsOperand(format)) {
      return absl::UnimplementedError(absl::StrCat(
          "copy operands: ", *name, ": want FP8_BLOCK_128X128 or an FP8_TENSOR format, got ", NameOf(format)));
    }
    const MatrixShape blocks = OperandBlocks(output.matrix);
    const int64_t rows = output.transposed ? blocks.cols : blocks.rows;
    const int64_t columns = output.transposed ? blocks.rows : blocks.cols;
    if (output.scales_pitch < columns || output.scales_pitch > kMostBlockBytes / 4 / std::max<int64_t>(rows, 1)) {
      return absl::InvalidArgumentError(absl::StrCat("read ", *name, ": want ", columns,
                                                     " elements at least from a row of scales to the next, got ",
                                                     output.scales_pitch));
    }
    ranges.push_back({*name, output.data, static_cast<int64_t>(output.matrix.data.size()), 1});
    ranges.push_back({*name++, output.scales, rows == 0 ? 0 : 4 * ((rows - 1) * output.scales_pitch + columns), 4});
  }
  for (const DecodedOutput& output : decoded) {
    const int64_t element_bytes = ElementBytes(output.element);
    ranges.push_back(
        {*name++, output.address, output.matrix.rows * output.matrix.columns * element_bytes, element_bytes});
  }
  return ranges;
}

// Writes the scales of an operand's blocks. The FP8_TENSOR formats have one scale for all blocks.
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
    if (matrix.gpu >= 0) return absl::FailedPreconditionError("copy operands: memory of a GPU requires a stream");
    const bool one_scale = HasOneScale(format);
    auto* const data = At<uint8_t>(output.data);
    if (output.transposed) {
      RETURN_IF_ERROR(matrix.Transpose(absl::MakeSpan(data, matrix.data.size())));
    } else {
      std::copy(matrix.data.begin(), matrix.data.end(), data);
    }
    SpreadScales(output, OperandBlocks(matrix), one_scale);
  }
  return absl::OkStatus();
}

}  // namespace

PyUnitReader::PyUnitReader(std::shared_ptr<SharedModel> model, std::string unit,
                           const std::vector<DecodedTuple>& decoded, const std::vector<OperandTuple>& operands)
    : model_(std::move(model)), unit_(std::move(unit)) {
  Check(model_->WithModel([](Model&) { return absl::OkStatus(); }));
  for (const auto& [parameter, type, block, offset] : decoded) {
    decoded_.push_back({parameter, Take(Parse<DecodedElement>("type", type)), PlaceAt(parameter, block, offset)});
  }
  for (const auto& [parameter, transposed, block, offset, scales, pitch] : operands) {
    operands_.push_back({parameter, transposed, PlaceAt(parameter, block, offset), scales, pitch});
  }
}

PyUnitReader::Place PyUnitReader::PlaceAt(const std::string& parameter, size_t block, int64_t offset) {
  if (block >= kMostBlocks || offset < 0 || offset > kMostBlockBytes) {
    Raise(absl::InvalidArgumentError(absl::StrCat("reader of ", unit_, ": ", parameter, ": want a block below ",
                                                  kMostBlocks, " and an offset of 0 to ", kMostBlockBytes,
                                                  " bytes, got block ", block, " and offset ", offset)));
  }
  blocks_ = std::max(blocks_, block + 1);
  return {block, offset};
}

// Returns 0 for a place in a block without a valid address.
uintptr_t PyUnitReader::AddressAt(absl::Span<const uintptr_t> blocks, const Place& place) {
  const uintptr_t block = blocks[place.block];
  return block == 0 || block > static_cast<uintptr_t>(kMostBlockBytes) ? 0 : block + place.offset;
}

void PyUnitReader::Read(const std::vector<uintptr_t>& blocks, std::optional<StreamAddress> stream) const {
  if (blocks.size() < blocks_) {
    Raise(absl::InvalidArgumentError(
        absl::StrCat("read ", unit_, ": want ", blocks_, " blocks of memory, got ", blocks.size())));
  }
  Check(model_->WithModel([&](Model& model) { return ReadFrom(model, blocks, stream); }));
}

absl::Status PyUnitReader::ReadFrom(Model& model, absl::Span<const uintptr_t> blocks,
                                    std::optional<StreamAddress> stream) const {
  // On an error the slot is given back after the work that the stream has.
  ASSIGN_OR_RETURN(GatheredUnit unit, model.Gather(unit_, Phase::kForward));
  RETURN_IF_ERROR(stream.has_value() ? WaitAloneOn(unit, *stream) : unit.Wait());
  std::vector<absl::string_view> names;
  names.reserve(operands_.size() + decoded_.size());
  std::vector<OperandOutput> operands;
  operands.reserve(operands_.size());
  for (const auto& [parameter, transposed, place, scales, pitch] : operands_) {
    ASSIGN_OR_RETURN(const Matrix matrix, unit.Get(parameter));
    operands.push_back({matrix, transposed, AddressAt(blocks, place), scales, pitch});
    names.push_back(parameter);
  }
  std::vector<DecodedOutput> decoded;
  decoded.reserve(decoded_.size());
  for (const auto& [parameter, element, place] : decoded_) {
    ASSIGN_OR_RETURN(const Matrix matrix, unit.Get(parameter));
    decoded.push_back({matrix, element, AddressAt(blocks, place)});
    names.push_back(parameter);
  }
  ASSIGN_OR_RETURN(std::vector<OutputRange> ranges, RangesOf(names, operands, decoded));
  RETURN_IF_ERROR(CheckOutputRanges(absl::StrCat("read ", unit_), std::move(ranges),
                                    stream.has_value() ? MemoryPlace::kGpu : MemoryPlace::kHost));
  if (!stream.has_value()) {
    RETURN_IF_ERROR(CopyOperandsOnHost(operands));
    return DecodeOnHost(decoded);
  }
  RETURN_IF_ERROR(CopyOperandsOn(operands, *stream));
  RETURN_IF_ERROR(DecodeOn(decoded, *stream));
  return ReleaseOn(unit, *stream);
}

void BindUnitReader(nb::module_& module) {
  nb::list operands;
  for (const FormatTraits& traits : kFormats) {
    if (IsOperand(traits.format)) operands.append(traits.name);
  }
  module.attr("OPERAND_FORMATS") = nb::tuple(operands);
  nb::class_<PyUnitReader>(module, "UnitReader",
                           "Reads a unit's values into memory of the caller, any number of times.")
      .def("read", &PyUnitReader::Read, nb::arg("blocks"), nb::arg("stream") = nb::none(),
           "Gathers the unit, writes its values, and gives the slot back. `blocks`: addresses of the blocks of memory "
           "that `Model.reader` numbers. `stream`, the address of a CUDA stream of `Model.gpu`: blocks and scales "
           "are memory of that GPU, all of it is enqueued, and this call returns at once; else they are host memory. "
           "Errors of `Model.gather` and `GatheredUnit.wait`.");
}

}  // namespace paramshard::python
