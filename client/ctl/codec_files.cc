#include "client/ctl/codec_files.h"

#include <cstring>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/ctl/npy.h"
#include "kernels/base/status_macros.h"
#include "kernels/formats/codec.h"
#include "kernels/formats/format.h"

namespace paramshard::ctl {
namespace {

// The arrays of one plane's files.
struct PlaneArrays {
  NpyArray data;
  NpyArray scales;  // of no dimensions where the format has none
  NpyArray amax;    // of the whole tensor; of no dimensions where no scale follows from it

  MutablePlane Writable() { return {data.bytes.data(), scales.bytes.data(), amax.bytes.data()}; }
  ConstPlane Readable() const { return {data.bytes.data(), scales.bytes.data(), amax.bytes.data()}; }
};

std::string PathIn(const std::string& directory, absl::string_view role) {
  return absl::StrCat(directory, "/", role, ".npy");
}

// Returns "row" or "col", the prefix of the files' names.
absl::string_view PlanePrefix(Plane plane) { return plane == Plane::kRowWise ? "row" : "col"; }

std::string DataRole(Plane plane) { return absl::StrCat(PlanePrefix(plane), "_data"); }

std::string ScaleRole(Plane plane, const NpyArray& scales) {
  return scales.dtype == "<f4" ? "scale_inv" : absl::StrCat(PlanePrefix(plane), "_scale");
}

bool Exists(const NpyArray& array) { return !array.shape.empty(); }

// Returns an array of `bytes` zero bytes.
NpyArray NewArray(int64_t element_bytes, std::vector<int64_t> shape, int64_t bytes) {
  const char* dtype = element_bytes == sizeof(float) ? "<f4" : element_bytes == sizeof(uint16_t) ? "<u2" : "|u1";
  return {dtype, std::move(shape), std::vector<uint8_t>(bytes)};
}

// Returns the bytes of one number of a data file's array. Two elements of NVFP4_2D are one number.
int64_t DataElementBytes(Format format) { return std::max(1, TraitsOf(format).element_bits / 8); }

NpyArray NewScales(const Encoding& encoding, Plane plane, MatrixShape matrix) {
  const int64_t bytes = ScaleBytes(encoding, plane, matrix.rows, matrix.cols);
  if (bytes == 0) return {};
  const bool of_tensor = TraitsOf(encoding.format).row_wise_block.rows == kUnbounded;
  if (of_tensor) return NewArray(bytes, {1}, bytes);
  const MatrixShape shape = ScaleShape(encoding, plane, matrix.rows, matrix.cols);
  return NewArray(bytes / (shape.rows * shape.cols), {shape.rows, shape.cols}, bytes);
}

// Returns a plane's arrays, filled with zeros.
PlaneArrays NewPlane(const Encoding& encoding, Plane plane, MatrixShape matrix) {
  PlaneArrays arrays;
  const int64_t bytes = DataBytes(encoding, matrix.rows, matrix.cols);
  const int64_t element_bytes = DataElementBytes(encoding.format);
  arrays.data = NewArray(element_bytes, {matrix.rows, bytes / matrix.rows / element_bytes}, bytes);
  arrays.scales = NewScales(encoding, plane, matrix);
  if (NeedsAmax(encoding.format)) arrays.amax = NewArray(sizeof(float), {1}, sizeof(float));
  return arrays;
}

std::string ArrayText(const NpyArray& array) {
  return absl::StrCat(array.dtype, " [", absl::StrJoin(array.shape, ", "), "]");
}

absl::StatusOr<MatrixShape> MatrixOf(const NpyArray& array, const std::string& path) {
  MatrixShape matrix{1, 1};
  if (!array.shape.empty()) matrix.cols = array.shape.back();
  for (size_t i = 0; i + 1 < array.shape.size(); ++i) matrix.rows *= array.shape[i];
  if (matrix.rows > 0 && matrix.cols > 0) return matrix;
  return absl::InvalidArgumentError(absl::StrCat(path, ": want at least one element, got ", ArrayText(array)));
}

std::vector<float> FloatsOf(const NpyArray& array) {
  std::vector<float> values(array.bytes.size() / sizeof(float));
  std::memcpy(values.data(), array.bytes.data(), array.bytes.size());
  return values;
}

absl::Status WriteFloats(const std::string& path, MatrixShape matrix, const std::vector<float>& values) {
  NpyArray array = {"<f4", {matrix.rows, matrix.cols}, std::vector<uint8_t>(values.size() * sizeof(float))};
  std::memcpy(array.bytes.data(), values.data(), array.bytes.size());
  return WriteNpy(path, array);
}

absl::Status WritePlane(const std::string& directory, Plane plane, const PlaneArrays& arrays) {
  RETURN_IF_ERROR(WriteNpy(PathIn(directory, DataRole(plane)), arrays.data));
  if (Exists(arrays.amax)) RETURN_IF_ERROR(WriteNpy(PathIn(directory, "amax"), arrays.amax));
  if (!Exists(arrays.scales)) return absl::OkStatus();
  return WriteNpy(PathIn(directory, ScaleRole(plane, arrays.scales)), arrays.scales);
}

absl::Status WriteDecoded(const std::string& path, const Encoding& encoding, Plane plane, const PlaneArrays& arrays,
                          MatrixShape matrix) {
  std::vector<float> values(matrix.rows * matrix.cols);
  DecodePlane(encoding, plane, arrays.Readable(), matrix.rows, matrix.cols, values.data());
  return WriteFloats(path, matrix, values);
}

absl::Status CreateDirectory(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (!error && std::filesystem::is_directory(path, error)) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat("create ", path, ": ", error ? error.message() : "a file of this name already exists"));
}

// An encoding in another format may have left files that this one does not have.
absl::Status RemoveFiles(const std::string& directory) {
  for (const char* role : {"row_data", "row_scale", "col_data", "col_scale", "scale_inv", "amax", "dequantized"}) {
    const std::string path = PathIn(directory, role);
    std::error_code error;
    std::filesystem::remove(path, error);
    if (error) return absl::UnavailableError(absl::StrCat("remove ", path, ": ", error.message()));
  }
  return absl::OkStatus();
}

// Reads an array that must look like `expected`.
absl::StatusOr<NpyArray> ReadLike(const std::string& path, const NpyArray& expected) {
  ASSIGN_OR_RETURN(NpyArray array, ReadNpy(path));
  if (array.dtype == expected.dtype && array.shape == expected.shape) return array;
  return absl::InvalidArgumentError(absl::StrCat(path, ": want ", ArrayText(expected), ", got ", ArrayText(array)));
}

// Returns the columns of a matrix with `stored` numbers in a row of its data: twice as many for NVFP4_2D, or one fewer
// if `columns` says so.
absl::StatusOr<int64_t> DecodedColumns(Format format, int64_t stored, std::optional<int64_t> columns,
                                       const std::string& path) {
  const bool is_packed = TraitsOf(format).element_bits < 8;
  const int64_t most = is_packed ? 2 * stored : stored;
  if (!columns.has_value() || *columns == most || (is_packed && *columns == most - 1)) return columns.value_or(most);
  return absl::InvalidArgumentError(absl::StrCat(path, ": want rows of ", *columns, " columns, got rows of ", most));
}

// Returns the shape of the matrix whose plane's data is `data`.
absl::StatusOr<MatrixShape> DecodedShape(Format format, const NpyArray& data, std::optional<int64_t> columns,
                                         const std::string& path) {
  if (data.shape.size() != 2) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": want two dimensions, got ", ArrayText(data)));
  }
  ASSIGN_OR_RETURN(MatrixShape matrix, MatrixOf(data, path));
  ASSIGN_OR_RETURN(matrix.cols, DecodedColumns(format, matrix.cols, columns, path));
  return matrix;
}

