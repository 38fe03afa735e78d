#include "server/config/config.h"

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
#include "kernels/base/status_macros.h"
#include "proto/tls/identity.h"
#include "server/config/values.h"
#include "server/device/device.h"

namespace paramshard::server {
namespace {

constexpr absl::string_view kVariablePrefix = "PARAMSHARD_";
// The longest name of a socket in socket_dir; a Unix socket's path must fit sockaddr_un.
constexpr absl::string_view kLongestSocketName = "/handoff.sock";

struct Setting {
  absl::string_view name;
  absl::string_view value;  // as --help shows it
  absl::string_view help;
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
      return absl::InvalidArgumentError(absl::StrCat("distinct devices expected, got ", device.Name(), " twice"));
    }
  }
  return absl::OkStatus();
}

// A name could be of several addresses, on other networks.
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
        absl::StrCat("a path of at most ", longest, " bytes expected (a Unix socket's limit), got ", text.size()));
  }
  config.socket_dir = std::string(text);
  return absl::OkStatus();
}

// Without what names no other folder, so that daemons which write the same one differently have the same text of it.
// ".." stays: behind a symlink it leads elsewhere.
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
    return absl::InvalidArgumentError(absl::StrCat("an absolute path expected, got \"", text, "\""));
  }
  config.*kMember = PlainPath(text);
  return absl::OkStatus();
}

// A number of commits, or a time.
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
    return absl::InvalidArgumentError(absl::StrCat("latest or the number of a step expected, got \"", text, "\""));
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
    return absl::InvalidArgumentError(absl::StrCat(absl::StrJoin(choices, ", "), " expected, got \"", text, "\""));
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

