// Places that an addition must not forget and the compiler does not check: pages, tables, and lists of tests.

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "client/ctl/commands.h"
#include "client/ctl/exit_codes.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/formats/format.h"
#include "kernels/optim/moment_kind.h"
#include "kernels/optim/optimizers.h"
#include "paramshard/v1/admin.pb.h"
#include "server/base/exit_codes.h"
#include "server/observe/metric.h"
#include "server/process/config.h"

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

// Returns true if the text has the word, not just as a part of a longer word.
bool HasWord(absl::string_view text, absl::string_view word) {
  for (size_t at = text.find(word); at != text.npos; at = text.find(word, at + 1)) {
    const size_t end = at + word.size();
    if ((at == 0 || !IsOfWord(text[at - 1])) && (end == text.size() || !IsOfWord(text[end]))) return true;
  }
  return false;
}

TEST(CompletenessTest, EveryFormatIsInThePages) {
  for (const char* file : {"docs/reference/formats.md", "docs/reference/numerics.md", "docs/operate/convert.md"}) {
    const std::string text = Text(file);
    for (const FormatTraits& format : kFormats) {
      EXPECT_TRUE(HasWord(text, format.name)) << file << " does not name " << format.name;
    }
  }
}

TEST(CompletenessTest, EveryScaledFormatAndOptimizerHasGoldenCases) {
  const std::string index = Text("tests/golden/index.json");
  for (const FormatTraits& format : kFormats) {
    // Formats without scales are casts of single elements, which have cases of their own.
    if (format.scale_type == ScaleType::kNone) continue;
    EXPECT_TRUE(HasWord(index, format.name)) << "no golden case of " << format.name;
  }
  for (const OptimizerTraits& optimizer : kOptimizers) {
    EXPECT_TRUE(HasWord(index, absl::AsciiStrToLower(optimizer.name))) << "no golden case of " << optimizer.name;
  }
}

TEST(CompletenessTest, EveryOptimizerAndMomentIsInThePages) {
  for (const char* file : {"docs/reference/numerics.md", "docs/train/pytorch.md"}) {
    const std::string text = Text(file);
    for (const OptimizerTraits& optimizer : kOptimizers) {
      EXPECT_TRUE(HasWord(text, optimizer.name)) << file << " does not name " << optimizer.name;
    }
  }
  for (const OptimizerTraits& optimizer : kOptimizers) {
    for (int i = 0; i < optimizer.moment_count; ++i) {
      for (const char* file : {"docs/reference/numerics.md", "docs/reference/checkpoint.md"}) {
        EXPECT_TRUE(HasWord(Text(file), optimizer.moment_names[i]))
            << file << " does not name " << optimizer.moment_names[i] << " of " << optimizer.name;
      }
    }
  }
  for (const MomentTraits& moment : kMomentKinds) {
    for (const char* file : {"docs/reference/numerics.md", "docs/reference/formats.md", "docs/operate/settings.md"}) {
      EXPECT_TRUE(HasWord(Text(file), moment.name)) << file << " does not name " << moment.name;
    }
  }
}

// Python writes the names of optimizers in lower case.
TEST(CompletenessTest, EveryOptimizerIsKnownInPython) {
  for (const char* file : {"python/paramshard/spec.py", "python/paramshard/torch/optimizers.py",
                           "tests/python/pytorch/test_optimizers.py"}) {
    const std::string text = Text(file);
    for (const OptimizerTraits& optimizer : kOptimizers) {
      const std::string name = absl::AsciiStrToLower(optimizer.name);
      EXPECT_TRUE(HasWord(text, name)) << file << " does not name " << name;
    }
  }
}

TEST(CompletenessTest, EveryAdminCallHasACommandAndATest) {
  const std::string commands = TextOfFolder("client/ctl/commands", ".cc");
  const std::string fake_daemon = Text("tests/client/ctl/fake_daemon.cc");
  const std::string tests = TextOfFolder("tests/server/edge", ".cc");
  const auto& service = *v1::ListModelsRequest::descriptor()->file()->FindServiceByName("AdminService");
  for (int i = 0; i < service.method_count(); ++i) {
    const std::string& name = service.method(i)->name();
    EXPECT_TRUE(HasWord(commands, name)) << "no command of paramshardctl asks " << name;
    EXPECT_TRUE(HasWord(fake_daemon, name)) << "the fake daemon does not answer " << name;
    EXPECT_TRUE(HasWord(tests, name)) << "no test of the service calls " << name;
  }
}

