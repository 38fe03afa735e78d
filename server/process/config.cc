#include "server/process/config.h"

#include <sys/un.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <limits>
#include <numeric>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "common/tls/identity.h"
#include "kernels/base/status_macros.h"
#include "server/device/device.h"
#include "server/process/values.h"

namespace paramshard::server {
namespace {

constexpr absl::string_view kVariablePrefix = "PARAMSHARD_";
// The longest name of a socket in socket_dir; a Unix socket's path must fit sockaddr_un.
constexpr absl::string_view kLongestSocketName = "/handoff.sock";

struct Setting {
  absl::string_view name;
  absl::string_view value;  // as --help shows it
  absl::string_view help;
  absl::string_view unset;  // what applies by default, where no value can say it
  bool is_list;
  absl::Status (*parse)(absl::string_view text, DaemonConfig& config);
  std::string (*print)(const DaemonConfig& config);
};

absl::Status ParseDevices(absl::string_view text, DaemonConfig& config) {
  std::set<std::string> names;
  config.devices.clear();
  for (absl::string_view item : absl::StrSplit(text, ',')) {
    ASSIGN_OR_RETURN(const Device device, ParseDevice(absl::StripAsciiWhitespace(item)));
    config.devices.push_back(device.Name());
    if (!names.insert(device.Name()).second) {
      return absl::InvalidArgumentError(absl::StrCat("want distinct devices, got ", device.Name(), " twice"));
    }
  }
  return absl::OkStatus();
}

// Takes no host name, which could stand for several addresses, also on other networks.
absl::Status ParseMetricsListen(absl::string_view text, DaemonConfig& config) {
  ASSIGN_OR_RETURN(std::string address, ParseAddress(text, 0));
  absl::string_view host = absl::string_view(address).substr(0, address.rfind(':'));
  if (absl::ConsumePrefix(&host, "[")) absl::ConsumeSuffix(&host, "]");
  RETURN_IF_ERROR(ParseIpAddress(host).status());
  config.metrics_listen = std::move(address);
  return absl::OkStatus();
}

absl::Status ParseSocketDir(absl::string_view text, DaemonConfig& config) {
  const size_t longest = sizeof(sockaddr_un::sun_path) - 1 - kLongestSocketName.size();
  if (text.size() > longest) {
    return absl::InvalidArgumentError(
        absl::StrCat("want a path of at most ", longest, " bytes (a Unix socket's limit), got ", text.size()));
  }
  config.socket_dir = std::string(text);
  return absl::OkStatus();
}

// Removes empty parts and ".", so that daemons whose flags spell the same folder differently compare equal. ".." stays:
// behind a symlink it leads elsewhere.
std::string PlainPath(absl::string_view path) {
  std::string plain;
  for (const absl::string_view part : absl::StrSplit(path, '/')) {
    if (!part.empty() && part != ".") absl::StrAppend(&plain, "/", part);
  }
  return plain.empty() ? "/" : plain;
}

template <auto kMember>
absl::Status ParseFolder(absl::string_view text, DaemonConfig& config) {
  if (!absl::StartsWith(text, "/")) {
    return absl::InvalidArgumentError(absl::StrCat("want an absolute path, got \"", text, "\""));
  }
  config.*kMember = PlainPath(text);
  return absl::OkStatus();
}

// Parses a number of commits, or a time.
absl::Status ParseSaveEvery(absl::string_view text, DaemonConfig& config) {
  config.save_every_commits = 0;
  config.save_every_time = absl::ZeroDuration();
  if (std::all_of(text.begin(), text.end(), absl::ascii_isdigit)) {
    ASSIGN_OR_RETURN(config.save_every_commits, ParseInteger(text, 1, std::numeric_limits<int>::max()));
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(config.save_every_time, ParseTimeout(text));
  return absl::OkStatus();
}

std::string PrintSaveEvery(const DaemonConfig& config) {
  if (config.save_every_commits > 0) return absl::StrCat(config.save_every_commits);
  return config.save_every_time > absl::ZeroDuration() ? absl::FormatDuration(config.save_every_time) : "";
}

absl::Status ParseRestore(absl::string_view text, DaemonConfig& config) {
  int64_t step = 0;
  if (text != "latest" && (!absl::SimpleAtoi(text, &step) || step < 0)) {
    return absl::InvalidArgumentError(absl::StrCat("want latest or the number of a step, got \"", text, "\""));
  }
  config.restore = std::string(text);
  return absl::OkStatus();
}

absl::Status ParseUsers(absl::string_view text, DaemonConfig& config) {
  config.allow_users.clear();
  for (absl::string_view item : absl::StrSplit(text, ',')) {
    const absl::string_view user = absl::StripAsciiWhitespace(item);
    RETURN_IF_ERROR(FindUser(user).status());
    config.allow_users.emplace_back(user);
  }
  return absl::OkStatus();
}

absl::Status ParseChoice(absl::string_view text, absl::Span<const absl::string_view> choices, std::string& value) {
  if (!std::count(choices.begin(), choices.end(), text)) {
    return absl::InvalidArgumentError(absl::StrCat("want ", absl::StrJoin(choices, "|"), ", got \"", text, "\""));
  }
  value = std::string(text);
  return absl::OkStatus();
}

absl::Status ParseRoles(absl::string_view text, DaemonConfig& config) {
  config.tls_roles.clear();
  for (const absl::string_view item : absl::StrSplit(text, ',')) {
    RETURN_IF_ERROR(tls::ParseRolePattern(item).status());
    config.tls_roles.emplace_back(item);
  }
  return absl::OkStatus();
}

// Assigns the result of `read` to a member of the configuration.
template <auto member, auto read, auto... arguments>
absl::Status ParseInto(absl::string_view text, DaemonConfig& config) {
  ASSIGN_OR_RETURN(config.*member, read(text, arguments...));
  return absl::OkStatus();
}

template <auto member>
absl::Status ParseText(absl::string_view text, DaemonConfig& config) {
  config.*member = std::string(text);
  return absl::OkStatus();
}

template <auto member>
absl::Status ParseSwitch(absl::string_view text, DaemonConfig& config) {
  std::string choice;
  RETURN_IF_ERROR(ParseChoice(text, {"on", "off"}, choice));
  config.*member = choice == "on";
  return absl::OkStatus();
}

template <auto member>
std::string PrintSwitch(const DaemonConfig& config) {
  return config.*member ? "on" : "off";
}

template <auto member>
std::string Print(const DaemonConfig& config) {
  return absl::StrCat(config.*member);
}

template <auto member>
std::string PrintList(const DaemonConfig& config) {
  return absl::StrJoin(config.*member, ",");
}

template <auto member>
std::string PrintDuration(const DaemonConfig& config) {
  return absl::FormatDuration(config.*member);
}

constexpr int kMaxInt = std::numeric_limits<int>::max();

constexpr Setting kSettings[] = {
    {"device", "cpu:I|cuda:I,...",
     "devices to serve, in rank order, all of one kind; cuda:I is the I-th GPU that the daemon sees, numbers of cpu "
     "devices are only names; repeatable",
     "", true, ParseDevices, PrintList<&DaemonConfig::devices>},
    {"socket-dir", "DIR", "directory of grpc.sock and handoff.sock; at most 94 bytes",
     "$XDG_RUNTIME_DIR/paramshard, else /tmp/paramshard-UID", false, ParseSocketDir, Print<&DaemonConfig::socket_dir>},
    {"listen", "HOST:PORT",
     "also serve gRPC on this address; port 0 picks a free port, which the log names; off loopback it requires "
     "certificates",
     "none", false, ParseInto<&DaemonConfig::listen, ParseAddress, 0>,
     [](const DaemonConfig& config) { return config.listen.value_or(""); }},
    {"node", "N", "this daemon's number in the world; node 0 coordinates", "", false,
     ParseInto<&DaemonConfig::node, ParseInteger, 0, kMaxInt>, Print<&DaemonConfig::node>},
    {"nodes", "N", "number of daemons in the world", "", false,
     ParseInto<&DaemonConfig::nodes, ParseInteger, 1, kMaxInt>, Print<&DaemonConfig::nodes>},
    {"world", "NAME", "world name; daemons with a different name cannot join", "none", false,
     ParseText<&DaemonConfig::world>, Print<&DaemonConfig::world>},
    {"cluster-address", "HOST:PORT",
     "address of node 0's cluster service; required when --nodes > 1; off loopback it requires certificates", "none",
     false, ParseInto<&DaemonConfig::cluster_address, ParseAddress, 1>, Print<&DaemonConfig::cluster_address>},
    {"tls-cert", "FILE", "this daemon's certificate (PEM); connections over TCP then require a certificate", "none",
     false, ParseText<&DaemonConfig::tls_cert>, Print<&DaemonConfig::tls_cert>},
    {"tls-key", "FILE", "private key of the certificate (PEM), not encrypted", "none", false,
     ParseText<&DaemonConfig::tls_key>, Print<&DaemonConfig::tls_key>},
    {"tls-ca", "FILE", "certificate authorities to trust (PEM)", "none", false, ParseText<&DaemonConfig::tls_ca>,
     Print<&DaemonConfig::tls_ca>},
    {"tls-role", "ROLE=PATTERN,...", "role of certificates whose URI matches the pattern; repeatable", "none", true,
     ParseRoles, PrintList<&DaemonConfig::tls_roles>},
    {"tls-deny-file", "FILE", "file of URIs, one per line, whose certificates are rejected; read again when it changes",
     "none", false, ParseText<&DaemonConfig::tls_deny_file>, Print<&DaemonConfig::tls_deny_file>},
    {"insecure", "on|off", "serve addresses off loopback without certificates: anyone may connect", "", false,
     ParseSwitch<&DaemonConfig::insecure>, PrintSwitch<&DaemonConfig::insecure>},
    {"data-address", "IP", "this machine's address on the network between the daemons", "loopback", false,
     ParseInto<&DaemonConfig::data_address, ParseIpAddress>, Print<&DaemonConfig::data_address>},
    {"trusted-data-network", "on|off",
     "confirms that the network of --data-address is private; its traffic is not encrypted", "", false,
     ParseSwitch<&DaemonConfig::trusted_data_network>, PrintSwitch<&DaemonConfig::trusted_data_network>},
    {"step-timeout", "DURATION", "how long the other ranks wait for a rank within a step; a model may set its own", "",
     false, ParseInto<&DaemonConfig::step_timeout, ParseTimeout>, PrintDuration<&DaemonConfig::step_timeout>},
    {"reader-hold", "DURATION",
     "how long a step waits for readers' snapshots, and at most 1 % of the time; 0: not at all", "", false,
     ParseInto<&DaemonConfig::reader_hold, ParseHold>, PrintDuration<&DaemonConfig::reader_hold>},
    {"mirror", "HOST:PORT",
     "be a mirror: hold the models of the training whose node 0 has this --listen address, for readers on this machine",
     "none", false, ParseInto<&DaemonConfig::mirror, ParseAddress, 1>, Print<&DaemonConfig::mirror>},
    {"mirror-activate", "auto|manual",
     "give readers each version as soon as the mirror has it, or when paramshardctl mirror activate says so", "", false,
     [](absl::string_view text, DaemonConfig& config) {
       return ParseChoice(text, {"auto", "manual"}, config.mirror_activate);
     },
     Print<&DaemonConfig::mirror_activate>},
    {"mirror-image-memory", "BYTES",
     "largest host memory for copies of planes that mirrors receive; 0: serve no mirrors", "one copy of each model",
     false, ParseInto<&DaemonConfig::mirror_image_memory, ParseByteCount>,
     [](const DaemonConfig& config) {
       return config.mirror_image_memory.has_value() ? absl::StrCat(*config.mirror_image_memory) : std::string();
     }},
    {"join-timeout", "DURATION", "how long to wait at the start for all daemons to join", "", false,
     ParseInto<&DaemonConfig::join_timeout, ParseTimeout>, PrintDuration<&DaemonConfig::join_timeout>},
    {"min-replicas", "N", "node 0: replicas continue while N of their daemons are alive; more than half of --nodes",
     "all", false, ParseInto<&DaemonConfig::min_replicas, ParseInteger, 1, kMaxInt>,
     [](const DaemonConfig& config) {
       return config.min_replicas.has_value() ? absl::StrCat(*config.min_replicas) : std::string();
     }},
    {"allow-minority", "on|off",
     "allow --min-replicas of half of --nodes or fewer; you ensure that only one node 0 runs", "", false,
     ParseSwitch<&DaemonConfig::allow_minority>, PrintSwitch<&DaemonConfig::allow_minority>},
    {"replica-grace", "DURATION", "node 0: how long to wait for a lost daemon before the others continue without it",
     "", false, ParseInto<&DaemonConfig::replica_grace, ParseTimeout>, PrintDuration<&DaemonConfig::replica_grace>},
    {"state-dir", "DIR", "node 0: folder where commit decisions survive a restart; other nodes ignore it",
     "in memory only", false, ParseFolder<&DaemonConfig::state_dir>, Print<&DaemonConfig::state_dir>},
    {"doubt-timeout", "DURATION", "how long a commit may stay in doubt while node 0 is unreachable", "", false,
     ParseInto<&DaemonConfig::doubt_timeout, ParseTimeout>, PrintDuration<&DaemonConfig::doubt_timeout>},
    {"drain-timeout", "DURATION", "how long to wait for commits in flight after SIGTERM", "", false,
     ParseInto<&DaemonConfig::drain_timeout, ParseTimeout>, PrintDuration<&DaemonConfig::drain_timeout>},
    {"allow-user", "USER,...", "users, by number or name, that may connect besides the daemon's own; repeatable",
     "none", true, ParseUsers, PrintList<&DaemonConfig::allow_users>},
    {"trust-gpu-readers", "on|off",
     "let readers of users of --allow-user map planes on GPUs, where nothing keeps them from writing", "", false,
     ParseSwitch<&DaemonConfig::trust_gpu_readers>, PrintSwitch<&DaemonConfig::trust_gpu_readers>},
    {"end-stuck-readers", "on|off",
     "kill readers of the daemon's user that still map weights 5 s after a deletion or a restart", "", false,
     ParseSwitch<&DaemonConfig::end_stuck_readers>, PrintSwitch<&DaemonConfig::end_stuck_readers>},
    {"memory-limit", "BYTES", "reject models beyond this total; 0: beyond the machine's available memory", "", false,
     ParseInto<&DaemonConfig::memory_limit_bytes, ParseByteCount>, Print<&DaemonConfig::memory_limit_bytes>},
    {"save-dir", "DIR", "folder of checkpoints; the same for all daemons of a world", "none", false,
     ParseFolder<&DaemonConfig::save_dir>, Print<&DaemonConfig::save_dir>},
    {"save-every", "N|DURATION",
     "save models every N commits, or at the first commit after DURATION; of several daemons node 0's applies", "never",
     false, ParseSaveEvery, PrintSaveEvery},
    {"save-keep", "K", "number of newest checkpoints to retain for each model", "", false,
     ParseInto<&DaemonConfig::save_keep, ParseInteger, 1, kMaxInt>, Print<&DaemonConfig::save_keep>},
    {"save-keep-every", "M", "also retain checkpoints whose step is a multiple of M; 0: none", "", false,
     ParseInto<&DaemonConfig::save_keep_every, ParseInteger, 0, kMaxInt>, Print<&DaemonConfig::save_keep_every>},
    {"save-on-drain", "on|off", "save models with unsaved commits after SIGTERM", "", false,
     ParseSwitch<&DaemonConfig::save_on_drain>, PrintSwitch<&DaemonConfig::save_on_drain>},
    {"save-timeout", "DURATION", "how long a save may take; after SIGTERM, all saves together", "", false,
     ParseInto<&DaemonConfig::save_timeout, ParseTimeout>, PrintDuration<&DaemonConfig::save_timeout>},
    {"restore", "latest|STEP",
     "start created models from this checkpoint in --save-dir; with latest and no checkpoint, from initial values",
     "none", false, ParseRestore, Print<&DaemonConfig::restore>},
    {"restore-timeout", "DURATION", "how long a restore of several daemons may take, including waits for each other",
     "", false, ParseInto<&DaemonConfig::restore_timeout, ParseTimeout>, PrintDuration<&DaemonConfig::restore_timeout>},
    {"local-engine", "direct|mesh",
     "transfers inside this daemon: direct copies, or Gloo or NCCL as between daemons; the results are bitwise equal",
     "", false,
     [](absl::string_view text, DaemonConfig& config) {
       return ParseChoice(text, {"direct", "mesh"}, config.local_engine);
     },
     Print<&DaemonConfig::local_engine>},
    {"nccl-library", "PATH", "NCCL 2.24 or newer, for GPUs of several daemons and for --local-engine=mesh on GPUs",
     "the system's libnccl.so.2", false, ParseText<&DaemonConfig::nccl_library>, Print<&DaemonConfig::nccl_library>},
    {"nccl-psk-file", "FILE",
     "key with which NCCL encrypts its TCP connections; requires NCCL 2.32 or newer, disables other transports", "none",
     false, ParseText<&DaemonConfig::nccl_psk_file>, Print<&DaemonConfig::nccl_psk_file>},
    {"metrics-listen", "IP:PORT",
     "serve metrics over HTTP, without authentication; port 0 picks a free port, which the log names", "none", false,
     ParseMetricsListen, Print<&DaemonConfig::metrics_listen>},
    {"keeper", "on|off", "run a process that restarts the server when it dies, and keeps its models", "", false,
     ParseSwitch<&DaemonConfig::keeper>, PrintSwitch<&DaemonConfig::keeper>},
    {"log-format", "text|json", "format of log lines", "", false,
     [](absl::string_view text, DaemonConfig& config) {
       return ParseChoice(text, {"text", "json"}, config.log_format);
     },
     Print<&DaemonConfig::log_format>},
    {"log-level", "LEVEL", "least severe level to log: debug, info, warning or error", "", false,
     [](absl::string_view text, DaemonConfig& config) {
       return ParseChoice(text, {"debug", "info", "warning", "error"}, config.log_level);
     },
     Print<&DaemonConfig::log_level>},
};

struct ActionFlag {
  absl::string_view name;
  absl::string_view help;
  ParsedArguments::Action action;
};

constexpr ActionFlag kActions[] = {
    {"help", "print this text and exit", ParsedArguments::Action::kHelp},
    {"version", "print the version and exit", ParsedArguments::Action::kVersion},
    {"print-config", "print every setting with its source and exit", ParsedArguments::Action::kPrintConfig},
};

// The command line as text. Values of a repeated list are joined; of other repeated flags the last one applies.
struct Flags {
  ParsedArguments::Action action = ParsedArguments::Action::kServe;
  std::map<absl::string_view, std::string> values;
};

template <typename Named>
std::string FlagOf(const Named& named) {
  return absl::StrCat("--", named.name);
}

std::string VariableName(const Setting& setting) {
  return absl::StrCat(kVariablePrefix, absl::AsciiStrToUpper(absl::StrReplaceAll(setting.name, {{"-", "_"}})));
}

template <typename Named, size_t count>
const Named* FindByName(const Named (&table)[count], absl::string_view name) {
  const auto* found = std::find_if(table, table + count, [&](const Named& named) { return named.name == name; });
  return found == table + count ? nullptr : found;
}

// Returns the Levenshtein distance: insertions, deletions and replacements of one character.
size_t EditDistance(absl::string_view a, absl::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i + 1);
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, diagonal + 1});
    }
  }
  return row.back();
}

