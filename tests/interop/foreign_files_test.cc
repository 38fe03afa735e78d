// Files that `paramshardctl convert` writes and reads, checked with the programs that own the formats.
// PARAMSHARD_TEST_PYTHON names the interpreter that has PyTorch and transformers.
#include <sys/wait.h>

#include <cstdlib>
#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/support/environment.h"
#include "tests/support/temporary_directory.h"

namespace paramshard::test {
namespace {

constexpr int kNotInstalled = 77;

std::string Python() {
  const char* const python = std::getenv("PARAMSHARD_TEST_PYTHON");
  return python == nullptr ? PARAMSHARD_PYTHON : python;
}

class ForeignFilesInteropTest : public testing::TestWithParam<const char*> {};

TEST_P(ForeignFilesInteropTest, ValuesAreThoseOfTheOtherProgram) {
  const TemporaryDirectory folder;
  const int status =
      std::system(absl::StrCat("'", Python(), "' ", PARAMSHARD_SOURCE_DIR, "/tests/interop/foreign_files.py ",
                               GetParam(), " ", Program(PARAMSHARDCTL), " ", folder.path())
                      .c_str());
  ASSERT_TRUE(WIFEXITED(status));
  if (WEXITSTATUS(status) == kNotInstalled) GTEST_SKIP() << "packages are not installed for " << Python();
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

INSTANTIATE_TEST_SUITE_P(Cases, ForeignFilesInteropTest,
                         testing::Values("transformers_decodes_blocks", "transformers_decodes_blocks_of_experts",
                                         "transformers_refuses_other_formats", "gpt_oss_is_decoded_as_by_transformers",
                                         "fp8_is_decoded_as_by_transformers", "torch_reads_blocks_and_offsets",
                                         "numpy_reads_no_file_with_fp8"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace paramshard::test