// A plane that was read, and the shape of its matrix.
struct StoredPlane {
  MatrixShape matrix;
  PlaneArrays arrays;
};

absl::StatusOr<StoredPlane> ReadPlane(const Encoding& encoding, Plane plane, std::optional<int64_t> columns,
                                      const std::string& directory) {
  const std::string data_path = PathIn(directory, DataRole(plane));
  StoredPlane stored;
  ASSIGN_OR_RETURN(stored.arrays.data, ReadNpy(data_path));
  ASSIGN_OR_RETURN(stored.matrix, DecodedShape(encoding.format, stored.arrays.data, columns, data_path));
  const PlaneArrays expected = NewPlane(encoding, plane, stored.matrix);
  if (stored.arrays.data.dtype != expected.data.dtype) {
    return absl::InvalidArgumentError(
        absl::StrCat(data_path, ": want ", ArrayText(expected.data), ", got ", ArrayText(stored.arrays.data)));
  }
  if (AmaxBytes(encoding.format) != 0) {
    ASSIGN_OR_RETURN(stored.arrays.amax, ReadLike(PathIn(directory, "amax"), expected.amax));
  }
  if (!Exists(expected.scales)) return stored;
  ASSIGN_OR_RETURN(stored.arrays.scales,
                   ReadLike(PathIn(directory, ScaleRole(plane, expected.scales)), expected.scales));
  return stored;
}

}  // namespace

