#include "client/ctl/codec_files.h"

#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/ctl/npy.h"
#include "kernels/base/status_macros.h"
#include "kernels/formats/codec.h"

namespace paramshard::ctl {
namespace {

// One plane in memory, as it lies in files.
struct PlaneArrays {
  NpyArray data;
  NpyArray scales;  // of no elements where the format has none

  MutablePlane Writable() { return {data.bytes.data(), scales.bytes.data()}; }
  ConstPlane Readable() const { return {data.bytes.data(), scales.bytes.data()}; }
};

std::string PathIn(const std::string& directory, absl::string_view role) {
  return absl::StrCat(directory, "/", role, ".npy");
}

// "row" or "col", as the names of the files begin.
absl::string_view PlanePrefix(Plane plane) { return plane == Plane::kRowWise ? "row" : "col"; }

std::string DataRole(Plane plane) { return absl::StrCat(PlanePrefix(plane), "_data"); }

std::string ScaleRole(Plane plane, const NpyArray& scales) {
  return scales.dtype == "<f4" ? "scale_inv" : absl::StrCat(PlanePrefix(plane), "_scale");
}

bool HasScales(const PlaneArrays& plane) { return !plane.scales.shape.empty(); }

absl::string_view DtypeOfBytes(int64_t element_bytes) {
  if (element_bytes == sizeof(float)) return "<f4";
  return element_bytes == sizeof(uint16_t) ? "<u2" : "|u1";
}

// The dtypes and shapes of a plane's arrays, of zeros.
PlaneArrays NewPlane(const Encoding& encoding, Plane plane, MatrixShape matrix) {
  PlaneArrays arrays;
  const int64_t data_bytes = DataBytes(encoding, matrix.rows, matrix.cols);
  arrays.data = {std::string(DtypeOfBytes(data_bytes / (matrix.rows * matrix.cols))),
                 {matrix.rows, matrix.cols},
                 std::vector<uint8_t>(data_bytes)};
  const int64_t scale_bytes = ScaleBytes(encoding, plane, matrix.rows, matrix.cols);
  if (scale_bytes == 0) return arrays;
  const MatrixShape scales = ScaleShape(encoding, plane, matrix.rows, matrix.cols);
  arrays.scales = {std::string(DtypeOfBytes(scale_bytes / (scales.rows * scales.cols))),
                   {scales.rows, scales.cols},
                   std::vector<uint8_t>(scale_bytes)};
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
  return absl::InvalidArgumentError(absl::StrCat(path, ": at least one element expected, got ", ArrayText(array)));
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
  if (!HasScales(arrays)) return absl::OkStatus();
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
      absl::StrCat("create ", path, ": a directory expected, got: ", error ? error.message() : "a file of this name"));
}

// An encoding in another format may have left files that this one does not have.
absl::Status RemoveFiles(const std::string& directory) {
  for (const char* role : {"row_data", "row_scale", "col_data", "col_scale", "scale_inv", "dequantized"}) {
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
  return absl::InvalidArgumentError(absl::StrCat(path, ": ", ArrayText(expected), " expected, got ", ArrayText(array)));
}

// The matrix whose plane's data is `data`.
absl::StatusOr<MatrixShape> DecodedShape(const NpyArray& data, const std::string& path) {
  if (data.shape.size() == 2) return MatrixOf(data, path);
  return absl::InvalidArgumentError(absl::StrCat(path, ": two dimensions expected, got ", ArrayText(data)));
}

absl::StatusOr<PlaneArrays> ReadPlane(const Encoding& encoding, Plane plane, const std::string& directory) {
  const std::string data_path = PathIn(directory, DataRole(plane));
  PlaneArrays arrays;
  ASSIGN_OR_RETURN(arrays.data, ReadNpy(data_path));
  ASSIGN_OR_RETURN(const MatrixShape matrix, DecodedShape(arrays.data, data_path));
  const PlaneArrays expected = NewPlane(encoding, plane, matrix);
  if (arrays.data.dtype != expected.data.dtype) {
    return absl::InvalidArgumentError(
        absl::StrCat(data_path, ": ", ArrayText(expected.data), " expected, got ", ArrayText(arrays.data)));
  }
  if (!HasScales(expected)) return arrays;
  ASSIGN_OR_RETURN(arrays.scales, ReadLike(PathIn(directory, ScaleRole(plane, expected.scales)), expected.scales));
  return arrays;
}

}  // namespace

absl::Status EncodeFile(const Encoding& encoding, const std::string& input, const std::string& output) {
  RETURN_IF_ERROR(CheckEncodable(encoding));
  ASSIGN_OR_RETURN(const NpyArray array, ReadNpy(input));
  if (array.dtype != "<f4") {
    return absl::InvalidArgumentError(absl::StrCat(input, ": dtype <f4 expected, got ", array.dtype));
  }
  ASSIGN_OR_RETURN(const MatrixShape matrix, MatrixOf(array, input));
  const bool has_columns = HasColumnPlane(encoding.format);
  PlaneArrays rows = NewPlane(encoding, Plane::kRowWise, matrix);
  PlaneArrays columns = has_columns ? NewPlane(encoding, Plane::kColumnWise, matrix) : PlaneArrays();
  EncodePlanes(encoding, FloatsOf(array).data(), matrix.rows, matrix.cols, rows.Writable(),
               has_columns ? columns.Writable() : MutablePlane());
  RETURN_IF_ERROR(CreateDirectory(output));
  RETURN_IF_ERROR(RemoveFiles(output));
  RETURN_IF_ERROR(WritePlane(output, Plane::kRowWise, rows));
  if (has_columns) RETURN_IF_ERROR(WritePlane(output, Plane::kColumnWise, columns));
  return WriteDecoded(PathIn(output, "dequantized"), encoding, Plane::kRowWise, rows, matrix);
}

absl::Status DecodeFiles(const Encoding& encoding, Plane plane, const std::string& input, const std::string& output) {
  RETURN_IF_ERROR(CheckEncodable(encoding));
  if (plane == Plane::kColumnWise && !HasColumnPlane(encoding.format)) {
    return absl::InvalidArgumentError(
        absl::StrCat("a format with a column-wise plane expected, got ", FormatName(encoding.format)));
  }
  ASSIGN_OR_RETURN(const PlaneArrays arrays, ReadPlane(encoding, plane, input));
  const MatrixShape matrix{arrays.data.shape[0], arrays.data.shape[1]};
  return WriteDecoded(output, encoding, plane, arrays, matrix);
}

}  // namespace paramshard::ctl
