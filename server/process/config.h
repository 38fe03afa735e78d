// The daemon's configuration: flags, environment, defaults.
//
// Every setting is a flag `--name=value` and a variable PARAMSHARD_NAME (upper case, `-` as `_`). A flag overrides the
// variable, the variable the default; an empty variable counts as unset. Lists are comma-separated; a list's flag may
// also be repeated, and replaces the variable's list as a whole.
//
//   ASSIGN_OR_RETURN(ParsedArguments arguments, ParseArguments(argc, argv, ProcessEnvironment()));
//   if (arguments.action == ParsedArguments::Action::kHelp) std::cout << HelpText();
#ifndef PARAMSHARD_SERVER_PROCESS_CONFIG_H_
#define PARAMSHARD_SERVER_PROCESS_CONFIG_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/tls/files.h"

namespace paramshard::server {

struct DaemonConfig {
  // At least one, distinct, of the form that ParseDevice takes, in the order of ranks. Indices may have gaps.
  std::vector<std::string> devices = {"cpu:0"};
  // Directory of grpc.sock and of the companion socket, handoff.sock: older clients know that name. Default:
  // $XDG_RUNTIME_DIR/paramshard, else /tmp/paramshard-<uid>.
  std::string socket_dir;
  // Host:port where gRPC is served besides the Unix socket; port 0 picks a free port. Unset: nowhere. An address off
  // loopback requires certificates, or `insecure`.
  std::optional<std::string> listen;
  // 0 <= node < nodes. Node 0 coordinates.
  int node = 0;
  int nodes = 1;
  // Name of the world, the same for all its daemons; empty: none.
  std::string world;
  // Host:port of node 0's ClusterService; required when nodes > 1. Off loopback as for `listen`.
  std::string cluster_address;
  // Paths of PEM files, all or none (tls::Files), and patterns of URIs with their roles (tls::ParseRolePattern).
  std::string tls_cert;
  std::string tls_key;
  std::string tls_ca;
  std::vector<std::string> tls_roles;
  // Path of the file with URIs of rejected certificates (DenyList). Empty: none are rejected.
  std::string tls_deny_file;
  // Serves addresses off loopback without certificates.
  bool insecure = false;
  // IP of this machine that engines of other daemons connect to; empty: loopback. Off loopback it requires
  // `trusted_data_network`.
  std::string data_address;
  bool trusted_data_network = false;
  // How long a rank may keep the others waiting within a step.
  absl::Duration step_timeout = absl::Seconds(60);
  absl::Duration reader_hold = absl::Milliseconds(250);
  // HOST:PORT of the --listen address of node 0 whose models this daemon mirrors. Empty: it is no mirror.
  std::string mirror;
  std::string mirror_activate = "auto";  // or "manual"
  // Largest total size of images for mirrors. Unset: one image of each model; 0: no mirrors are served.
  std::optional<int64_t> mirror_image_memory;
  // How long the first daemon waits until the world is complete.
  absl::Duration join_timeout = absl::Seconds(60);
  // How many daemons an epoch of replicas needs, and how long it waits for a lost daemon. Unset: all daemons. More than
  // half, unless a minority is allowed. Node 0's values apply.
  std::optional<int> min_replicas;
  bool allow_minority = false;
  absl::Duration replica_grace = absl::Seconds(10);
  // Absolute path of the folder where node 0 keeps its decisions on commits. Empty: in its memory alone.
  std::string state_dir;
  // How long a commit may stay in doubt while node 0 does not answer.
  absl::Duration doubt_timeout = absl::Minutes(5);
  // How long commits in flight may take after SIGTERM.
  absl::Duration drain_timeout = absl::Seconds(10);
  // Users that may connect besides the daemon's own: numbers or names that FindUser knows.
  std::vector<std::string> allow_users;
  // Lets readers of other users map planes in memory of GPUs, which they could write.
  bool trust_gpu_readers = false;
  bool end_stuck_readers = false;
  // Largest total size of models; larger models are rejected. 0: the machine's available memory.
  int64_t memory_limit_bytes = 0;
  // Absolute path of the folder of checkpoints, with one folder for each model. Empty: no checkpoints. The daemon's
  // start checks that the folder exists and is writable (CheckOwnFolder).
  std::string save_dir;
  // Every model is saved after commits whose number is a multiple of the first, unless it is 0; and at the first commit
  // after the second has passed, unless it is zero.
  int64_t save_every_commits = 0;
  absl::Duration save_every_time = absl::ZeroDuration();
  // A model's checkpoints that are retained: so many of the newest, and steps that are a multiple of the second, unless
  // it is 0.
  int save_keep = 3;
  int64_t save_keep_every = 0;
  // Saves models with unsaved commits when the daemon stops.
  bool save_on_drain = true;
  // How long a save may take.
  absl::Duration save_timeout = absl::Minutes(10);
  // Checkpoint in save_dir that a created model begins with: "latest" (if there is one), or a step. Empty: the model's
  // initial values.
  std::string restore;
  // How long a restore of several daemons may take, and how long a creation may wait for the other daemons. The default
  // is below the clients' timeout (Client::Options::attach_timeout), so that they learn which daemon was late.
  absl::Duration restore_timeout = absl::Minutes(8);
  // Engine between the devices of this daemon: memcpy or copy engines ("direct"), or Gloo or NCCL as between daemons.
  std::string local_engine = "direct";  // or "mesh"
  // Path of NCCL's library, required for meshes of GPUs. Empty: libnccl.so.2 from the dynamic linker's path.
  std::string nccl_library;
  // File with the key that encrypts NCCL's connections over TCP. Empty: they are not encrypted.
  std::string nccl_psk_file;
  // IP:PORT where metrics are served over HTTP, without authentication; port 0 picks a free port. Empty: nowhere.
  std::string metrics_listen;
  // Runs a keeper process, which restarts the server when it dies.
  bool keeper = true;
  std::string log_format = "text";  // or "json"
  std::string log_level = "info";   // or "debug", "warning", "error"
};

// Returns the files of the daemon's certificate.
tls::Files TlsFilesOf(const DaemonConfig& config);

// Origin of a setting's value.
enum class Source { kDefault, kEnvironment, kFlag };

struct ParsedArguments {
  // kHelp and kVersion are answered before anything is checked: `config` then holds defaults.
  enum class Action { kServe, kHelp, kVersion, kPrintConfig };

  Action action = Action::kServe;
  DaemonConfig config;
  // By the setting's name, which is the flag's name without the leading dashes.
  std::map<std::string, Source> sources;
  // Variables PARAMSHARD_* that name no setting. A warning, not an error: they may belong to another program.
  std::vector<std::string> unknown_variables;
};

using Environment = std::map<std::string, std::string>;

// Returns the variables of this process.
Environment ProcessEnvironment();

// Reads flags (argv[0] is skipped) and environment. INVALID_ARGUMENT an unknown flag (the message names the nearest
// one), an invalid value, or values that contradict each other. The message names the flag or variable at fault.
absl::StatusOr<ParsedArguments> ParseArguments(int argc, const char* const* argv, const Environment& environment);

// Returns what --help prints.
std::string HelpText();

// Returns the table of flags in docs/operate/settings.md.
std::string SettingsTable();

// Returns what --print-config prints: a line `name = value  # source` for every setting.
std::string ConfigText(const ParsedArguments& arguments);

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_PROCESS_CONFIG_H_
