// The daemon's configuration: flags, environment, defaults.
//
// Every setting is a flag `--name=value` and a variable PARAMSHARD_NAME (upper case, `-` as `_`). A flag goes before
// the environment, the environment before the default; an empty variable counts as unset. Lists are comma-separated; a
// list's flag may also be repeated, and replaces the variable's list as a whole.
//
//   ASSIGN_OR_RETURN(ParsedArguments arguments, ParseArguments(argc, argv, ProcessEnvironment()));
//   if (arguments.action == ParsedArguments::Action::kHelp) std::cout << HelpText();
#ifndef PARAMSHARD_SERVER_CONFIG_CONFIG_H_
#define PARAMSHARD_SERVER_CONFIG_CONFIG_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/tls/files.h"

namespace paramshard::server {

struct DaemonConfig {
  // At least one, distinct, of the form that ParseDevice takes; rank order within the daemon. Indices may have gaps.
  std::vector<std::string> devices = {"cpu:0"};
  // Where grpc.sock and handoff.sock are. Default: $XDG_RUNTIME_DIR/paramshard, else /tmp/paramshard-<uid>.
  std::string socket_dir;
  // Host:port where gRPC is served besides the Unix socket; port 0 takes a free one. Unset: nowhere. Off loopback with
  // certificates, or `insecure`.
  std::optional<std::string> listen;
  // 0 <= node < nodes. Node 0 coordinates.
  int node = 0;
  int nodes = 1;
  // Its name, of all daemons the same; empty: it has none.
  std::string world;
  // Host:port of node 0's ClusterService; set when nodes > 1, else it may be empty. Off loopback as `listen`.
  std::string cluster_address;
  // Paths of PEM files, all or none (tls::Files), and whose URIs have which role (tls::ParseRolePattern).
  std::string tls_cert;
  std::string tls_key;
  std::string tls_ca;
  std::vector<std::string> tls_roles;
  // Path of the file that names who is let in no more (DenyList). Empty: nobody.
  std::string tls_deny_file;
  // Whether addresses off loopback are served without them.
  bool insecure = false;
  // IP of this machine that engines of other daemons connect to; empty: loopback. Off loopback the network must be
  // trusted.
  std::string data_address;
  bool trusted_data_network = false;
  // How long a rank may keep the others waiting within a step.
  absl::Duration step_timeout = absl::Seconds(60);
  // How long the first daemon waits until the world is complete.
  absl::Duration join_timeout = absl::Seconds(60);
  // How many daemons an epoch needs where each holds a replica, and how long one that is lost is waited for. Unset: all.
  // More than half, unless a minority is allowed. Those of node 0 count.
  std::optional<int> min_replicas;
  bool allow_minority = false;
  absl::Duration replica_grace = absl::Seconds(10);
  // Absolute path of the folder where node 0 keeps what it tells others of commits. Empty: in its memory alone.
  std::string state_dir;
  // How long a commit may stay in doubt while node 0 does not answer.
  absl::Duration doubt_timeout = absl::Minutes(5);
  // How long commits in flight may take to finish after SIGTERM.
  absl::Duration drain_timeout = absl::Seconds(10);
  // Users who may connect besides the daemon's own: numbers or names that FindUser knows.
  std::vector<std::string> allow_users;
  // Models that would not fit are refused. 0: what the machine has available is the limit.
  int64_t memory_limit_bytes = 0;
  // Absolute path of the folder that checkpoints lie in, one folder for each model. Empty: there are none. That it
  // is there and may be written to is found at the start (CheckOwnFolder).
  std::string save_dir;
  // When every model is saved: after commits whose number is a multiple of the first, where it is not 0; at the first
  // commit after the second, where that is not zero.
  int64_t save_every_commits = 0;
  absl::Duration save_every_time = absl::ZeroDuration();
  // Which checkpoints of a model stay: the newest, and those whose step is a multiple, where it is not 0.
  int save_keep = 3;
  int64_t save_keep_every = 0;
  // Whether models with commits that are not saved are saved when the daemon stops.
  bool save_on_drain = true;
  // How long a save may take.
  absl::Duration save_timeout = absl::Minutes(10);
  // What models begin with that are created: "latest" of their checkpoints in save_dir where there is one, or a step.
  // Empty: their initial values.
  std::string restore;
  // How long a restore of several daemons may take, and a creation may wait for the other daemons to do the same. By
  // default less than clients wait (Client::Options::attach_timeout): they are to hear whom it was waited for.
  absl::Duration restore_timeout = absl::Minutes(8);
  // What moves bytes between the devices of this daemon: memcpy or copy engines, or as between daemons Gloo or NCCL.
  std::string local_engine = "direct";  // or "mesh"
  // Path of NCCL's library, needed for meshes of GPUs. Empty: libnccl.so.2 where the dynamic linker looks.
  std::string nccl_library;
  // A file with the key that NCCL's connections over TCP are encrypted with. Empty: they are not.
  std::string nccl_psk_file;
  // IP:PORT where the metrics are served over HTTP, to whoever reaches it; port 0 takes a free one. Empty: nowhere.
  std::string metrics_listen;
  // Whether a process beside starts the server again when it dies.
  bool keeper = true;
  std::string log_format = "text";  // or "json"
  std::string log_level = "info";   // or "debug", "warning", "error"
};

// The files of its certificate.
tls::Files TlsFilesOf(const DaemonConfig& config);

// Where a setting's value comes from.
enum class Source { kDefault, kEnvironment, kFlag };

struct ParsedArguments {
  // kHelp and kVersion are answered before anything is checked: `config` then holds defaults.
  enum class Action { kServe, kHelp, kVersion, kPrintConfig };

  Action action = Action::kServe;
  DaemonConfig config;
  // By the setting's name, which is the flag's without dashes.
  std::map<std::string, Source> sources;
  // Variables PARAMSHARD_* that name no setting. Worth a warning, no error: they may belong to another program.
  std::vector<std::string> unknown_variables;
};

using Environment = std::map<std::string, std::string>;

// Returns the variables of this process.
Environment ProcessEnvironment();

// Reads flags (argv[0] is skipped) and environment. INVALID_ARGUMENT for an unknown flag (names the nearest), a value
// that is not what its setting takes, or values that do not go together. The message names the flag or variable at
// fault.
absl::StatusOr<ParsedArguments> ParseArguments(int argc, const char* const* argv, const Environment& environment);

// Returns what --help prints.
std::string HelpText();

// Returns what --print-config prints: a line `name = value  # source` for every setting.
std::string ConfigText(const ParsedArguments& arguments);

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_CONFIG_CONFIG_H_
