// Memory of the daemon, mapped into this process.
#ifndef PARAMSHARD_CLIENT_INTERNAL_MAPPED_MEMORY_H_
#define PARAMSHARD_CLIENT_INTERNAL_MAPPED_MEMORY_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "common/shared_memory/file_descriptor.h"

namespace paramshard::internal {

// Owns a mapping; the descriptor may be closed after Map. Forked children do not have it: they would keep its pages for
// as long as they live. Move-only; empty after a move.
class MappedMemory {
 public:
  enum class Access : uint8_t { kRead, kReadWrite };

  // FAILED_PRECONDITION unless the file has `size_bytes` and is sealed against shrinking: a file
  // that shrinks under a mapping would end this process. `name` is for messages.
  static absl::StatusOr<MappedMemory> Map(const std::string& name, const wire::FileDescriptor& fd, int64_t size_bytes,
                                          Access access);

  MappedMemory() = default;
  MappedMemory(MappedMemory&& other) noexcept { *this = std::move(other); }
  MappedMemory& operator=(MappedMemory&& other) noexcept;
  ~MappedMemory() { Reset(); }

  // Null when size_bytes() is 0.
  uint8_t* data() const { return data_; }
  int64_t size_bytes() const { return size_bytes_; }

 private:
  void Reset();

  uint8_t* data_ = nullptr;
  int64_t size_bytes_ = 0;
};

}  // namespace paramshard::internal

#endif  // PARAMSHARD_CLIENT_INTERNAL_MAPPED_MEMORY_H_
