// Reading and writing .npy files of format version 1.0: the arrays that import and export speak.
//
// Taken: little-endian <f4, <u2, <i2 and |u1, in C order. Anything else is refused with a message that names the file.

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

// The contents of a .npy file. INVALID_ARGUMENT when dtype, shape and bytes do not fit together.
absl::StatusOr<std::string> SerializeNpy(const NpyArray& array);

// The same on files, of at most 16 GiB to read. Errors are the file system's, and name the file: NOT_FOUND ...;
// INVALID_ARGUMENT also for what is no regular file, or larger; UNAVAILABLE when reading or writing fails.
absl::StatusOr<NpyArray> ReadNpy(const std::string& path);
absl::Status WriteNpy(const std::string& path, const NpyArray& array);

}  // namespace paramshard

#endif  // PARAMSHARD_CLIENT_CTL_NPY_H_
