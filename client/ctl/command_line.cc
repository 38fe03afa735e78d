#include "client/ctl/command_line.h"

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "client/ctl/commands.h"
#include "client/ctl/exit_codes.h"
#include "client/ctl/options.h"
#include "client/internal/remote_channel.h"

namespace paramshard::ctl {
namespace {

absl::StatusOr<absl::Duration> ParseTimeout(absl::string_view text) {
  absl::Duration timeout;
  if (absl::ParseDuration(text, &timeout) && timeout > absl::ZeroDuration()) return timeout;
  return absl::InvalidArgumentError(absl::StrCat("want a positive duration such as 500ms, 10s or 2m, got ", text));
}

// CLI11 reports errors by exceptions.
void AddRoles(const std::vector<std::string>& texts, std::vector<tls::RolePattern>& roles) {
  for (const std::string& text : texts) {
    const absl::StatusOr<tls::RolePattern> role = tls::ParseRolePattern(text);
    if (!role.ok()) throw CLI::ValidationError("--tls-role", std::string(role.status().message()));
    roles.push_back(*role);
  }
}

// Parser of the command line. CLI11 reports errors by exceptions; ParseCommandLine catches them.
class Reader {
 public:
  explicit Reader(CommandLine& command_line);

  void Read(int argc, const char* const* argv);
  int Explain(const CLI::ParseError& error, std::ostream& out, std::ostream& err) {
    return app_.exit(error, out, err) == 0 ? kSucceeded : kUsage;
  }

 private:
  static void RequireCommand(const CLI::App& parent);
  void AddGlobalOptions();
  // `heading`: the section of the help.
  void AddCommand(const CommandInfo& info, const char* heading);
  // Returns the app of "codec" in "codec encode".
  CLI::App& Group(const std::string& name, const char* heading);

  CommandLine& command_line_;
  CLI::App app_{"Inspects paramshard daemons, of this machine or others; converts checkpoints and imports them.",
                "paramshardctl"};
  std::map<std::string, CLI::App*> groups_;
  std::vector<std::unique_ptr<Command>> commands_;
};

Reader::Reader(CommandLine& command_line) : command_line_(command_line) {
  // -o and the like may follow the command.
  app_.fallthrough();
  app_.set_version_flag("--version", absl::StrCat("paramshardctl ", PARAMSHARD_VERSION));
  app_.failure_message([](const CLI::App*, const CLI::Error& error) {
    return absl::StrCat("paramshardctl: ", error.what(), "\nRun paramshardctl --help for usage.\n");
  });
  app_.require_subcommand(0, 1);
  AddGlobalOptions();
  for (const CommandSection& section : CommandSections()) {
    for (const CommandInfo* const info : section.commands) AddCommand(*info, section.heading);
  }
}

void Reader::Read(int argc, const char* const* argv) {
  app_.parse(argc, argv);
  RequireCommand(app_);
  const absl::Status status = command_line_.command->Check();
  if (!status.ok()) throw CLI::ValidationError(std::string(status.message()));
}

// CLI11's own check would come before the check for unknown commands, and hide it.
void Reader::RequireCommand(const CLI::App& parent) {
  if (parent.get_subcommands({}).empty()) return;
  const std::vector<CLI::App*> given = parent.get_subcommands();
  if (given.empty()) throw CLI::RequiredError("A command of " + parent.get_name());
  RequireCommand(*given.front());
}

void Reader::AddGlobalOptions() {
  GlobalOptions& options = command_line_.options;
  CLI::Option* const socket_dir = app_.add_option(
      "--socket-dir", options.socket_dir,
      "where the daemon's sockets are (default: $PARAMSHARD_SOCKET_DIR, else $XDG_RUNTIME_DIR/paramshard, "
      "else /tmp/paramshard-<uid>)");
  app_.add_option("--address", options.addresses,
                  "HOST:PORT,...: ask these daemons (--listen) instead of this machine's")
      ->delimiter(',')
      ->check([](const std::string& text) { return std::string(internal::CheckRemoteAddress(text).message()); })
      ->excludes(socket_dir)
      ->envname("PARAMSHARD_ADDRESS");
  app_.add_option("--tls-cert", options.tls_files.cert, "for --address: a certificate in PEM")
      ->envname("PARAMSHARD_TLS_CERT");
  app_.add_option("--tls-key", options.tls_files.key, "its key")->envname("PARAMSHARD_TLS_KEY");
  app_.add_option("--tls-ca", options.tls_files.ca, "the trusted certificate authorities")
      ->envname("PARAMSHARD_TLS_CA");
  app_.add_option_function<std::vector<std::string>>(
          "--tls-role", [&options](const std::vector<std::string>& texts) { AddRoles(texts, options.tls_roles); },
          "ROLE=PATTERN,...: the daemons' own --tls-role")
      ->delimiter(',')
      ->envname("PARAMSHARD_TLS_ROLE");
  AddParsedOption(app_, "-o,--output", "FORMAT", ParseOutput, options.output, "table or json (default: table)");
  AddParsedOption(
      app_, "--timeout", "DURATION", ParseTimeout, options.timeout,
      "how long to wait for an answer (default: 30s; import, restore, stats and verify 10m; to connect to an "
      "--address 5s)");
}

CLI::App& Reader::Group(const std::string& name, const char* heading) {
  CLI::App*& group = groups_[name];
  if (group == nullptr) {
    group = app_.add_subcommand(name, GroupHelp(name))->group(heading);
    group->require_subcommand(0, 1);
  }
  return *group;
}

void Reader::AddCommand(const CommandInfo& info, const char* heading) {
  const std::vector<std::string> words = absl::StrSplit(info.name, ' ');
  const bool is_grouped = words.size() > 1;
  CLI::App& parent = is_grouped ? Group(words.front(), heading) : app_;
  CLI::App* const added = parent.add_subcommand(words.back(), info.help);
  added->group(is_grouped ? "Subcommands" : heading);
  std::unique_ptr<Command>& command = commands_.emplace_back(info.create());
  command->AddOptions(*added);
  added->callback([this, &info, index = commands_.size() - 1] {
    command_line_.info = &info;
    command_line_.command = std::move(commands_[index]);
  });
}

}  // namespace

std::optional<int> ParseCommandLine(int argc, const char* const* argv, CommandLine& command_line, std::ostream& out,
                                    std::ostream& err) {
  Reader reader(command_line);
  try {
    reader.Read(argc, argv);
    return std::nullopt;
  } catch (const CLI::ParseError& error) {
    return reader.Explain(error, out, err);
  }
}

}  // namespace paramshard::ctl