TEST(CompletenessTest, EveryCommandIsInTheTableThePagesAndTheTests) {
  const std::string header = Text("client/ctl/commands.h");
  const std::string operations = Text("docs/operate/ctl.md");
  const std::string tests = Text("tests/client/ctl/ctl_test.cc") + Text("tests/client/ctl/tables_test.cc") +
                            Text("tests/client/ctl/hugging_face_export_test.cc");
  size_t declared = 0;
  for (size_t at = header.find("extern const"); at != header.npos; at = header.find("extern const", at + 1)) ++declared;
  EXPECT_EQ(ctl::Commands().size(), declared) << "a command of commands.h is not in the table of commands.cc";
  for (const ctl::CommandInfo* command : ctl::Commands()) {
    EXPECT_TRUE(HasWord(operations, command->name) || HasWord(Text("docs/operate/convert.md"), command->name))
        << "neither docs/operate/ctl.md nor docs/operate/convert.md names " << command->name;
    // Looks for an argument that a test gives to the program.
    const std::vector<std::string> words = absl::StrSplit(command->name, ' ');
    EXPECT_TRUE(absl::StrContains(tests, absl::StrCat("\"", words.back(), "\"")))
        << "no test of the program runs " << command->name;
  }
}

// Compares the table between `<!-- NAME: begin -->` and `<!-- NAME: end -->` of a page, which the code makes. With
// PARAMSHARD_WRITE_TABLES=1 it is written; `./dev tables` does so.
void ExpectTable(const std::string& file, const std::string& name, const std::string& table) {
  const std::string begin = absl::StrCat("<!-- ", name, ": begin -->\n");
  std::string page = Text(file);
  const size_t from = page.find(begin);
  ASSERT_NE(from, page.npos) << file << " has no " << begin;
  const size_t at = from + begin.size();
  const size_t end = page.find(absl::StrCat("<!-- ", name, ": end -->"), at);
  ASSERT_NE(end, page.npos) << file << " has no end of " << name;
  if (std::getenv("PARAMSHARD_WRITE_TABLES") != nullptr) {
    page.replace(at, end - at, table);
    std::ofstream(fs::path(PARAMSHARD_SOURCE_DIR) / file) << page;
  } else {
    EXPECT_EQ(page.substr(at, end - at), table) << file << ": the table of " << name << " is old: ./dev tables";
  }
}

template <typename Meanings>
std::string MeaningOf(const Meanings& meanings, int code) {
  for (const auto& meaning : meanings) {
    if (meaning.code == code) return absl::StrCat(" ", meaning.meaning);
  }
  return "";
}

TEST(CompletenessTest, EveryFlagAndExitCodeIsInThePage) {
  ExpectTable("docs/operate/settings.md", "flags", server::SettingsTable());
  std::string codes = "| code | `paramshardd` | `paramshardctl` |\n| --- | --- | --- |\n";
  for (int code = 0; code <= server::kExitUnsaved; ++code) {
    absl::StrAppend(&codes, "| ", code, " |", MeaningOf(server::kExitCodes, code), " |",
                    MeaningOf(ctl::kExitCodes, code), " |\n");
  }
  ExpectTable("docs/operate/settings.md", "exit codes", codes);
}

// Words that begin as names of metrics do.
std::set<std::string> MetricNamesIn(const std::string& text) {
  static const std::regex name("(paramshard|process)_[a-z_]+");
  std::set<std::string> names;
  for (auto at = std::sregex_iterator(text.begin(), text.end(), name); at != std::sregex_iterator(); ++at) {
    names.insert(at->str());
  }
  return names;
}

// The metric that a name in a query is of; a histogram has three.
const server::MetricTraits* FindMetric(absl::string_view name) {
  for (const server::MetricTraits& traits : server::kMetrics) {
    absl::string_view rest = name;
    if (!absl::ConsumePrefix(&rest, traits.name)) continue;
    const bool is_part = rest == "_bucket" || rest == "_sum" || rest == "_count";
    if (rest.empty() ? traits.type != server::MetricType::kHistogram
                     : is_part && traits.type == server::MetricType::kHistogram) {
      return &traits;
    }
  }
  return nullptr;
}

const server::MetricLabel* FindLabel(const server::MetricTraits& traits, absl::string_view name) {
  for (const server::MetricLabel& label : traits.labels) {
    if (label.name == name) return &label;
  }
  return nullptr;
}

TEST(MetricsCompletenessTest, EveryMetricIsInItsPageWithTypeUnitLabelsAndTheirValues) {
  const std::string page = Text("docs/operate/metrics.md");
  const char* const types[] = {"counter", "gauge", "histogram"};
  for (const server::MetricTraits& traits : server::kMetrics) {
    const std::string begin = absl::StrCat("\n| `", traits.name, "` | ", types[static_cast<int>(traits.type)], " | ");
    const size_t at = page.find(begin);
    ASSERT_NE(at, page.npos) << "docs/operate/metrics.md: a line expected that begins with" << begin;
    const std::string line = page.substr(at + 1, page.find('\n', at + 1) - at - 1);
    const std::vector<std::string> cells = absl::StrSplit(line, '|');  // the first one is empty
    ASSERT_GE(cells.size(), 6) << line;
    EXPECT_EQ(absl::StripAsciiWhitespace(cells[4]), traits.unit) << line;
    for (const server::MetricLabel& label : traits.labels) {
      if (label.name.empty()) continue;
      EXPECT_THAT(cells[3], testing::HasSubstr(absl::StrCat("`", label.name, "`"))) << line;
      if (label.values.size() > 16 || label.name == "code") continue;  // those of errors.md, and ranks
      for (const absl::string_view value : label.values) {
        EXPECT_THAT(line, testing::HasSubstr(absl::StrCat("`", value, "`")));
      }
    }
  }
}

