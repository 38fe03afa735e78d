// The interface of paramshardctl's commands. Each has a file of its own under commands/, with its words, help, options,
// call and output; commands/commands.cc lists them.
#ifndef PARAMSHARD_CLIENT_CTL_COMMAND_H_
#define PARAMSHARD_CLIENT_CTL_COMMAND_H_

#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/ctl/admin_client.h"
#include "client/ctl/ctl.h"
#include "client/ctl/exit_codes.h"
#include "client/ctl/json.h"
#include "common/tls/files.h"
#include "common/tls/identity.h"
#include "kernels/base/status_macros.h"

namespace CLI {
class App;
}  // namespace CLI

namespace paramshard::ctl {

enum class Output { kTable, kJson };

// Options of every command.
struct GlobalOptions {
  std::string socket_dir;  // empty: the default of client.h
  // HOST:PORT of daemons on other machines; none: the daemon of this machine.
  std::vector<std::string> addresses;
  tls::Files tls_files;
  std::vector<tls::RolePattern> tls_roles;
  Output output = Output::kTable;
  std::optional<absl::Duration> timeout;  // unset: the defaults of AdminClient
};

// A command's surroundings: the global options, the streams, the daemon.
class Context {
 public:
  // Both outlive the context.
  Context(const GlobalOptions& options, const Streams& streams) : options_(options), streams_(streams) {}

  const GlobalOptions& options() const { return options_; }
  const Streams& streams() const { return streams_; }

  absl::StatusOr<AdminClient> Connect() const;

  // Writes an answer: as JSON, or as the text from `text`.
  template <typename Response>
  absl::StatusOr<int> Write(const Response& response, std::string (*text)(const Response&)) const {
    if (options_.output == Output::kTable) {
      streams_.out << text(response);
      return kSucceeded;
    }
    ASSIGN_OR_RETURN(const std::string json, JsonText(response));
    streams_.out << json;
    return kSucceeded;
  }

  // Calls an RPC with one answer, of AdminService or of TrainerService, and writes it.
  template <typename Service, typename Request, typename Response>
  absl::StatusOr<int> Show(grpc::Status (Service::*rpc)(grpc::ClientContext*, const Request&, Response*),
                           const Request& request, std::string (*text)(const Response&),
                           RpcLength length = RpcLength::kShort) const {
    ASSIGN_OR_RETURN(AdminClient client, Connect());
    Response response;
    RETURN_IF_ERROR(client.Call(rpc, request, response, length));
    return Write(response, text);
  }

 private:
  const GlobalOptions& options_;
  const Streams& streams_;
};

// One command, with the values of its options.
class Command {
 public:
  virtual ~Command() = default;

  // Adds options that set the command's fields; the command outlives the app.
  virtual void AddOptions(CLI::App&) {}
  // Called after the options were read. An error is a usage error of options that do not fit together.
  virtual absl::Status Check() const { return absl::OkStatus(); }
  // Returns the names of the command's objects, for messages: "tiny", "in.npy". Empty texts are left out.
  virtual std::vector<std::string> Objects() const { return {}; }
  // Returns an ExitCode.
  virtual absl::StatusOr<int> Run(const Context& context) = 0;
};

struct CommandInfo {
  const char* name = "";  // "models"; with a group "codec encode"
  const char* help = "";
  // Its UNAVAILABLE and DEADLINE_EXCEEDED mean that no daemon answers.
  bool asks_daemon = true;
  // Runs once with all addresses, and not once for each.
  bool asks_all_at_once = false;
  // Its answer is in a machine format with comments after "#".
  bool has_comments = false;
  std::unique_ptr<Command> (*create)() = nullptr;
};

template <typename Type>
std::unique_ptr<Command> Create() {
  return std::make_unique<Type>();
}

}  // namespace paramshard::ctl

#endif  // PARAMSHARD_CLIENT_CTL_COMMAND_H_