absl::Status EncodeFile(const Encoding& encoding, const std::string& input, const std::string& output,
                        float delayed_scale) {
  RETURN_IF_ERROR(CheckEncodable(encoding));
  ASSIGN_OR_RETURN(const NpyArray array, ReadNpy(input));
  if (array.dtype != "<f4") {
    return absl::InvalidArgumentError(absl::StrCat(input, ": want dtype <f4, got ", array.dtype));
  }
  ASSIGN_OR_RETURN(const MatrixShape matrix, MatrixOf(array, input));
  const std::vector<float> values = FloatsOf(array);
  const TensorScaling scaling = {Amax(values.data(), matrix.rows * matrix.cols), delayed_scale};
  const bool has_columns = HasColumnPlane(encoding.format);
  PlaneArrays rows = NewPlane(encoding, Plane::kRowWise, matrix);
  PlaneArrays columns = has_columns ? NewPlane(encoding, Plane::kColumnWise, matrix) : PlaneArrays();
  EncodePlanes(encoding, values.data(), matrix.rows, matrix.cols, rows.Writable(),
               has_columns ? columns.Writable() : MutablePlane(), scaling);
  // The planes of FP8_TENSOR_* do not hold the amax, but their scale follows from it.
  if (Exists(rows.amax)) std::memcpy(rows.amax.bytes.data(), &scaling.amax, sizeof(scaling.amax));
  RETURN_IF_ERROR(CreateDirectory(output));
  RETURN_IF_ERROR(RemoveFiles(output));
  RETURN_IF_ERROR(WritePlane(output, Plane::kRowWise, rows));
  if (has_columns) RETURN_IF_ERROR(WritePlane(output, Plane::kColumnWise, columns));
  return WriteDecoded(PathIn(output, "dequantized"), encoding, Plane::kRowWise, rows, matrix);
}

absl::Status DecodeFiles(const Encoding& encoding, Plane plane, const std::string& input, const std::string& output,
                         std::optional<int64_t> columns) {
  RETURN_IF_ERROR(CheckEncodable(encoding));
  if (plane == Plane::kColumnWise && !HasColumnPlane(encoding.format)) {
    return absl::InvalidArgumentError(
        absl::StrCat("want a format with a column-wise plane, got ", FormatName(encoding.format)));
  }
  ASSIGN_OR_RETURN(const StoredPlane stored, ReadPlane(encoding, plane, columns, input));
  return WriteDecoded(output, encoding, plane, stored.arrays, stored.matrix);
}

}  // namespace paramshard::ctl
