// What a newcomer who adds something may forget, and the compiler does not see: pages, tables, and tests by hand.

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "client/ctl/commands/commands.h"
#include "gtest/gtest.h"
#include "kernels/formats/format.h"
#include "kernels/optim/moment_kind.h"
#include "kernels/optim/optimizers.h"
#include "paramshard/v1/admin.pb.h"

namespace paramshard {
namespace {

namespace fs = std::filesystem;

std::string Text(const fs::path& file) {
  std::ifstream stream(fs::path(PARAMSHARD_SOURCE_DIR) / file);
  EXPECT_TRUE(stream.is_open()) << file;
  return {std::istreambuf_iterator<char>(stream), {}};
}

// The texts of all files of a folder with a certain end.
std::string TextOfFolder(const fs::path& folder, absl::string_view end) {
  std::string text;
  for (const fs::directory_entry& entry : fs::directory_iterator(fs::path(PARAMSHARD_SOURCE_DIR) / folder)) {
    if (absl::EndsWith(entry.path().string(), end)) text += Text(folder / entry.path().filename());
  }
  return text;
}

bool IsOfWord(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

// Whether the word is there, and not as a part of a longer one.
bool HasWord(absl::string_view text, absl::string_view word) {
  for (size_t at = text.find(word); at != text.npos; at = text.find(word, at + 1)) {
    const size_t end = at + word.size();
    if ((at == 0 || !IsOfWord(text[at - 1])) && (end == text.size() || !IsOfWord(text[end]))) return true;
  }
  return false;
}

TEST(CompletenessTest, EveryFormatIsInThePages) {
  for (const char* file : {"docs/formats.md", "docs/numerics.md", "docs/convert.md"}) {
    const std::string text = Text(file);
    for (const FormatTraits& format : kFormats) {
      EXPECT_TRUE(HasWord(text, format.name)) << file << " does not name " << format.name;
    }
  }
}

TEST(CompletenessTest, EveryScaledFormatAndOptimizerHasGoldenCases) {
  const std::string index = Text("tests/golden/index.json");
  for (const FormatTraits& format : kFormats) {
    // What is not scaled is cast, element by element, and casts have cases of their own.
    if (format.scale_type == ScaleType::kNone) continue;
    EXPECT_TRUE(HasWord(index, format.name)) << "no golden case of " << format.name;
  }
  for (const OptimizerTraits& optimizer : kOptimizers) {
    EXPECT_TRUE(HasWord(index, absl::AsciiStrToLower(optimizer.name))) << "no golden case of " << optimizer.name;
  }
}

TEST(CompletenessTest, EveryOptimizerAndMomentIsInThePages) {
  const std::string numerics = Text("docs/numerics.md");
  for (const OptimizerTraits& optimizer : kOptimizers) {
    EXPECT_TRUE(HasWord(numerics, optimizer.name)) << "docs/numerics.md does not name " << optimizer.name;
  }
  for (const MomentTraits& moment : kMomentKinds) {
    for (const char* file : {"docs/numerics.md", "docs/formats.md", "docs/operations.md"}) {
      EXPECT_TRUE(HasWord(Text(file), moment.name)) << file << " does not name " << moment.name;
    }
  }
}

TEST(CompletenessTest, EveryAdminCallHasACommandAndATest) {
  const std::string commands = TextOfFolder("client/ctl/commands", ".cc");
  const std::string fake_daemon = Text("tests/client/ctl/fake_daemon.cc");
  const std::string tests = TextOfFolder("tests/server/service", ".cc");
  const auto& service = *v1::ListModelsRequest::descriptor()->file()->FindServiceByName("AdminService");
  for (int i = 0; i < service.method_count(); ++i) {
    const std::string& name = service.method(i)->name();
    EXPECT_TRUE(HasWord(commands, name)) << "no command of paramshardctl asks " << name;
    EXPECT_TRUE(HasWord(fake_daemon, name)) << "the fake daemon does not answer " << name;
    EXPECT_TRUE(HasWord(tests, name)) << "no test of the service calls " << name;
  }
}

TEST(CompletenessTest, EveryCommandIsInTheTableThePagesAndTheTests) {
  const std::string header = Text("client/ctl/commands/commands.h");
  const std::string operations = Text("docs/operations.md");
  const std::string tests = Text("tests/client/ctl/ctl_test.cc") + Text("tests/client/ctl/tables_test.cc") +
                            Text("tests/client/ctl/hugging_face_export_test.cc");
  size_t declared = 0;
  for (size_t at = header.find("extern const"); at != header.npos; at = header.find("extern const", at + 1)) ++declared;
  EXPECT_EQ(ctl::Commands().size(), declared) << "a command of commands.h is not in the table of commands.cc";
  for (const ctl::CommandInfo* command : ctl::Commands()) {
    EXPECT_TRUE(HasWord(operations, command->name) || HasWord(Text("docs/convert.md"), command->name))
        << "neither docs/operations.md nor docs/convert.md names " << command->name;
    // As an argument that a test gives to the program.
    const std::vector<std::string> words = absl::StrSplit(command->name, ' ');
    EXPECT_TRUE(absl::StrContains(tests, absl::StrCat("\"", words.back(), "\"")))
        << "no test of the program runs " << command->name;
  }
}

}  // namespace
}  // namespace paramshard
