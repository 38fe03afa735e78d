// Reader of a safetensors file.
#ifndef PARAMSHARD_COMMON_SAFETENSORS_SAFETENSORS_FILE_H_
#define PARAMSHARD_COMMON_SAFETENSORS_SAFETENSORS_FILE_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/safetensors/header.h"
#include "common/safetensors/regular_file.h"

namespace paramshard::safetensors {

// An open file whose header has been checked against its length. Movable; Read may be called by several threads.
//
//   ASSIGN_OR_RETURN(const SafetensorsFile file, SafetensorsFile::Open("model.safetensors"));
//   for (const TensorInfo& tensor : file.tensors()) {
//     std::vector<uint8_t> bytes(tensor.size_bytes);
//     RETURN_IF_ERROR(file.Read(tensor, 0, absl::MakeSpan(bytes)));
//   }
class SafetensorsFile {
 public:
  // NOT_FOUND; PERMISSION_DENIED; INVALID_ARGUMENT for anything but a regular file, a header longer than
  // kMaxHeaderBytes, and errors of ParseHeader; DATA_LOSS for a file that is shorter or longer than its header says;
  // UNAVAILABLE if it cannot be read. All name the file.
  static absl::StatusOr<SafetensorsFile> Open(const std::string& path);

  const std::string& path() const { return path_; }
  // The tensors, in the order of their data.
  const std::vector<TensorInfo>& tensors() const { return header_.tensors; }
  const Metadata& metadata() const { return header_.metadata; }
  const Header& header() const { return header_; }

  // Reads `out.size()` bytes from `offset_bytes` of the tensor's data on; requires that they lie in the tensor.
  // DATA_LOSS if the file has become shorter, UNAVAILABLE if it cannot be read; both name file and tensor.
  absl::Status Read(const TensorInfo& tensor, int64_t offset_bytes, absl::Span<uint8_t> out) const;

 private:
  SafetensorsFile(std::string path, RegularFile contents) : path_(std::move(path)), contents_(std::move(contents)) {}
  absl::Status ReadHeader();

  std::string path_;
  RegularFile contents_;
  Header header_;
  int64_t data_begin_ = 0;  // in the file
};

}  // namespace paramshard::safetensors

#endif  // PARAMSHARD_COMMON_SAFETENSORS_SAFETENSORS_FILE_H_
