#include "client/ctl/npy.h"

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <limits>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "absl/types/span.h"
#include "common/safetensors/regular_file.h"

namespace paramshard {
namespace {

constexpr absl::string_view kMagic("\x93NUMPY", 6);
// Magic, version (two bytes), length of the header (two bytes, little endian).
constexpr size_t kPreambleBytes = 10;
constexpr int64_t kMaxHeaderBytes = kPreambleBytes + std::numeric_limits<uint16_t>::max();
// Larger than any matrix of a model; a header may claim any size.
constexpr int64_t kMaxArrayBytes = int64_t{16} << 30;
// The elements of a written file begin at a multiple of this, as numpy's do.
constexpr size_t kDataAlignment = 64;

absl::Status Malformed(absl::string_view what) { return absl::InvalidArgumentError(absl::StrCat("npy: ", what)); }

// Returns the bytes of one element, or 0 for a dtype that is not supported.
int64_t ElementBytes(absl::string_view dtype) {
  if (dtype == "<f4") return 4;
  if (dtype == "<u2" || dtype == "<i2") return 2;
  return dtype == "|u1" ? 1 : 0;
}

// Returns the size of an array of this dtype and shape; nullopt when it does not fit int64_t or a dimension is
// negative.
std::optional<int64_t> ArrayBytes(absl::string_view dtype, const std::vector<int64_t>& shape) {
  int64_t bytes = ElementBytes(dtype);
  for (int64_t size : shape) {
    if (size < 0 || __builtin_mul_overflow(bytes, size, &bytes)) return std::nullopt;
  }
  return bytes;
}

struct Header {
  std::optional<std::string> dtype;
  std::optional<bool> fortran_order;
  std::optional<std::vector<int64_t>> shape;
};

// Reads the header's Python literal: {'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }
class HeaderParser {
 public:
  explicit HeaderParser(absl::string_view text) : rest_(text) {}

  absl::StatusOr<Header> Parse();

 private:
  bool Take(absl::string_view token);
  std::optional<std::string> TakeString();
  std::optional<bool> TakeBool();
  std::optional<int64_t> TakeSize();
  std::optional<std::vector<int64_t>> TakeShape();
  absl::Status ParseEntry(Header& header);

