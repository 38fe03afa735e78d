#include "tests/kernels/golden.h"

#include <fstream>

#include "kernels/base/check.h"
#include "kernels/formats/format.h"
#include "tests/support/environment.h"

namespace paramshard {
namespace {

const std::string& Directory() {
  static const std::string& directory =
      *new std::string(test::EnvironmentOr("PARAMSHARD_TEST_GOLDEN_DIR", PARAMSHARD_GOLDEN_DIR));
  return directory;
}

const nlohmann::json& Index() {
  static const nlohmann::json& index =
      *new nlohmann::json(nlohmann::json::parse(std::ifstream(Directory() + "/index.json")));
  return index;
}

}  // namespace

Encoding GoldenCase::encoding() const {
  Encoding encoding;
  encoding.format = ParseFormat(entry_.at("format").get<std::string>()).value();
  encoding.element = ParseElementType(entry_.at("element").get<std::string>()).value();
  encoding.power_of_two_scales = options().value("pow2", true);
  return encoding;
}

bool GoldenCase::Has(const std::string& role) const {
  const nlohmann::json& files = entry_.at("files");
  return files.contains(role) && !files.at(role).is_null();
}

std::vector<uint8_t> GoldenCase::Bytes(const std::string& role) const {
  const std::string path = entry_.at("files").at(role);
  return ReadNpy(Directory() + "/" + path).value().bytes;
}

std::vector<uint8_t> GoldenCase::BytesOfStep(const std::string& role, size_t step, size_t size) const {
  const std::vector<uint8_t> all = Bytes(role);
  PARAMSHARD_CHECK((step + 1) * size <= all.size());
  return {all.begin() + static_cast<ptrdiff_t>(step * size), all.begin() + static_cast<ptrdiff_t>((step + 1) * size)};
}

std::vector<GoldenCase> GoldenCases(const std::string& kind) {
  std::vector<GoldenCase> cases;
  for (GoldenCase& golden : GoldenCases()) {
    if (golden.kind() == kind) cases.push_back(std::move(golden));
  }
  return cases;
}

std::vector<GoldenCase> GoldenCases() {
  std::vector<GoldenCase> cases;
  for (const nlohmann::json& entry : Index().at("cases")) cases.emplace_back(entry);
  PARAMSHARD_CHECK(cases.size() == Index().at("case_count"));
  return cases;
}

testing::AssertionResult SameBytes(const std::vector<uint8_t>& expected, const std::vector<uint8_t>& actual) {
  if (expected.size() != actual.size()) {
    return testing::AssertionFailure() << expected.size() << " bytes expected, got " << actual.size();
  }
  size_t different = 0;
  size_t first = 0;
  for (size_t i = expected.size(); i-- > 0;) {
    if (expected[i] == actual[i]) continue;
    ++different;
    first = i;
  }
  if (different == 0) return testing::AssertionSuccess();
  return testing::AssertionFailure() << different << " of " << expected.size() << " bytes differ, the first at "
                                     << first << ": " << int{expected[first]} << " expected, got "
                                     << int{actual[first]};
}

}  // namespace paramshard
