// Writer of a file that gets its name only when it is whole.
#ifndef PARAMSHARD_COMMON_SAFETENSORS_REPLACING_FILE_H_
#define PARAMSHARD_COMMON_SAFETENSORS_REPLACING_FILE_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/shared_memory/file_descriptor.h"

namespace paramshard::safetensors {

// Until Commit the file has no name, so it disappears when its process ends in any way. On a file system that does not
// support this it is a temporary file in the same folder, which only the destructor removes. Movable; not thread-safe.
// Errors are the file system's, and name the file: NOT_FOUND, PERMISSION_DENIED, RESOURCE_EXHAUSTED ...
class ReplacingFile {
 public:
  static absl::StatusOr<ReplacingFile> Create(const std::string& path);
  ReplacingFile(ReplacingFile&& other) noexcept;
  ReplacingFile& operator=(ReplacingFile&& other) = delete;
  ~ReplacingFile();

  absl::Status WriteAt(int64_t offset, absl::Span<const uint8_t> bytes) const;

  // Syncs the file to the disk and gives it its name, replacing an existing file. Call nothing after it.
  absl::Status Commit();

 private:
  explicit ReplacingFile(const std::string& path);
  absl::Status CreateTemporary();
  // Gives a file without a name its temporary name.
  absl::Status LinkTemporary();

  std::string path_;
  std::string temporary_path_;
  bool has_temporary_path_ = false;  // the file has this name now
  wire::FileDescriptor fd_;
};

}  // namespace paramshard::safetensors

#endif  // PARAMSHARD_COMMON_SAFETENSORS_REPLACING_FILE_H_