absl::string_view NearestFlag(absl::string_view name) {
  std::vector<absl::string_view> names;
  for (const Setting& setting : kSettings) names.push_back(setting.name);
  for (const ActionFlag& action : kActions) names.push_back(action.name);
  return *std::min_element(names.begin(), names.end(), [&](absl::string_view a, absl::string_view b) {
    return EditDistance(a, name) < EditDistance(b, name);
  });
}

// Describes an argument that CLI11 knows no flag for.
absl::Status UnknownArgument(absl::string_view argument) {
  absl::string_view name = argument;
  if (!absl::ConsumePrefix(&name, "--")) {
    return absl::InvalidArgumentError(absl::StrCat("argument ", argument, ": want a flag --name=value"));
  }
  name = name.substr(0, name.find('='));
  return absl::InvalidArgumentError(absl::StrCat("--", name, ": unknown flag; the nearest is --", NearestFlag(name)));
}

absl::Status ReadSetting(const CLI::App& app, const Setting& setting, Flags& flags) {
  const std::vector<std::string> given = app.get_option(FlagOf(setting))->results();
  if (given.empty()) return absl::OkStatus();
  if (std::find(given.begin(), given.end(), "") != given.end()) {
    return absl::InvalidArgumentError(absl::StrCat(FlagOf(setting), ": a value is required"));
  }
  flags.values[setting.name] = setting.is_list ? absl::StrJoin(given, ",") : given.back();
  return absl::OkStatus();
}

