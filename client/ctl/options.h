// Command-line options that our own functions parse.
#ifndef PARAMSHARD_CLIENT_CTL_OPTIONS_H_
#define PARAMSHARD_CLIENT_CTL_OPTIONS_H_

#include <optional>
#include <string>

#include "CLI/CLI.hpp"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/ctl/command.h"
#include "kernels/formats/format_id.h"

namespace paramshard::ctl {

// Adds an option whose value `parse` reads from its text. CLI11 reports errors by exceptions, which ParseCommandLine
// catches.
template <typename Value, typename Target>
CLI::Option* AddParsedOption(CLI::App& app, const std::string& name, const std::string& type,
                             absl::StatusOr<Value> (*parse)(absl::string_view), Target& target,
                             const std::string& help) {
  const auto read = [name, parse, &target](const std::string& text) {
    const absl::StatusOr<Value> value = parse(text);
    if (!value.ok()) throw CLI::ValidationError(name, std::string(value.status().message()));
    target = *value;
  };
  return app.add_option_function<std::string>(name, read, help)->type_name(type);
}

// Adds the model argument of most commands.
void AddModelArgument(CLI::App& app, std::string& model);
// A validator of CLI11: an empty text, from an unset variable, must not mean all models.
std::string IsNotEmpty(const std::string& text);

absl::StatusOr<Output> ParseOutput(absl::string_view text);

// Options for a matrix's encoding, for commands without a daemon. Options that are left out have the default of the
// format.
class EncodingOptions {
 public:
  // Returns --format.
  CLI::Option* AddFormat(CLI::App& app);
  void AddPowerOfTwoScales(CLI::App& app);

  // Unset: none was named.
  const std::optional<Format>& format() const { return format_; }
  // Returns the encoding; its format is FP32 where none was named.
  Encoding encoding() const;

 private:
  std::optional<Format> format_;
  std::optional<ElementType> element_;
  std::optional<bool> power_of_two_scales_;
};

}  // namespace paramshard::ctl

#endif  // PARAMSHARD_CLIENT_CTL_OPTIONS_H_
