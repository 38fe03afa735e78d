// Memory of the daemon, or of this process, as arrays of Python.
#ifndef PARAMSHARD_PYTHON_BINDINGS_ARRAYS_H_
#define PARAMSHARD_PYTHON_BINDINGS_ARRAYS_H_

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "client/client.h"
#include "kernels/formats/format.h"

namespace paramshard::python {

// Returns "dtype('float64') (256, 128), read-only", or the type of an object that is no array.
std::string Described(nanobind::handle object);

// A caller's memory, of the host or a GPU.
using WritableAnywhere = nanobind::ndarray<>;
using WritableContiguous = nanobind::ndarray<nanobind::c_contig>;
// The GPU of an array's memory; -1: the host.
int GpuOf(const WritableAnywhere& array);
// Returns false for memory of other devices.
bool IsOfHostOrGpu(const nanobind::ndarray<nanobind::ro>& array);

// Values of a caller, converted if that loses no more than by rounding.
using HostFloats = nanobind::ndarray<float, nanobind::ro, nanobind::c_contig, nanobind::device::cpu>;
// A caller's memory for values, as it is.
using WritableHostArray = nanobind::ndarray<nanobind::c_contig, nanobind::device::cpu>;

// Shapes that an array of one parameter may have.
struct ArrayShapes {
  int64_t rows = 0;
  int64_t columns = 0;
  std::vector<int64_t> parameter;  // the parameter's own shape
};

// Returns floating-point numbers in host memory. TypeError for objects that are no arrays; INVALID_ARGUMENT for another
// type, another shape, and masks. Errors begin with `what`.
HostFloats InputArray(absl::string_view what, nanobind::handle object, const ArrayShapes& shapes);
// Returns a float32, C-contiguous, writable array in host memory: nothing is converted. The same errors.
WritableHostArray OutputArray(absl::string_view what, nanobind::handle object, const ArrayShapes& shapes);
// The same, of float32 or bfloat16, in memory of the host or a GPU.
WritableContiguous DecodedArray(absl::string_view what, nanobind::handle object, const ArrayShapes& shapes);
// A caller's matrix, its last dimension by all others: rows of contiguous memory, at equal distances.
struct WritableRows {
  WritableAnywhere array;
  int64_t rows = 0;
  int64_t row_bytes = 0;
  int64_t stride_bytes = 0;
};

// Returns a writable array of that shape, and of the type or of unsigned integers for its bit patterns.
// Errors of InputArray.
WritableRows RowsArray(absl::string_view what, nanobind::handle object, const nanobind::dlpack::dtype& type,
                       const std::vector<int64_t>& shape);
// INVALID_ARGUMENT for an array whose memory alone is not its values: with a mask, or torch's bit of a negation.
absl::Status CheckHoldsItsValues(absl::string_view what, nanobind::handle object);

// Row-major memory, and an owner that keeps it mapped as long as an array shows it.
struct ArrayMemory {
  const void* data = nullptr;
  std::vector<size_t> shape = {};
  nanobind::dlpack::dtype type = {};
  int gpu = -1;
  bool read_only = true;
  std::shared_ptr<const void> owner = nullptr;
};

// Types of DLPack by the names that torch has for them, and "uint8". Null, and "unknown", for others.
std::optional<nanobind::dlpack::dtype> TypeNamed(absl::string_view name);
absl::string_view TypeName(const nanobind::dlpack::dtype& type);

// The types of DLPack. Elements of E2M1 lie in pairs: a type of two lanes, and half as many columns.
nanobind::dlpack::dtype TypeOf(const Encoding& encoding);
nanobind::dlpack::dtype TypeOf(ScaleType type);
nanobind::dlpack::dtype TypeOf(GradientType type);
nanobind::dlpack::dtype TypeOf(TensorType type);

// The elements of a plane, its scales and its amax where they lie; `owner` keeps them mapped.
ArrayMemory DataOf(const Matrix& matrix, std::shared_ptr<const void> owner);
ArrayMemory ScalesOf(const Matrix& matrix, std::shared_ptr<const void> owner);
ArrayMemory AmaxOf(const Matrix& matrix, std::shared_ptr<const void> owner);

// The array as frameworks take it: an object with __dlpack__, of its own type.
nanobind::object DLPackArray(const ArrayMemory& memory);
// In host memory a NumPy array: of unsigned integers, the bit patterns, where NumPy has no such type. In memory of a
// GPU the same as DLPackArray.
nanobind::object NativeArray(ArrayMemory memory);
// A NumPy array that owns the values.
nanobind::object OwnedArray(std::vector<uint8_t> bytes, std::vector<size_t> shape, nanobind::dlpack::dtype type);

}  // namespace paramshard::python

#endif  // PARAMSHARD_PYTHON_BINDINGS_ARRAYS_H_