absl::Status ReadAction(const CLI::App& app, const ActionFlag& action, Flags& flags) {
  const CLI::Option* const option = app.get_option(FlagOf(action));
  if (option->count() == 0) return absl::OkStatus();
  for (const std::string& value : option->results()) {
    if (!value.empty()) {
      return absl::InvalidArgumentError(absl::StrCat(FlagOf(action), ": takes no value, got ", value));
    }
  }
  // The first of several actions on the command line applies.
  const std::vector<CLI::Option*>& order = app.parse_order();
  const auto is_action = [](const CLI::Option* given) { return FindByName(kActions, given->get_single_name()); };
  if (*std::find_if(order.begin(), order.end(), is_action) == option) flags.action = action.action;
  return absl::OkStatus();
}

// Parses the command line with CLI11: every flag may be given any number of times, with or without a value.
absl::StatusOr<Flags> ReadFlags(int argc, const char* const* argv) {
  CLI::App app;
  app.set_help_flag();
  app.allow_extras();
  for (const Setting& setting : kSettings) app.add_option(FlagOf(setting))->expected(0, 1)->take_all();
  for (const ActionFlag& action : kActions) app.add_option(FlagOf(action))->expected(0, 1)->take_all();
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return absl::InvalidArgumentError(error.what());
  }
  for (const std::string& argument : app.remaining()) return UnknownArgument(argument);
  Flags flags;
  for (const Setting& setting : kSettings) RETURN_IF_ERROR(ReadSetting(app, setting, flags));
  for (const ActionFlag& action : kActions) RETURN_IF_ERROR(ReadAction(app, action, flags));
  return flags;
}

