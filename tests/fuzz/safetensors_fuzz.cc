// The safetensors reader: the bytes are a file. Accepted files must be consistent: tensors fill the file, all of them
// are readable, and the header is the same after it was written and read again.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "common/safetensors/safetensors_file.h"
#include "kernels/base/check.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/memory_file.h"

namespace paramshard::safetensors {
namespace {

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

void Run(const std::string& input) {
  const MemoryFile contents(input);
  const auto file = SafetensorsFile::Open(contents.path());
  if (!file.ok()) return;
  CheckTensors(*file, input.size());
  CheckRoundTrip(*file);
}

std::string FileOf(const std::string& header, const std::string& data) {
  std::string bytes(8, '\0');
  const uint64_t length = header.size();
  std::memcpy(bytes.data(), &length, sizeof(length));
  return bytes + header + data;
}

// Gives most inputs a length that fits, so that the header is read.
std::string WithLength(std::string bytes, Mutator& mutator) {
  if (bytes.size() < 8 || mutator.Below(4) == 0) return bytes;
  const uint64_t length =
      std::min<uint64_t>(bytes.rfind('}') == std::string::npos ? 0 : bytes.rfind('}') - 7, bytes.size() - 8);
  std::memcpy(bytes.data(), &length, sizeof(length));
  return bytes;
}

}  // namespace
}  // namespace paramshard::safetensors

const paramshard::FuzzTarget& paramshard::Target() {
  using safetensors::FileOf;
  static const auto* const target = new FuzzTarget{
      .seeds =
          {
              FileOf("{}", ""),
              FileOf(R"({"w":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]}})", std::string(16, 'd')),
              FileOf(R"({"__metadata__":{"format":"pt","k":"\u00e9"},)"
                     R"("a":{"dtype":"BF16","shape":[],"data_offsets":[0,2]},)"
                     R"("b":{"dtype":"U8","shape":[0,3],"data_offsets":[2,2]},"c":{"dtype":"F4","shape":[4],)"
                     R"("data_offsets":[2,4]}}   )",
                     "dddd"),
              FileOf(R"({"w":{"dtype":"F64","shape":[9223372036854775807,2],"data_offsets":[0,18446744073709551615]}})",
                     "d"),
          },
      .words = {"{", "}", "[", "]", ",", ":", "\"", "0", "-1", "1e9", "9223372036854775807", "\\u0000", "null",
                "\"F32\"", "\"dtype\"", "\"shape\"", "\"data_offsets\"", "\"__metadata__\""},
      .runs = 100'000,
      .run = safetensors::Run,
      .mend = safetensors::WithLength};
  return *target;
}