TEST(MetricsCompletenessTest, WhatPagesDashboardAndAlertsNameIsThere) {
  for (const std::string& name : MetricNamesIn(Text("docs/operate/metrics.md"))) {
    const bool is_histogram = FindMetric(name + "_sum") != nullptr;
    EXPECT_TRUE(FindMetric(name) != nullptr || is_histogram) << "docs/operate/metrics.md names " << name;
  }
  for (const char* file :
       {"deploy/grafana/paramshard.json", "deploy/prometheus/alerts.yml", "deploy/prometheus/alerts_test.yml"}) {
    const std::set<std::string> names = MetricNamesIn(Text(file));
    EXPECT_FALSE(names.empty()) << file;
    for (const std::string& name : names) EXPECT_NE(FindMetric(name), nullptr) << file << " names " << name;
  }
}

// `name{label="value", label=~"one|other"}`, with quotes as they are in YAML or in JSON.
TEST(MetricsCompletenessTest, WhatDashboardAndAlertsSelectIsThere) {
  static const std::regex selector(R"re(((?:paramshard|process)_[a-z_]+)\{([^}]*)\})re");
  static const std::regex matcher(R"re(([a-z_]+)=~?\\?"([^"\\]*)\\?")re");
  const std::set<std::string> of_prometheus = {"instance", "job"};
  int selected = 0;
  for (const char* file :
       {"deploy/grafana/paramshard.json", "deploy/prometheus/alerts.yml", "deploy/prometheus/alerts_test.yml"}) {
    const std::string text = Text(file);
    for (auto at = std::sregex_iterator(text.begin(), text.end(), selector); at != std::sregex_iterator(); ++at) {
      const server::MetricTraits* const traits = FindMetric((*at)[1].str());
      ASSERT_NE(traits, nullptr) << at->str();
      const std::string inner = (*at)[2];
      for (auto of = std::sregex_iterator(inner.begin(), inner.end(), matcher); of != std::sregex_iterator(); ++of) {
        const std::string name = (*of)[1];
        if (of_prometheus.contains(name)) continue;
        const server::MetricLabel* const label = FindLabel(*traits, name);
        ASSERT_NE(label, nullptr) << file << ": " << at->str();
        ++selected;
        if (label->values.empty()) continue;
        for (const absl::string_view value : absl::StrSplit((*of)[2].str(), '|')) {
          EXPECT_EQ(std::count(label->values.begin(), label->values.end(), value), 1) << file << ": " << at->str();
        }
      }
    }
  }
  EXPECT_GT(selected, 20);
}

TEST(MetricsCompletenessTest, EveryAlertIsInThePageAndHasATest) {
  const std::string rules = Text("deploy/prometheus/alerts.yml");
  const std::string page = Text("docs/operate/metrics.md");
  const std::string tests = Text("deploy/prometheus/alerts_test.yml");
  int count = 0;
  for (const absl::string_view line : absl::StrSplit(rules, '\n')) {
    absl::string_view name = absl::StripAsciiWhitespace(line);
    if (!absl::ConsumePrefix(&name, "- alert: ")) continue;
    ++count;
    EXPECT_THAT(page, testing::HasSubstr(absl::StrCat("| `", name, "` |")));
    EXPECT_THAT(tests, testing::HasSubstr(absl::StrCat("alertname: ", name, "\n        exp_alerts:"))) << "it fires";
  }
  EXPECT_EQ(count, 13);
}

TEST(MetricsCompletenessTest, PrometheusTakesTheAlertsAndTheirTestsPass) {
  if (std::system("command -v promtool >/dev/null") != 0) GTEST_SKIP() << "promtool is not here (Debian: prometheus)";
  const std::string folder = absl::StrCat(PARAMSHARD_SOURCE_DIR, "/deploy/prometheus/");
  EXPECT_EQ(std::system(absl::StrCat("promtool check rules ", folder, "alerts.yml >&2").c_str()), 0);
  EXPECT_EQ(std::system(absl::StrCat("promtool test rules ", folder, "alerts_test.yml >&2").c_str()), 0);
}

}  // namespace
}  // namespace paramshard