std::string DefaultSocketDir(const Environment& environment) {
  const auto runtime_dir = environment.find("XDG_RUNTIME_DIR");
  if (runtime_dir != environment.end() && !runtime_dir->second.empty()) {
    return absl::StrCat(runtime_dir->second, "/paramshard");
  }
  return absl::StrCat("/tmp/paramshard-", getuid());
}

absl::Status Apply(const Setting& setting, const Flags& flags, const Environment& environment,
                   ParsedArguments& arguments) {
  Source& source = arguments.sources[std::string(setting.name)];
  std::string given_as = FlagOf(setting);
  std::string text;
  if (const auto flag = flags.values.find(setting.name); flag != flags.values.end()) {
    source = Source::kFlag;
    text = flag->second;
  } else if (const auto variable = environment.find(VariableName(setting));
             variable != environment.end() && !variable->second.empty()) {
    source = Source::kEnvironment;
    given_as = variable->first;
    text = variable->second;
  } else {
    source = Source::kDefault;
    return absl::OkStatus();
  }
  const absl::Status status = setting.parse(text, arguments.config);
  if (status.ok()) return status;
  // INVALID_ARGUMENT for every cause: only another value helps.
  return absl::InvalidArgumentError(absl::StrCat(given_as, ": ", status.message()));
}

