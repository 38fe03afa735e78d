// Checkpoints in other programs: the second implementation, and the packages of other projects. PARAMSHARD_TEST_PYTHON
// is an interpreter that has them.
#include <sys/wait.h>

#include <cstdlib>
#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/checkpoint/tensor_key.h"
#include "gmock/gmock.h"
#include "nlohmann/json.hpp"
#include "tests/common/checkpoint/saved_model.h"
#include "tests/support/temporary_directory.h"

namespace paramshard::checkpoint {
namespace {

constexpr int kNotInstalled = 77;

std::string Python() {
  const char* const python = std::getenv("PARAMSHARD_TEST_PYTHON");
  return python == nullptr ? PARAMSHARD_PYTHON : python;
}

// Runs a script of the tree and returns its exit code.
int RunScript(const std::string& script, const std::string& arguments) {
  const int status =
      std::system(absl::StrCat("'", Python(), "' ", PARAMSHARD_SOURCE_DIR, "/", script, " ", arguments).c_str());
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

class InteropTest : public testing::Test {
 protected:
  InteropTest() : folder_(model_.Write(root_.path(), {.world = {6, 3}, .max_header_bytes = 4000})) {}

  void SetUp() override {
    if (Python().empty()) GTEST_SKIP() << "there is no Python";
  }

  // Writes every tensor as the other program has to find it.
  std::string WriteExpected() const {
    nlohmann::json expected;
    for (const UnitSpec& unit : model_.spec().units) {
      for (const ParameterSpec& parameter : unit.parameters) {
        for (const ArrayKind kind : ArraysOf(parameter)) {
          const std::string key = TensorKey(parameter, kind);
          const ArrayShape shape = *ShapeOf(parameter, kind);
          const std::vector<uint8_t>& bytes = model_.arrays().at(key);
          expected[key] = {
              {"dtype", std::string(safetensors::DtypeName(shape.dtype))},
              {"rows", shape.rows},
              {"columns", shape.columns},
              {"data", absl::BytesToHexString({reinterpret_cast<const char*>(bytes.data()), bytes.size()})}};
        }
      }
    }
    const std::string path = root_.path() + "/expected.json";
    WriteText(path, expected.dump());
    return path;
  }

  void OpenWith(const std::string& package) const {
    const int code =
        RunScript("tests/common/checkpoint/interop.py", absl::StrCat(package, " ", folder_, " ", WriteExpected()));
    if (code == kNotInstalled) GTEST_SKIP() << Python() << " has no safetensors, or no torch";
    EXPECT_EQ(code, 0);
  }

  const std::string& folder() const { return folder_; }

 private:
  const test::TemporaryDirectory root_;
  const SavedModel model_{SpecOfEverything(), 11};
  const std::string folder_;
};

TEST_F(InteropTest, TheSecondImplementationFindsItWhole) {
  EXPECT_EQ(RunScript("tests/golden/checkpoint.py", absl::StrCat("verify ", folder())), 0);
}

TEST_F(InteropTest, TheSecondImplementationFindsDamage) {
  const std::string path = folder() + "/rank-00003-of-00006.safetensors";
  std::string bytes = ReadText(path);
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  WriteText(path, bytes);
  EXPECT_EQ(RunScript("tests/golden/checkpoint.py", absl::StrCat("verify ", folder())), 1);
}

TEST_F(InteropTest, SafetensorsOpensEveryFile) { OpenWith("safetensors"); }

TEST_F(InteropTest, TorchPutsTensorsTogether) { OpenWith("torch"); }

TEST_F(InteropTest, TorchReadsIntoAWorldOfItsOwn) { OpenWith("dtensor"); }

}  // namespace
}  // namespace paramshard::checkpoint
