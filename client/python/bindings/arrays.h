// Memory of the daemon, or of this process, as arrays of Python.
#ifndef PARAMSHARD_CLIENT_PYTHON_BINDINGS_ARRAYS_H_
#define PARAMSHARD_CLIENT_PYTHON_BINDINGS_ARRAYS_H_

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "client/client.h"

namespace paramshard::python {

// Row-major memory, and what keeps it mapped as long as an array shows it.
struct ArrayMemory {
  const void* data = nullptr;
  std::vector<size_t> shape = {};
  nanobind::dlpack::dtype type = {};
  int gpu = -1;
  bool read_only = true;
  std::shared_ptr<const void> owner = nullptr;
};

// The types of DLPack. Elements of E2M1 lie in pairs: a type of two lanes, and half as many columns.
nanobind::dlpack::dtype TypeOf(const Encoding& encoding);
nanobind::dlpack::dtype TypeOf(ScaleType type);
nanobind::dlpack::dtype TypeOf(GradientType type);
nanobind::dlpack::dtype TypeOf(TensorType type);

// The array as frameworks take it: an object with __dlpack__, of its own type.
nanobind::object DLPackArray(const ArrayMemory& memory);
// In host memory a NumPy array: of unsigned integers, the bit patterns, where NumPy has no such type. In memory of a
// GPU the same as DLPackArray.
nanobind::object NativeArray(ArrayMemory memory);
// A NumPy array that owns the values.
nanobind::object OwnedArray(std::vector<uint8_t> bytes, std::vector<size_t> shape, nanobind::dlpack::dtype type);

}  // namespace paramshard::python

#endif  // PARAMSHARD_CLIENT_PYTHON_BINDINGS_ARRAYS_H_