// Requires certificates off loopback, where traffic could be read and forged.
absl::Status CheckIsProtected(absl::string_view flag, absl::string_view address, const DaemonConfig& config) {
  if (address.empty() || IsLoopbackAddress(address) || !config.tls_cert.empty() || config.insecure) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat(flag, ": --tls-cert, --tls-key and --tls-ca are required with an address off loopback, got ",
                   address, " alone; --insecure=on serves it without authentication"));
}

absl::Status CheckTransport(const DaemonConfig& config) {
  const tls::Files files = TlsFilesOf(config);
  if (files.any() != files.all()) {
    return absl::InvalidArgumentError("--tls-cert: want all of --tls-cert, --tls-key and --tls-ca, or none");
  }
  if (!config.tls_roles.empty() && !files.any()) {
    return absl::InvalidArgumentError("--tls-role: --tls-cert, --tls-key and --tls-ca are required");
  }
  if (!config.tls_deny_file.empty() && !files.any()) {
    return absl::InvalidArgumentError("--tls-deny-file: --tls-cert, --tls-key and --tls-ca are required");
  }
  RETURN_IF_ERROR(CheckIsProtected("--listen", config.listen.value_or(""), config));
  if (config.nodes == 1 || config.cluster_address.empty()) return absl::OkStatus();
  RETURN_IF_ERROR(CheckIsProtected("--cluster-address", config.cluster_address, config));
  if (config.data_address.empty() && !IsLoopbackAddress(config.cluster_address)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--data-address: this machine's address on the network of the daemons is required with "
                     "--cluster-address ",
                     config.cluster_address));
  }
  if (!config.data_address.empty() && !IsLoopbackHost(config.data_address) && !config.trusted_data_network) {
    return absl::InvalidArgumentError(
        absl::StrCat("--trusted-data-network: on is required with --data-address ", config.data_address,
                     ": weights and gradients between daemons are neither encrypted nor authenticated, so that network "
                     "must be private"));
  }
  return absl::OkStatus();
}

