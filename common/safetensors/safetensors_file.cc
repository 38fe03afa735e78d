#include "common/safetensors/safetensors_file.h"

#include "absl/strings/str_cat.h"

namespace paramshard::safetensors {
namespace {

// Returns the same error with `subject` in front.
absl::Status About(absl::string_view subject, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat(subject, ": ", status.message()));
}

}  // namespace

absl::StatusOr<SafetensorsFile> SafetensorsFile::Open(const std::string& path) {
  absl::StatusOr<RegularFile> contents = RegularFile::Open(path);
  if (!contents.ok()) return contents.status();
  SafetensorsFile file(path, *std::move(contents));
  if (absl::Status status = file.ReadHeader(); !status.ok()) return About(path, status);
  return file;
}

absl::Status SafetensorsFile::ReadHeader() {
  const int64_t file_bytes = contents_.size_bytes();
  if (file_bytes < kLengthBytes) {
    return absl::DataLossError(
        absl::StrCat("want the header's length in ", kLengthBytes, " bytes, got a file of ", file_bytes));
  }
  char length[kLengthBytes];
  absl::Status status = contents_.ReadAt(0, absl::MakeSpan(reinterpret_cast<uint8_t*>(length), kLengthBytes));
  if (!status.ok()) return status;
  const absl::StatusOr<int64_t> data_begin = DataBegin({length, kLengthBytes});
  if (!data_begin.ok()) return data_begin.status();
  data_begin_ = *data_begin;
  const int64_t header_bytes = data_begin_ - kLengthBytes;
  if (data_begin_ > file_bytes) {
    return absl::DataLossError(absl::StrCat("want a header of ", header_bytes, " bytes, got a file of ", file_bytes));
  }
  std::string json(header_bytes, '\0');
  status = contents_.ReadAt(kLengthBytes, absl::MakeSpan(reinterpret_cast<uint8_t*>(json.data()), json.size()));
  if (!status.ok()) return status;
  absl::StatusOr<Header> header = ParseHeader(json, file_bytes - data_begin_);
  if (!header.ok()) return header.status();
  header_ = *std::move(header);
  return absl::OkStatus();
}

absl::Status SafetensorsFile::Read(const TensorInfo& tensor, int64_t offset_bytes, absl::Span<uint8_t> out) const {
  const absl::Status status = contents_.ReadAt(data_begin_ + tensor.offset_bytes + offset_bytes, out);
  if (status.ok()) return status;
  return About(absl::StrCat(path_, ": tensor ", NameText(tensor.name)), status);
}

}  // namespace paramshard::safetensors