  absl::string_view rest_;
};

bool HeaderParser::Take(absl::string_view token) {
  rest_ = absl::StripLeadingAsciiWhitespace(rest_);
  return absl::ConsumePrefix(&rest_, token);
}

std::optional<std::string> HeaderParser::TakeString() {
  if (!Take("'")) return std::nullopt;
  const size_t end = rest_.find('\'');
  if (end == absl::string_view::npos) return std::nullopt;
  std::string text(rest_.substr(0, end));
  rest_.remove_prefix(end + 1);
  return text;
}

std::optional<bool> HeaderParser::TakeBool() {
  if (Take("True")) return true;
  if (Take("False")) return false;
  return std::nullopt;
}

std::optional<int64_t> HeaderParser::TakeSize() {
  rest_ = absl::StripLeadingAsciiWhitespace(rest_);
  size_t digits = 0;
  while (digits < rest_.size() && absl::ascii_isdigit(rest_[digits])) ++digits;
  int64_t size = 0;
  // SimpleAtoi rejects numbers that do not fit.
  if (!absl::SimpleAtoi(rest_.substr(0, digits), &size)) return std::nullopt;
  rest_.remove_prefix(digits);
  return size;
}

std::optional<std::vector<int64_t>> HeaderParser::TakeShape() {
  if (!Take("(")) return std::nullopt;
  std::vector<int64_t> shape;
  while (!Take(")")) {
    const std::optional<int64_t> size = TakeSize();
    if (!size.has_value()) return std::nullopt;
    shape.push_back(*size);
    if (Take(",")) continue;
    // "(3)" is a number in Python, not a tuple.
    if (shape.size() == 1 || !Take(")")) return std::nullopt;
    break;
  }
  return shape;
}

absl::Status HeaderParser::ParseEntry(Header& header) {
  const std::optional<std::string> key = TakeString();
  if (!key.has_value() || !Take(":")) return Malformed("want a quoted key and ':' in the header");
  if (*key == "descr" && !header.dtype.has_value()) {
    header.dtype = TakeString();
    return header.dtype.has_value() ? absl::OkStatus() : Malformed("descr is not a plain dtype");
  }
  if (*key == "fortran_order" && !header.fortran_order.has_value()) {
    header.fortran_order = TakeBool();
    return header.fortran_order.has_value() ? absl::OkStatus() : Malformed("fortran_order is not True or False");
  }
  if (*key == "shape" && !header.shape.has_value()) {
    header.shape = TakeShape();
    return header.shape.has_value() ? absl::OkStatus() : Malformed("shape is not a tuple of sizes");
  }
  return Malformed("an unknown or repeated key in the header");
}

absl::StatusOr<Header> HeaderParser::Parse() {
  Header header;
  if (!Take("{")) return Malformed("the header is not a dictionary");
  while (!Take("}")) {
    if (absl::Status status = ParseEntry(header); !status.ok()) return status;
    if (Take(",")) continue;
    if (Take("}")) break;
    return Malformed("want ',' or '}' in the header");
  }
  if (!absl::StripAsciiWhitespace(rest_).empty()) return Malformed("text after the header's dictionary");
  if (!header.dtype || !header.fortran_order || !header.shape) return Malformed("a key is missing in the header");
  return header;
}

// Returns the header's text, and moves `contents` on to the elements.
absl::StatusOr<absl::string_view> TakeHeaderText(absl::string_view& contents) {
  if (contents.substr(0, kMagic.size()) != kMagic) return Malformed("not a .npy file");
  if (contents.size() < kPreambleBytes) return Malformed("truncated before the header");
  if (contents[6] != 1 || contents[7] != 0)
    return absl::UnimplementedError("npy: only format version 1.0 is supported");
  const size_t length = static_cast<uint8_t>(contents[8]) | static_cast<size_t>(static_cast<uint8_t>(contents[9])) << 8;
  contents.remove_prefix(kPreambleBytes);
  if (contents.size() < length) return Malformed("truncated in the header");
  const absl::string_view text = contents.substr(0, length);
  contents.remove_prefix(length);
  return text;
}

absl::Status CheckReadable(const Header& header) {
  if (ElementBytes(*header.dtype) == 0) {
    return absl::UnimplementedError(absl::StrCat("npy: dtype ", *header.dtype, " is not supported"));
  }
  if (*header.fortran_order) return absl::UnimplementedError("npy: Fortran order is not supported");
  return absl::OkStatus();
}

std::string ShapeText(const std::vector<int64_t>& shape) {
  return absl::StrCat("(", absl::StrJoin(shape, ", "), shape.size() == 1 ? ",)" : ")");
}

absl::Status CheckSize(const NpyArray& array, size_t actual_bytes) {
  const std::optional<int64_t> bytes = ArrayBytes(array.dtype, array.shape);
  if (!bytes.has_value()) return Malformed(absl::StrCat("shape ", ShapeText(array.shape), " is too large"));
  if (static_cast<uint64_t>(*bytes) == actual_bytes) return absl::OkStatus();
  return Malformed(
      absl::StrCat(array.dtype, " ", ShapeText(array.shape), ": want ", *bytes, " bytes, got ", actual_bytes));
}

absl::Status WithPath(const absl::Status& status, const std::string& path) {
  return absl::Status(status.code(), absl::StrCat(path, ": ", status.message()));
}

// Returns the array without its elements; moves `contents`, which may be the beginning of a file, on to them.
absl::StatusOr<NpyArray> TakeHeader(absl::string_view& contents) {
  const absl::StatusOr<absl::string_view> text = TakeHeaderText(contents);
  if (!text.ok()) return text.status();
  absl::StatusOr<Header> header = HeaderParser(*text).Parse();
  if (!header.ok()) return header.status();
  if (absl::Status status = CheckReadable(*header); !status.ok()) return status;
  return NpyArray{*std::move(header->dtype), *std::move(header->shape), {}};
}

// Allocates the elements only after the file's size agrees with its header.
absl::StatusOr<NpyArray> ReadArray(const safetensors::RegularFile& file) {
  if (file.size_bytes() > kMaxHeaderBytes + kMaxArrayBytes) {
    return Malformed(
        absl::StrCat("want an array of at most ", kMaxArrayBytes, " bytes, got a file of ", file.size_bytes()));
  }
  std::vector<uint8_t> beginning(std::min(file.size_bytes(), kMaxHeaderBytes));
  if (absl::Status status = file.ReadAt(0, absl::MakeSpan(beginning)); !status.ok()) return status;
  absl::string_view rest(reinterpret_cast<const char*>(beginning.data()), beginning.size());
  absl::StatusOr<NpyArray> array = TakeHeader(rest);
  if (!array.ok()) return array.status();
  const auto data_begin = static_cast<int64_t>(beginning.size() - rest.size());
  const int64_t data_bytes = file.size_bytes() - data_begin;
  if (absl::Status status = CheckSize(*array, data_bytes); !status.ok()) return status;
  array->bytes.resize(data_bytes);
  if (absl::Status status = file.ReadAt(data_begin, absl::MakeSpan(array->bytes)); !status.ok()) return status;
  return array;
}

}  // namespace

absl::StatusOr<NpyArray> ParseNpy(absl::string_view contents) {
  absl::StatusOr<NpyArray> array = TakeHeader(contents);
  if (!array.ok()) return array.status();
  if (absl::Status status = CheckSize(*array, contents.size()); !status.ok()) return status;
  array->bytes.assign(contents.begin(), contents.end());
  return array;
}

absl::StatusOr<std::string> SerializeNpy(const NpyArray& array) {
  if (ElementBytes(array.dtype) == 0) return Malformed(absl::StrCat("dtype ", array.dtype, " is not supported"));
  if (absl::Status status = CheckSize(array, array.bytes.size()); !status.ok()) return status;
  std::string header =
      absl::StrCat("{'descr': '", array.dtype, "', 'fortran_order': False, 'shape': ", ShapeText(array.shape), ", }");
  // Spaces and a line feed fill up to where the elements begin.
  const size_t used = kPreambleBytes + header.size() + 1;
  header.append((kDataAlignment - used % kDataAlignment) % kDataAlignment, ' ');
  header.push_back('\n');
  if (header.size() > std::numeric_limits<uint16_t>::max()) return Malformed("too many dimensions");
  std::string contents = absl::StrCat(kMagic, absl::string_view("\x01\x00", 2));
  contents.push_back(static_cast<char>(header.size() & 0xff));
  contents.push_back(static_cast<char>(header.size() >> 8));
  contents.append(header);
  contents.append(array.bytes.begin(), array.bytes.end());
  return contents;
}

absl::StatusOr<NpyArray> ReadNpy(const std::string& path) {
  const absl::StatusOr<safetensors::RegularFile> file = safetensors::RegularFile::Open(path);
  if (!file.ok()) return file.status();
  absl::StatusOr<NpyArray> array = ReadArray(*file);
  return array.ok() ? std::move(array) : WithPath(array.status(), path);
}

absl::Status WriteNpy(const std::string& path, const NpyArray& array) {
  const absl::StatusOr<std::string> contents = SerializeNpy(array);
  if (!contents.ok()) return WithPath(contents.status(), path);
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  if (!file) return absl::ErrnoToStatus(errno, absl::StrCat(path, ": create failed"));
  file.write(contents->data(), static_cast<std::streamsize>(contents->size()));
  file.close();
  return file ? absl::OkStatus() : absl::UnavailableError(absl::StrCat("write ", path, ": failed"));
}

}  // namespace paramshard
