#include "proto/safetensors/safetensors_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace paramshard::safetensors {
namespace {

// The same error, of `subject`.
absl::Status About(absl::string_view subject, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat(subject, ": ", status.message()));
}

uint64_t LittleEndian(const uint8_t (&bytes)[kLengthBytes]) {
  uint64_t value = 0;
  for (int i = 0; i < kLengthBytes; ++i) value |= uint64_t{bytes[i]} << (8 * i);
  return value;
}

}  // namespace

absl::StatusOr<SafetensorsFile> SafetensorsFile::Open(const std::string& path) {
  // Not blocking: nobody may write to a pipe of this name.
  SafetensorsFile file(path, wire::FileDescriptor(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)));
  if (file.fd_.get() < 0) return absl::ErrnoToStatus(errno, absl::StrCat(path, ": open failed"));
  if (absl::Status status = file.ReadHeader(); !status.ok()) return About(path, status);
  return file;
}

absl::StatusOr<int64_t> SafetensorsFile::FileBytes() const {
  struct stat status;
  if (fstat(fd_.get(), &status) != 0) return absl::UnavailableError(absl::StrCat("fstat failed: ", strerror(errno)));
  if (S_ISREG(status.st_mode)) return status.st_size;
  return absl::InvalidArgumentError("a regular file expected");
}

absl::Status SafetensorsFile::ReadHeader() {
  const absl::StatusOr<int64_t> file_bytes = FileBytes();
  if (!file_bytes.ok()) return file_bytes.status();
  uint8_t length[kLengthBytes];
  if (*file_bytes < kLengthBytes) {
    return absl::DataLossError(
        absl::StrCat("the header's length in ", kLengthBytes, " bytes expected, got a file of ", *file_bytes));
  }
  if (absl::Status status = ReadAt(0, length); !status.ok()) return status;
  const uint64_t header_bytes = LittleEndian(length);
  if (header_bytes > static_cast<uint64_t>(kMaxHeaderBytes)) {
    return absl::InvalidArgumentError(
        absl::StrCat("a header of at most ", kMaxHeaderBytes, " bytes expected, got ", header_bytes));
  }
  data_begin_ = kLengthBytes + static_cast<int64_t>(header_bytes);
  if (data_begin_ > *file_bytes) {
    return absl::DataLossError(
        absl::StrCat("a header of ", header_bytes, " bytes expected, got a file of ", *file_bytes));
  }
  std::string json(header_bytes, '\0');
  absl::Status status = ReadAt(kLengthBytes, absl::MakeSpan(reinterpret_cast<uint8_t*>(json.data()), json.size()));
  if (!status.ok()) return status;
  absl::StatusOr<Header> header = ParseHeader(json, *file_bytes - data_begin_);
  if (!header.ok()) return header.status();
  header_ = *std::move(header);
  return absl::OkStatus();
}

absl::Status SafetensorsFile::Read(const TensorInfo& tensor, int64_t offset_bytes, absl::Span<uint8_t> out) const {
  const absl::Status status = ReadAt(data_begin_ + tensor.offset_bytes + offset_bytes, out);
  if (status.ok()) return status;
  return About(absl::StrCat(path_, ": tensor ", NameText(tensor.name)), status);
}

absl::Status SafetensorsFile::ReadAt(int64_t offset, absl::Span<uint8_t> out) const {
  while (!out.empty()) {
    const ssize_t count = pread(fd_.get(), out.data(), out.size(), offset);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return absl::UnavailableError(absl::StrCat("read failed: ", strerror(errno)));
    if (count == 0) {
      return absl::DataLossError(absl::StrCat(out.size(), " bytes at ", offset, " expected, got the end of the file"));
    }
    out.remove_prefix(count);
    offset += count;
  }
  return absl::OkStatus();
}

}  // namespace paramshard::safetensors
