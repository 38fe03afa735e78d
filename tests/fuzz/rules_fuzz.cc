// Files of conversion rules and of names: accepted files give whole lines and encodings that files can have.

#include <string>

#include "client/ctl/conversion_rules.h"
#include "client/ctl/text_lines.h"
#include "common/weights/quantized_tensor.h"
#include "kernels/base/check.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/memory_file.h"

namespace paramshard::ctl {
namespace {

void CheckLines(const std::string& path) {
  const auto lines = ReadTextLines(path);
  if (!lines.ok()) return;
  for (const TextLine& line : *lines) {
    PARAMSHARD_CHECK(!line.key.empty() && line.key[0] != '#');
    PARAMSHARD_CHECK((line.key + line.value).find('\n') == std::string::npos);
  }
}

void Run(const std::string& input) {
  const MemoryFile file(input);
  CheckLines(file.path());
  const auto rules = ConversionRules::Read(file.path());
  if (!rules.ok()) return;
  for (const char* name : {"", "lm_head.weight", "blocks.0.norm.weight", "[a]\\", "\xff*"}) {
    const ConversionRule* const rule = rules->Find(name);
    if (rule == nullptr) continue;
    PARAMSHARD_CHECK(!rule->encoding.has_value() || weights::CheckFileEncoding(*rule->encoding).ok());
    PARAMSHARD_CHECK(!rule->place.empty());
  }
  rules->CheckAllMatch({"lm_head.weight", "blocks.0.norm.weight"}).IgnoreError();
}

}  // namespace
}  // namespace paramshard::ctl

const paramshard::FuzzTarget& paramshard::Target() {
  static const auto* const target =
      new FuzzTarget{.seeds = {"# rules\n*norm*: KEEP\nlm_head.weight: BF16\n*: MXFP8 E4M3\n",
                               "*: FP8_BLOCK_128X128 E5M2 power_of_two_scales=false\r\n\n  w : NVFP4_2D E2M1  \n",
                               "w: model.w\n-: step\n", "a:b: c: FP32", "[[:alpha:]-[a-]*\\: KEEP\n[!]a-z]?: FP16\n"},
                     .words = {": ",
                               "\n",
                               "\r",
                               "#",
                               "*",
                               "?",
                               "[",
                               "]",
                               "[!",
                               "[[:alpha:]]",
                               "\\",
                               "-",
                               " ",
                               "\t",
                               "KEEP",
                               "MXFP8",
                               "MXFP8_2D",
                               "NVFP4_2D",
                               "FP8_TENSOR_CURRENT",
                               "FP8_TENSOR_DELAYED",
                               "E5M2",
                               "E2M1",
                               "power_of_two_scales=true",
                               std::string(1, '\0'),
                               "\xff"},
                     .runs = 100'000,
                     .run = ctl::Run};
  return *target;
}
