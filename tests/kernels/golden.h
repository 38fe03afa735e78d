// The golden cases of tests/golden (see its README), as test code reads them.

#ifndef PARAMSHARD_TESTS_KERNELS_GOLDEN_H_
#define PARAMSHARD_TESTS_KERNELS_GOLDEN_H_

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "client/ctl/npy.h"
#include "gtest/gtest.h"
#include "kernels/formats/format_id.h"
#include "nlohmann/json.hpp"

namespace paramshard {

// One case. Reading a file that is missing or malformed ends the test program.
class GoldenCase {
 public:
  explicit GoldenCase(nlohmann::json entry) : entry_(std::move(entry)) {}

  std::string name() const { return entry_.at("name"); }
  std::string kind() const { return entry_.at("kind"); }
  const nlohmann::json& options() const { return entry_.at("options"); }
  int64_t rows() const { return entry_.at("M"); }
  int64_t cols() const { return entry_.at("K"); }
  // Requires a case with a format.
  Encoding encoding() const;

  bool Has(const std::string& role) const;
  // The bytes of the file in this role, and the same as elements of its dtype.
  std::vector<uint8_t> Bytes(const std::string& role) const;
  template <typename T>
  std::vector<T> Values(const std::string& role) const;
  // The part of a step, `size` bytes large, where a file has one for each.
  std::vector<uint8_t> BytesOfStep(const std::string& role, size_t step, size_t size) const;

 private:
  nlohmann::json entry_;
};

// All cases of a kind.
std::vector<GoldenCase> GoldenCases(const std::string& kind);
// All cases.
std::vector<GoldenCase> GoldenCases();

// Succeeds when both are the same bytes; else says how many differ, and the first one.
testing::AssertionResult SameBytes(const std::vector<uint8_t>& expected, const std::vector<uint8_t>& actual);

template <typename T>
std::vector<uint8_t> AsBytes(const std::vector<T>& values) {
  std::vector<uint8_t> bytes(values.size() * sizeof(T));
  if (!bytes.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

template <typename T>
std::vector<T> GoldenCase::Values(const std::string& role) const {
  const std::vector<uint8_t> bytes = Bytes(role);
  std::vector<T> values(bytes.size() / sizeof(T));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

}  // namespace paramshard

#endif  // PARAMSHARD_TESTS_KERNELS_GOLDEN_H_
