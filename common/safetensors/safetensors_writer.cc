#include "common/safetensors/safetensors_writer.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace paramshard::safetensors {
namespace {

absl::Status Invalid(absl::string_view path, absl::string_view tensor, absl::string_view message) {
  return absl::InvalidArgumentError(absl::StrCat(path, ": tensor ", NameText(tensor), ": ", message));
}

absl::StatusOr<Header> MakeHeader(const std::string& path, const std::vector<SafetensorsWriter::Tensor>& tensors,
                                  Metadata metadata) {
  Header header;
  header.metadata = std::move(metadata);
  std::set<absl::string_view> names = {"__metadata__"};
  int64_t room = std::numeric_limits<int64_t>::max() - 2 * kMaxHeaderBytes;
  for (const SafetensorsWriter::Tensor& tensor : tensors) {
    const std::optional<int64_t> size_bytes = TensorBytes(tensor.dtype, tensor.shape);
    if (!size_bytes.has_value() || *size_bytes > room) {
      return Invalid(path, tensor.name,
                     absl::StrCat("want a size of whole bytes that fits a file, got ", DtypeName(tensor.dtype), " [",
                                  absl::StrJoin(tensor.shape, ", "), "]"));
    }
    if (!names.insert(tensor.name).second) return Invalid(path, tensor.name, "duplicate name");
    room -= *size_bytes;
    header.tensors.push_back({tensor.name, tensor.dtype, tensor.shape, 0, *size_bytes});
  }
  std::stable_sort(header.tensors.begin(), header.tensors.end(),
                   [](const TensorInfo& a, const TensorInfo& b) { return DtypeBits(a.dtype) > DtypeBits(b.dtype); });
  int64_t offset = 0;
  for (TensorInfo& tensor : header.tensors) {
    tensor.offset_bytes = offset;
    offset += tensor.size_bytes;
  }
  return header;
}

absl::Span<const uint8_t> BytesOf(const std::string& text) {
  return absl::MakeConstSpan(reinterpret_cast<const uint8_t*>(text.data()), text.size());
}

}  // namespace

absl::StatusOr<SafetensorsWriter> SafetensorsWriter::Create(const std::string& path, const std::vector<Tensor>& tensors,
                                                            Metadata metadata) {
  const absl::StatusOr<Header> header = MakeHeader(path, tensors, std::move(metadata));
  if (!header.ok()) return header.status();
  const std::string text = SerializeHeader(*header);
  const auto data_begin = static_cast<int64_t>(text.size());
  if (data_begin - kLengthBytes > kMaxHeaderBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": want a header of at most ", kMaxHeaderBytes, " bytes, got ", data_begin - kLengthBytes));
  }
  absl::StatusOr<ReplacingFile> file = ReplacingFile::Create(path);
  if (!file.ok()) return file.status();
  SafetensorsWriter writer(path, *std::move(file));
  for (const TensorInfo& tensor : header->tensors) {
    const int64_t begin = data_begin + tensor.offset_bytes;
    writer.cursors_[tensor.name] = {begin, begin + tensor.size_bytes};
  }
  if (absl::Status status = writer.file_.WriteAt(0, BytesOf(text)); !status.ok()) return status;
  return writer;
}

absl::Status SafetensorsWriter::Append(absl::string_view name, absl::Span<const uint8_t> bytes) {
  const auto found = cursors_.find(name);
  if (found == cursors_.end()) return Invalid(path_, name, "not a tensor of the header");
  Cursor& cursor = found->second;
  if (static_cast<int64_t>(bytes.size()) > cursor.end - cursor.next) {
    return Invalid(path_, name,
                   absl::StrCat("want at most ", cursor.end - cursor.next, " more bytes, got ", bytes.size()));
  }
  if (absl::Status status = file_.WriteAt(cursor.next, bytes); !status.ok()) return status;
  cursor.next += static_cast<int64_t>(bytes.size());
  return absl::OkStatus();
}

absl::Status SafetensorsWriter::Commit() {
  for (const auto& [name, cursor] : cursors_) {
    if (cursor.next == cursor.end) continue;
    return absl::FailedPreconditionError(absl::StrCat(path_, ": tensor ", NameText(name), ": want ",
                                                      cursor.end - cursor.next, " more bytes before the end"));
  }
  return file_.Commit();
}

}  // namespace paramshard::safetensors