// A parser that assigns what `read` returns to a member of the configuration.
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
    {"device", "cpu:I|cuda:I,...", "devices to serve, in the order of ranks; repeatable", true, ParseDevices,
     PrintList<&DaemonConfig::devices>},
    {"socket-dir", "DIR", "where grpc.sock and handoff.sock are put", false, ParseSocketDir,
     Print<&DaemonConfig::socket_dir>},
    {"listen", "HOST:PORT", "serve gRPC on this address too; port 0 takes a free one", false,
     ParseInto<&DaemonConfig::listen, ParseAddress, 0>,
     [](const DaemonConfig& config) { return config.listen.value_or(""); }},
    {"node", "N", "this daemon's number among the daemons of the world; 0 coordinates", false,
     ParseInto<&DaemonConfig::node, ParseInteger, 0, kMaxInt>, Print<&DaemonConfig::node>},
    {"nodes", "N", "how many daemons the world has", false, ParseInto<&DaemonConfig::nodes, ParseInteger, 1, kMaxInt>,
     Print<&DaemonConfig::nodes>},
    {"world", "NAME", "name of the world; a daemon of another one is refused; default: none", false,
     ParseText<&DaemonConfig::world>, Print<&DaemonConfig::world>},
    {"cluster-address", "HOST:PORT", "address of node 0's cluster service; needed when nodes > 1", false,
     ParseInto<&DaemonConfig::cluster_address, ParseAddress, 1>, Print<&DaemonConfig::cluster_address>},
    {"tls-cert", "FILE", "this daemon's certificate in PEM; with it, connections over TCP need certificates", false,
     ParseText<&DaemonConfig::tls_cert>, Print<&DaemonConfig::tls_cert>},
    {"tls-key", "FILE", "the certificate's key in PEM", false, ParseText<&DaemonConfig::tls_key>,
     Print<&DaemonConfig::tls_key>},
    {"tls-ca", "FILE", "in PEM: the authorities whose certificates are taken", false, ParseText<&DaemonConfig::tls_ca>,
     Print<&DaemonConfig::tls_ca>},
    {"tls-role", "ROLE=PATTERN,...", "the role of certificates whose URI has the pattern; repeatable", true, ParseRoles,
     PrintList<&DaemonConfig::tls_roles>},
    {"tls-deny-file", "FILE", "URIs of certificates that are let in no more, a line each; read again as it changes",
     false, ParseText<&DaemonConfig::tls_deny_file>, Print<&DaemonConfig::tls_deny_file>},
    {"insecure", "on|off", "serve addresses off loopback without certificates: whoever reaches them is let in", false,
     ParseSwitch<&DaemonConfig::insecure>, PrintSwitch<&DaemonConfig::insecure>},
    {"data-address", "IP", "this machine's address on the network over which daemons exchange bytes", false,
     ParseInto<&DaemonConfig::data_address, ParseIpAddress>, Print<&DaemonConfig::data_address>},
    {"trusted-data-network", "on|off", "says that nobody else is on that network: what goes over it is not encrypted",
     false, ParseSwitch<&DaemonConfig::trusted_data_network>, PrintSwitch<&DaemonConfig::trusted_data_network>},
    {"step-timeout", "DURATION", "how long a rank may keep the others waiting in a step", false,
     ParseInto<&DaemonConfig::step_timeout, ParseTimeout>, PrintDuration<&DaemonConfig::step_timeout>},
    {"join-timeout", "DURATION", "how long to wait until all daemons have joined", false,
     ParseInto<&DaemonConfig::join_timeout, ParseTimeout>, PrintDuration<&DaemonConfig::join_timeout>},
    {"min-replicas", "N", "at node 0: replicas go on while so many of their daemons are there; default: all", false,
     ParseInto<&DaemonConfig::min_replicas, ParseInteger, 1, kMaxInt>,
     [](const DaemonConfig& config) {
       return config.min_replicas.has_value() ? absl::StrCat(*config.min_replicas) : std::string();
     }},
    {"allow-minority", "on|off", "--min-replicas may be half of --nodes or fewer: see to it that one node 0 runs",
     false, ParseSwitch<&DaemonConfig::allow_minority>, PrintSwitch<&DaemonConfig::allow_minority>},
    {"replica-grace", "DURATION", "how long a lost daemon is waited for before the others go on without it", false,
     ParseInto<&DaemonConfig::replica_grace, ParseTimeout>, PrintDuration<&DaemonConfig::replica_grace>},
    {"state-dir", "DIR", "at node 0: where it keeps what it tells others of commits; default: in memory alone", false,
     ParseFolder<&DaemonConfig::state_dir>, Print<&DaemonConfig::state_dir>},
    {"doubt-timeout", "DURATION", "how long a commit may stay in doubt while node 0 does not answer", false,
     ParseInto<&DaemonConfig::doubt_timeout, ParseTimeout>, PrintDuration<&DaemonConfig::doubt_timeout>},
    {"drain-timeout", "DURATION", "how long commits in flight may take after SIGTERM", false,
     ParseInto<&DaemonConfig::drain_timeout, ParseTimeout>, PrintDuration<&DaemonConfig::drain_timeout>},
    {"allow-user", "USER,...", "users who may connect besides the daemon's own, by number or name; repeatable", true,
     ParseUsers, PrintList<&DaemonConfig::allow_users>},
    {"memory-limit", "BYTES", "refuse models beyond this; 0: beyond the machine's available memory", false,
     ParseInto<&DaemonConfig::memory_limit_bytes, ParseByteCount>, Print<&DaemonConfig::memory_limit_bytes>},
    {"save-dir", "DIR", "where checkpoints lie; default: nowhere", false, ParseFolder<&DaemonConfig::save_dir>,
     Print<&DaemonConfig::save_dir>},
    {"save-every", "N|DURATION", "save models after every N commits, or every DURATION", false, ParseSaveEvery,
     PrintSaveEvery},
    {"save-keep", "K", "how many of a model's newest checkpoints stay", false,
     ParseInto<&DaemonConfig::save_keep, ParseInteger, 1, kMaxInt>, Print<&DaemonConfig::save_keep>},
    {"save-keep-every", "M", "checkpoints whose step is a multiple of M stay too; 0: none", false,
     ParseInto<&DaemonConfig::save_keep_every, ParseInteger, 0, kMaxInt>, Print<&DaemonConfig::save_keep_every>},
    {"save-on-drain", "on|off", "save models that have commits which are not saved, after SIGTERM", false,
     ParseSwitch<&DaemonConfig::save_on_drain>, PrintSwitch<&DaemonConfig::save_on_drain>},
    {"save-timeout", "DURATION", "how long a save may take", false,
     ParseInto<&DaemonConfig::save_timeout, ParseTimeout>, PrintDuration<&DaemonConfig::save_timeout>},
    {"restore", "latest|STEP", "models that are created begin with this checkpoint of theirs in --save-dir", false,
     ParseRestore, Print<&DaemonConfig::restore>},
    {"restore-timeout", "DURATION", "how long a restore of several daemons may take, waits for each other included",
     false, ParseInto<&DaemonConfig::restore_timeout, ParseTimeout>, PrintDuration<&DaemonConfig::restore_timeout>},
    {"local-engine", "direct|mesh", "inside this daemon bytes are copied, or move as between daemons, by Gloo or NCCL",
     false,
     [](absl::string_view text, DaemonConfig& config) {
       return ParseChoice(text, {"direct", "mesh"}, config.local_engine);
     },
     Print<&DaemonConfig::local_engine>},
    {"nccl-library", "PATH", "NCCL for GPUs of several daemons; default: libnccl.so.2 where the system has it", false,
     ParseText<&DaemonConfig::nccl_library>, Print<&DaemonConfig::nccl_library>},
    {"nccl-psk-file", "FILE", "NCCL encrypts its connections over TCP with the key in it, and uses no others", false,
     ParseText<&DaemonConfig::nccl_psk_file>, Print<&DaemonConfig::nccl_psk_file>},
    {"metrics-listen", "IP:PORT", "serve metrics over plain HTTP, to whoever reaches this address; port 0: a free one",
     false, ParseMetricsListen, Print<&DaemonConfig::metrics_listen>},
    {"keeper", "on|off", "a process beside starts the server again when it dies, and upgrades it", false,
     ParseSwitch<&DaemonConfig::keeper>, PrintSwitch<&DaemonConfig::keeper>},
    {"log-format", "text|json", "how lines of the log are written", false,
     [](absl::string_view text, DaemonConfig& config) {
       return ParseChoice(text, {"text", "json"}, config.log_format);
     },
     Print<&DaemonConfig::log_format>},
    {"log-level", "LEVEL", "debug, info, warning or error", false,
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

// What was given on the command line, as text. Values of a repeated list are joined; else the last one holds.
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

// Levenshtein's distance: insertions, deletions and replacements of one character.
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

// What CLI11 has no flag for.
absl::Status UnknownArgument(absl::string_view argument) {
  absl::string_view name = argument;
  if (!absl::ConsumePrefix(&name, "--")) {
    return absl::InvalidArgumentError(absl::StrCat("argument ", argument, ": a flag --name=value expected"));
  }
  name = name.substr(0, name.find('='));
  return absl::InvalidArgumentError(absl::StrCat("--", name, ": unknown flag; the nearest is --", NearestFlag(name)));
}

absl::Status ReadSetting(const CLI::App& app, const Setting& setting, Flags& flags) {
  const std::vector<std::string> given = app.get_option(FlagOf(setting))->results();
  if (given.empty()) return absl::OkStatus();
  if (std::find(given.begin(), given.end(), "") != given.end()) {
    return absl::InvalidArgumentError(absl::StrCat(FlagOf(setting), ": a value expected, got none"));
  }
  flags.values[setting.name] = setting.is_list ? absl::StrJoin(given, ",") : given.back();
  return absl::OkStatus();
}

absl::Status ReadAction(const CLI::App& app, const ActionFlag& action, Flags& flags) {
  const CLI::Option* const option = app.get_option(FlagOf(action));
  if (option->count() == 0) return absl::OkStatus();
  for (const std::string& value : option->results()) {
    if (!value.empty()) {
      return absl::InvalidArgumentError(absl::StrCat(FlagOf(action), ": no value expected, got ", value));
    }
  }
  // Of several actions the first on the command line holds.
  const std::vector<CLI::Option*>& order = app.parse_order();
  const auto is_action = [](const CLI::Option* given) { return FindByName(kActions, given->get_single_name()); };
  if (*std::find_if(order.begin(), order.end(), is_action) == option) flags.action = action.action;
  return absl::OkStatus();
}

// CLI11 takes the command line apart: every flag may be given any number of times, with a value or without one.
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
  // The caller of the program can mend any of these in one way: by another value.
  return absl::InvalidArgumentError(absl::StrCat(given_as, ": ", status.message()));
}

