// The command line of paramshardctl, an argument to a line: it ends with help or a message, or names a command.

#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "client/ctl/command_line.h"
#include "client/ctl/exit_codes.h"
#include "kernels/base/check.h"
#include "tests/fuzz/fuzz_target.h"

namespace paramshard::ctl {
namespace {

void Run(const std::string& input) {
  const std::vector<std::string> arguments = absl::StrSplit(input, '\n');
  std::vector<const char*> argv = {"paramshardctl"};
  for (const std::string& argument : arguments) argv.push_back(argument.c_str());
  CommandLine command_line;
  std::ostringstream out, err;
  const std::optional<int> ended = ParseCommandLine(static_cast<int>(argv.size()), argv.data(), command_line, out, err);
  if (!ended.has_value()) {
    PARAMSHARD_CHECK(command_line.info != nullptr && command_line.command != nullptr);
    PARAMSHARD_CHECK(out.str().empty() && err.str().empty());
    return;
  }
  PARAMSHARD_CHECK(*ended == kSucceeded || *ended == kUsage);
  PARAMSHARD_CHECK((*ended == kSucceeded ? out : err).str().size() > 1);
}

}  // namespace
}  // namespace paramshard::ctl

const paramshard::FuzzTarget& paramshard::Target() {
  static const auto* const target = new FuzzTarget{
      .seeds = {"models\n-o\njson\n--timeout=2m", "shards\nm\n--page-size\n17", "describe\nm\nw", "stats\nm\n--limit=5",
                "verify\nm\n--quiet", "codec\nencode\n--format=MXFP8\nin.npy\nout",
                "codec\ndecode\n--format=NVFP4_2D\n--columns=3\n--plane=row\nin\nout.npy",
                "convert\nin\n--format=MXFP8\n--planes=both\n-o\nout\n--report=json",
                "convert\nin\n--dequantize\n--dtype=F16\n-o\nout", "import\nm\npath\n--map\nnames\n--partial",
                "--help"},
      .words = {"\n",
                "=",
                "-",
                "--",
                "''",
                "\"",
                "--help",
                "--version",
                "--format",
                "--scale",
                "--scale=1e999",
                "--timeout=-1ns",
                "--page-size=99999999999999999999",
                "--columns=-1",
                "--quiet=maybe",
                "codec",
                "drain",
                "[",
                "]",
                "%%",
                "++",
                "@",
                std::string(1, '\0'),
                "\xff"},
      .runs = 2'000,
      .run = ctl::Run};
  return *target;
}
