// Safetensors files for tests, valid or not: the bytes of a header and data.
#ifndef PARAMSHARD_TESTS_COMMON_SAFETENSORS_FILES_H_
#define PARAMSHARD_TESTS_COMMON_SAFETENSORS_FILES_H_

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "common/safetensors/safetensors_writer.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temporary_directory.h"

namespace paramshard::safetensors {

// Returns a file's bytes: length, header as given, data.
inline std::string FileBytes(const std::string& header, const std::string& data) {
  std::string length(kLengthBytes, '\0');
  const uint64_t size = header.size();
  std::memcpy(length.data(), &size, sizeof(size));
  return length + header + data;
}

template <typename Value>
std::vector<uint8_t> BytesOf(const std::vector<Value>& values) {
  std::vector<uint8_t> bytes(values.size() * sizeof(Value));
  if (!bytes.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

// One tensor with its data.
struct TestTensor {
  std::string name;
  Dtype dtype;
  std::vector<int64_t> shape;
  std::vector<uint8_t> bytes;
};

inline TestTensor FloatTensor(const std::string& name, std::vector<int64_t> shape, const std::vector<float>& values) {
  return {name, Dtype::kF32, std::move(shape), BytesOf(values)};
}

inline void WriteFile(const std::string& path, const std::vector<TestTensor>& tensors, const Metadata& metadata = {}) {
  std::vector<SafetensorsWriter::Tensor> infos;
  for (const TestTensor& tensor : tensors) infos.push_back({tensor.name, tensor.dtype, tensor.shape});
  auto writer = SafetensorsWriter::Create(path, infos, metadata);
  ASSERT_OK(writer);
  for (const TestTensor& tensor : tensors) EXPECT_OK(writer->Append(tensor.name, tensor.bytes));
  EXPECT_OK(writer->Commit());
}

// A test with its own folder.
class FolderTest : public testing::Test {
 protected:
  std::string Path(const std::string& name) const { return folder_ + "/" + name; }

  std::string WriteText(const std::string& name, const std::string& text) const {
    std::ofstream(Path(name), std::ios::binary) << text;
    return Path(name);
  }

  std::string WriteTensors(const std::string& name, const std::vector<TestTensor>& tensors,
                           const Metadata& metadata = {}) const {
    WriteFile(Path(name), tensors, metadata);
    return Path(name);
  }

  std::vector<std::string> Names() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(folder_)) names.push_back(entry.path().filename());
    return names;
  }

  const test::TemporaryDirectory directory_;
  const std::string& folder_ = directory_.path();
};

}  // namespace paramshard::safetensors

#endif  // PARAMSHARD_TESTS_COMMON_SAFETENSORS_FILES_H_