// Off loopback others could read and forge what is sent.
absl::Status CheckIsProtected(absl::string_view flag, absl::string_view address, const DaemonConfig& config) {
  if (address.empty() || IsLoopbackAddress(address) || !config.tls_cert.empty() || config.insecure) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat(flag, ": --tls-cert, --tls-key and --tls-ca expected with an address off loopback, got ", address,
                   " alone; --insecure=on serves it to whoever reaches it"));
}

absl::Status CheckTransport(const DaemonConfig& config) {
  const tls::Files files = TlsFilesOf(config);
  if (files.any() != files.all()) {
    return absl::InvalidArgumentError("--tls-cert: all of --tls-cert, --tls-key and --tls-ca expected, or none");
  }
  if (!config.tls_roles.empty() && !files.any()) {
    return absl::InvalidArgumentError("--tls-role: --tls-cert, --tls-key and --tls-ca expected with it, got none");
  }
  if (!config.tls_deny_file.empty() && !files.any()) {
    return absl::InvalidArgumentError("--tls-deny-file: --tls-cert, --tls-key and --tls-ca expected with it, got none");
  }
  RETURN_IF_ERROR(CheckIsProtected("--listen", config.listen.value_or(""), config));
  if (config.nodes == 1 || config.cluster_address.empty()) return absl::OkStatus();
  RETURN_IF_ERROR(CheckIsProtected("--cluster-address", config.cluster_address, config));
  if (config.data_address.empty() && !IsLoopbackAddress(config.cluster_address)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--data-address: this machine's address on the network of the daemons expected with "
                     "--cluster-address ",
                     config.cluster_address, ", got none"));
  }
  if (!config.data_address.empty() && !IsLoopbackHost(config.data_address) && !config.trusted_data_network) {
    return absl::InvalidArgumentError(
        absl::StrCat("--trusted-data-network: on expected with --data-address ", config.data_address,
                     ": weights and gradients between daemons are neither encrypted nor authenticated, so that nobody "
                     "else may be on that network"));
  }
  return absl::OkStatus();
}

