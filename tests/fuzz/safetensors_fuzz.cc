#include "tests/fuzz/safetensors_fuzz.h"

#include <sys/mman.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/base/check.h"
#include "proto/safetensors/safetensors_file.h"

namespace paramshard::safetensors {
namespace {

// A file in memory, and the path that it is opened by.
int MakeFile(const uint8_t* data, size_t size) {
  const int fd = memfd_create("fuzz", MFD_CLOEXEC);
  PARAMSHARD_CHECK(fd >= 0);
  PARAMSHARD_CHECK(write(fd, data, size) == static_cast<ssize_t>(size));
  return fd;
}

void CheckTensors(const SafetensorsFile& file, size_t file_bytes) {
  int64_t end = 0;
  for (const TensorInfo& tensor : file.tensors()) {
    PARAMSHARD_CHECK(tensor.offset_bytes == end);
    PARAMSHARD_CHECK(TensorBytes(tensor.dtype, tensor.shape) == tensor.size_bytes);
    end += tensor.size_bytes;
    PARAMSHARD_CHECK(end <= static_cast<int64_t>(file_bytes));
    std::vector<uint8_t> bytes(tensor.size_bytes);
    PARAMSHARD_CHECK(file.Read(tensor, 0, absl::MakeSpan(bytes)).ok());
  }
}

void CheckRoundTrip(const SafetensorsFile& file) {
  int64_t data_bytes = 0;
  for (const TensorInfo& tensor : file.tensors()) data_bytes += tensor.size_bytes;
  const std::string text = SerializeHeader({file.tensors(), file.metadata()});
  const auto header = ParseHeader(text.substr(kLengthBytes), data_bytes);
  PARAMSHARD_CHECK(header.ok());
  PARAMSHARD_CHECK(header->metadata == file.metadata());
  PARAMSHARD_CHECK(header->tensors.size() == file.tensors().size());
}

}  // namespace
}  // namespace paramshard::safetensors

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using paramshard::safetensors::SafetensorsFile;
  const int fd = paramshard::safetensors::MakeFile(data, size);
  const auto file = SafetensorsFile::Open(absl::StrCat("/proc/self/fd/", fd));
  close(fd);
  if (!file.ok()) return 0;
  paramshard::safetensors::CheckTensors(*file, size);
  paramshard::safetensors::CheckRoundTrip(*file);
  return 0;
}