// Requires a majority: otherwise each half of the daemons could continue with a node 0 of its own.
absl::Status CheckReplicas(const DaemonConfig& config) {
  if (!config.min_replicas.has_value()) return absl::OkStatus();
  if (*config.min_replicas > config.nodes) {
    return absl::InvalidArgumentError(
        absl::StrCat("--min-replicas: want at most --nodes (", config.nodes, "), got ", *config.min_replicas));
  }
  if (2 * *config.min_replicas > config.nodes || config.allow_minority) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "--min-replicas: want more than half of --nodes (", config.nodes, "), got ", *config.min_replicas,
      ": two node 0s could each continue with a half; with --allow-minority=on you ensure that only one runs"));
}

absl::Status CheckMirror(const DaemonConfig& config) {
  if (config.mirror.empty()) {
    if (config.mirror_activate == "auto") return absl::OkStatus();
    return absl::InvalidArgumentError("--mirror-activate: --mirror, the address of the training, is required");
  }
  if (config.nodes > 1) {
    return absl::InvalidArgumentError("--mirror: a mirror is in no world; want no --nodes with it");
  }
  if (!config.save_dir.empty()) {
    return absl::InvalidArgumentError("--mirror: a mirror has no state to save; want no --save-dir with it");
  }
  if (IsLoopbackAddress(config.mirror) || !config.tls_cert.empty() || config.insecure) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--mirror: --tls-cert, --tls-key and --tls-ca are required with an address off loopback, got ",
                   config.mirror, " alone; --insecure=on trusts any daemon there"));
}