// Half of the daemons could go on with another node 0, and the other half with theirs.
absl::Status CheckReplicas(const DaemonConfig& config) {
  if (!config.min_replicas.has_value()) return absl::OkStatus();
  if (*config.min_replicas > config.nodes) {
    return absl::InvalidArgumentError(
        absl::StrCat("--min-replicas: at most --nodes (", config.nodes, ") expected, got ", *config.min_replicas));
  }
  if (2 * *config.min_replicas > config.nodes || config.allow_minority) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "--min-replicas: more than half of --nodes (", config.nodes, ") expected, got ", *config.min_replicas,
      ": two node 0s could each go on with a half; with --allow-minority=on you see to it that only one runs"));
}

absl::Status CheckTogether(const DaemonConfig& config) {
  RETURN_IF_ERROR(CheckTransport(config));
  if (config.node >= config.nodes) {
    return absl::InvalidArgumentError(
        absl::StrCat("--node: a number below --nodes (", config.nodes, ") expected, got ", config.node));
  }
  if (config.nodes > 1 && config.cluster_address.empty()) {
    return absl::InvalidArgumentError("--cluster-address: the address of node 0 expected when --nodes > 1, got none");
  }
  RETURN_IF_ERROR(CheckReplicas(config));
  const bool saves = config.save_every_commits > 0 || config.save_every_time > absl::ZeroDuration();
  if (saves && config.save_dir.empty()) {
    return absl::InvalidArgumentError("--save-every: --save-dir, where checkpoints lie, expected with it, got none");
  }
  if (!config.restore.empty() && config.save_dir.empty()) {
    return absl::InvalidArgumentError("--save-dir: where checkpoints lie expected when --restore is set, got none");
  }
  return absl::OkStatus();
}

// Tests leave theirs to the daemons that they start.
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
      "Serves the shards of this machine's devices. Each flag below may be given as a variable instead: PARAMSHARD_ "
      "and\n"
      "its name in upper case with _ for -. A flag goes before the variable, the variable before the default.\n\n";
  for (const Setting& setting : kSettings) {
    absl::StrAppendFormat(&text, "  %-28s  %s\n", absl::StrCat(FlagOf(setting), "=", setting.value), setting.help);
  }
  text += "\n";
  for (const ActionFlag& action : kActions) {
    absl::StrAppendFormat(&text, "  %-28s  %s\n", FlagOf(action), action.help);
  }
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
