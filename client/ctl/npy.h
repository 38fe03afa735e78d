// Reading and writing .npy files of format version 1.0: the arrays of import and export.
//
// Supported: little-endian <f4, <u2, <i2 and |u1, in C order. Errors name the file.

#ifndef PARAMSHARD_CLIENT_CTL_NPY_H_
#define PARAMSHARD_CLIENT_CTL_NPY_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace paramshard {

struct NpyArray {
  // "<f4", "|u1", "<u2" or "<i2".
  std::string dtype;
  // Outermost dimension first; empty for a scalar.
  std::vector<int64_t> shape;
  // The elements in C order, as stored.
  std::vector<uint8_t> bytes;
};

// Parses the contents of a .npy file. INVALID_ARGUMENT for a file that is malformed, truncated or longer than its shape
// says; UNIMPLEMENTED for a valid one of another version, dtype or order.
absl::StatusOr<NpyArray> ParseNpy(absl::string_view contents);

// Returns the contents of a .npy file. INVALID_ARGUMENT when dtype, shape and bytes do not fit together.
absl::StatusOr<std::string> SerializeNpy(const NpyArray& array);

// The same on files, of at most 16 GiB to read. Errors are the file system's, and name the file: NOT_FOUND ...;
// INVALID_ARGUMENT also for a larger file, or one that is not regular; UNAVAILABLE when reading or writing fails.
absl::StatusOr<NpyArray> ReadNpy(const std::string& path);
absl::Status WriteNpy(const std::string& path, const NpyArray& array);

}  // namespace paramshard

#endif  // PARAMSHARD_CLIENT_CTL_NPY_H_