absl::Status CheckTogether(const DaemonConfig& config) {
  RETURN_IF_ERROR(CheckTransport(config));
  if (config.node >= config.nodes) {
    return absl::InvalidArgumentError(
        absl::StrCat("--node: want a number below --nodes (", config.nodes, "), got ", config.node));
  }
  if (config.nodes > 1 && config.cluster_address.empty()) {
    return absl::InvalidArgumentError("--cluster-address: the address of node 0 is required when --nodes > 1");
  }
  RETURN_IF_ERROR(CheckReplicas(config));
  RETURN_IF_ERROR(CheckMirror(config));
  const bool saves = config.save_every_commits > 0 || config.save_every_time > absl::ZeroDuration();
  if (saves && config.save_dir.empty()) {
    return absl::InvalidArgumentError("--save-every: --save-dir, the folder of checkpoints, is required");
  }
  if (!config.restore.empty() && config.save_dir.empty()) {
    return absl::InvalidArgumentError("--save-dir: the folder of checkpoints is required with --restore");
  }
  return absl::OkStatus();
}

// Tests' own variables, which the daemons that they start inherit.
constexpr absl::string_view kTestVariablePrefix = "PARAMSHARD_TEST_";

std::vector<std::string> UnknownVariables(const Environment& environment) {
  std::set<std::string> known;
  for (const Setting& setting : kSettings) known.insert(VariableName(setting));
  std::vector<std::string> unknown;
  for (const auto& [name, value] : environment) {
    if (!absl::StartsWith(name, kVariablePrefix) || absl::StartsWith(name, kTestVariablePrefix)) continue;
    if (known.count(name) == 0) unknown.push_back(name);
  }
  return unknown;
}

