// Writer of a safetensors file.
#ifndef PARAMSHARD_COMMON_SAFETENSORS_SAFETENSORS_WRITER_H_
#define PARAMSHARD_COMMON_SAFETENSORS_SAFETENSORS_WRITER_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/safetensors/header.h"
#include "common/safetensors/replacing_file.h"

namespace paramshard::safetensors {

// Writes the header first, then the data of the tensors: each from its start to its end, with tensors in any order. The
// file gets its name at Commit; without Commit nothing is left. Movable; not thread-safe.
//
//   ASSIGN_OR_RETURN(auto writer, SafetensorsWriter::Create("out.safetensors", {{"w", Dtype::kF32, {2, 3}}}, {}));
//   RETURN_IF_ERROR(writer.Append("w", bytes));
//   RETURN_IF_ERROR(writer.Commit());
class SafetensorsWriter {
 public:
  struct Tensor {
    std::string name;  // UTF-8
    Dtype dtype = Dtype::kF32;
    std::vector<int64_t> shape;
  };

  // Writes the header. Data are arranged by the size of their elements, the largest first: every tensor begins at a
  // multiple of its element's size, as PyTorch expects. INVALID_ARGUMENT for a shape without a size, a
  // duplicate or reserved name, or a header of more than kMaxHeaderBytes; errors of ReplacingFile.
  static absl::StatusOr<SafetensorsWriter> Create(const std::string& path, const std::vector<Tensor>& tensors,
                                                  Metadata metadata);

  // Appends the tensor's next bytes. INVALID_ARGUMENT for a tensor that is not in the header, or too many bytes.
  absl::Status Append(absl::string_view name, absl::Span<const uint8_t> bytes);

  // Syncs the file to the disk and gives it its name, replacing an existing file. FAILED_PRECONDITION naming a tensor
  // that lacks bytes. Call nothing after it.
  absl::Status Commit();

 private:
  // The place of a tensor's next bytes in the file, and the end of its last.
  struct Cursor {
    int64_t next = 0;
    int64_t end = 0;
  };

  explicit SafetensorsWriter(std::string path, ReplacingFile file) : path_(std::move(path)), file_(std::move(file)) {}

  std::string path_;
  ReplacingFile file_;
  std::map<std::string, Cursor, std::less<>> cursors_;
};

}  // namespace paramshard::safetensors

#endif  // PARAMSHARD_COMMON_SAFETENSORS_SAFETENSORS_WRITER_H_