// Returns the default as people read it: "1m", "none".
std::string DefaultOf(const Setting& setting) {
  return setting.unset.empty() ? setting.print(DaemonConfig()) : std::string(setting.unset);
}

absl::string_view SourceName(Source source) {
  switch (source) {
    case Source::kFlag:
      return "flag";
    case Source::kEnvironment:
      return "environment";
    case Source::kDefault:
      return "default";
  }
  return "unknown";
}

}  // namespace

tls::Files TlsFilesOf(const DaemonConfig& config) {
  return {.cert = config.tls_cert, .key = config.tls_key, .ca = config.tls_ca};
}

Environment ProcessEnvironment() {
  Environment environment;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::pair<std::string, std::string> variable = absl::StrSplit(*entry, absl::MaxSplits('=', 1));
    environment.insert(variable);
  }
  return environment;
}

absl::StatusOr<ParsedArguments> ParseArguments(int argc, const char* const* argv, const Environment& environment) {
  ASSIGN_OR_RETURN(const Flags flags, ReadFlags(argc, argv));
  ParsedArguments arguments;
  arguments.action = flags.action;
  arguments.config.socket_dir = DefaultSocketDir(environment);
  if (flags.action == ParsedArguments::Action::kHelp || flags.action == ParsedArguments::Action::kVersion) {
    return arguments;
  }
  for (const Setting& setting : kSettings) RETURN_IF_ERROR(Apply(setting, flags, environment, arguments));
  RETURN_IF_ERROR(CheckTogether(arguments.config));
  arguments.unknown_variables = UnknownVariables(environment);
  return arguments;
}

std::string HelpText() {
  std::string text =
      "usage: paramshardd [--name=value ...]\n\n"
      "Serves the shards of this machine's devices. Each flag can also be set as a variable: PARAMSHARD_ "
      "and\n"
      "its name in upper case with _ for -. A flag overrides the variable, the variable the default.\n\n";
  for (const Setting& setting : kSettings) {
    absl::StrAppendFormat(&text, "  %-28s  %s (default: %s)\n", absl::StrCat(FlagOf(setting), "=", setting.value),
                          setting.help, DefaultOf(setting));
  }
  text += "\n";
  for (const ActionFlag& action : kActions) {
    absl::StrAppendFormat(&text, "  %-28s  %s\n", FlagOf(action), action.help);
  }
  return text;
}

std::string SettingsTable() {
  std::string text = "| flag | default | meaning |\n| --- | --- | --- |\n";
  for (const Setting& setting : kSettings) {
    absl::StrAppend(&text, "| `", FlagOf(setting), "=", absl::StrReplaceAll(setting.value, {{"|", "\\|"}}), "` | ",
                    DefaultOf(setting), " | ", setting.help, " |\n");
  }
  for (const ActionFlag& action : kActions)
    absl::StrAppend(&text, "| `", FlagOf(action), "` | | ", action.help, " |\n");
  return text;
}

std::string ConfigText(const ParsedArguments& arguments) {
  std::string text;
  for (const Setting& setting : kSettings) {
    const auto source = arguments.sources.find(std::string(setting.name));
    absl::StrAppend(&text, setting.name, " = ", setting.print(arguments.config), "  # ",
                    SourceName(source == arguments.sources.end() ? Source::kDefault : source->second), "\n");
  }
  return text;
}

}  // namespace paramshard::server
