#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <system_error>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "client/ctl/commands.h"
#include "client/ctl/terminal_text.h"
#include "client/ctl/trace_document.h"

namespace paramshard::ctl {
namespace {

namespace fs = std::filesystem;

constexpr int kSteps = 100;
// Longest name of a folder, in bytes. File systems allow 255, and a number may follow.
constexpr size_t kMostNameBytes = 200;

// Returns a folder's name for an address.
std::string FolderOf(std::string address) {
  if (address.empty()) return "daemon";
  std::replace_if(
      address.begin(), address.end(),
      [](char c) { return !absl::ascii_isalnum(static_cast<unsigned char>(c)) && c != '.' && c != '-'; }, '_');
  return absl::StrCat("daemon-", address).substr(0, kMostNameBytes);
}

// Returns one folder's name for each address; equal addresses get different names.
std::vector<std::string> FoldersOf(const std::vector<std::string>& addresses) {
  std::vector<std::string> folders;
  std::set<std::string> taken;
  for (const std::string& address : addresses) {
    const std::string folder = FolderOf(address);
    std::string name = folder;
    for (int number = 2; !taken.insert(name).second; ++number) name = absl::StrCat(folder, "-", number);
    folders.push_back(name);
  }
  return folders;
}

absl::Status CannotWrite(const fs::path& path) {
  return absl::InvalidArgumentError(absl::StrCat("--out: failed to write ", path.string()));
}

// The answers of one daemon, a file each. Missing answers are recorded; the others are still written.
class DaemonFolder {
 public:
  DaemonFolder(fs::path folder, const Context& context) : folder_(std::move(folder)), context_(context) {}

  absl::Status Fill() {
    std::error_code error;
    fs::create_directories(folder_, error);
    if (error) return CannotWrite(folder_);
    absl::StatusOr<AdminClient> client = context_.Connect();
    if (!client.ok()) {
      Miss("every answer", client.status());
      return absl::OkStatus();
    }
    RETURN_IF_ERROR(Add(*client, "version", &AdminClient::Stub::GetVersion, v1::GetVersionRequest()));
    RETURN_IF_ERROR(Add(*client, "models", &AdminClient::Stub::ListModels, v1::ListModelsRequest()));
    RETURN_IF_ERROR(Add(*client, "sessions", &AdminClient::Stub::ListSessions, v1::ListSessionsRequest()));
    RETURN_IF_ERROR(Add(*client, "readers", &AdminClient::Stub::ListReaders, v1::ListReadersRequest()));
    RETURN_IF_ERROR(Add(*client, "mirrors", &AdminClient::Stub::ListMirrors, v1::ListMirrorsRequest()));
    RETURN_IF_ERROR(Add(*client, "memory", &AdminClient::Stub::GetMemory, v1::GetMemoryRequest()));
    RETURN_IF_ERROR(Add(*client, "saves", &AdminClient::Stub::ListSaves, v1::ListSavesRequest()));
    RETURN_IF_ERROR(Add(*client, "metrics", &AdminClient::Stub::GetMetrics, v1::GetMetricsRequest()));
    return AddTrace(*client);
  }

  const std::vector<std::string>& missing() const { return missing_; }

 private:
  template <typename Request, typename Response>
  absl::Status Add(AdminClient& client, const std::string& name,
                   grpc::Status (AdminClient::Stub::*rpc)(grpc::ClientContext*, const Request&, Response*),
                   const Request& request) {
    Response response;
    const absl::Status called = Ask(client, rpc, request, response);
    const absl::StatusOr<std::string> text = called.ok() ? JsonText(response) : called;
    if (text.ok()) return Write(name, *text);
    Miss(name, text.status());
    return absl::OkStatus();
  }

  // Skips a daemon that hangs: every question would take as long as the first.
  template <typename Request, typename Response>
  absl::Status Ask(AdminClient& client,
                   grpc::Status (AdminClient::Stub::*rpc)(grpc::ClientContext*, const Request&, Response*),
                   const Request& request, Response& response) {
    if (hangs_) return absl::DeadlineExceededError("skipped: an earlier call of this daemon timed out");
    const absl::Status called = client.Call(rpc, request, response);
    hangs_ = absl::IsDeadlineExceeded(called);
    return called;
  }

  absl::Status AddTrace(AdminClient& client) {
    v1::GetTraceRequest request;
    request.set_steps(kSteps);
    DaemonTrace trace;
    const absl::Status called = Ask(client, &AdminClient::Stub::GetTrace, request, trace.response);
    if (called.ok()) return Write("trace", JsonText(TraceDocument({trace})));
    Miss("trace", called);
    return absl::OkStatus();
  }

  absl::Status Write(const std::string& name, const std::string& text) const {
    const fs::path path = folder_ / (name + ".json");
    std::ofstream file(path, std::ios::binary | std::ios::trunc);
    file << text << std::flush;
    return file.good() ? absl::OkStatus() : CannotWrite(path);
  }

  void Miss(const std::string& name, const absl::Status& why) {
    missing_.push_back(absl::StrCat(folder_.filename().string(), ": ", name, ": ", why.ToString()));
  }

  const fs::path folder_;
  const Context& context_;
  std::vector<std::string> missing_;
  bool hangs_ = false;
};

class Bundle final : public Command {
 public:
  void AddOptions(CLI::App& app) override { app.add_option("out,--out", out_, "a new or empty folder")->required(); }
  std::vector<std::string> Objects() const override { return {out_}; }
  absl::StatusOr<int> Run(const Context& context) override;

 private:
  absl::Status MakeFolder() const;
  absl::Status WriteMissing(const Context& context, const std::vector<std::string>& missing) const;

  std::string out_;
};

bool IsOwn(const fs::path& folder) {
  struct stat status {};
  return stat(folder.c_str(), &status) == 0 && status.st_uid == geteuid();
}

// Names of processes and paths are private: only the owner may read the folder. A rejected folder stays unchanged.
absl::Status Bundle::MakeFolder() const {
  std::error_code error;
  fs::create_directories(out_, error);
  if (error) return CannotWrite(out_);
  const bool is_empty = fs::is_empty(out_, error);
  if (error) return CannotWrite(out_);
  if (!is_empty) {
    return absl::AlreadyExistsError(absl::StrCat("--out: ", out_, " already exists and is not empty"));
  }
  if (!IsOwn(out_)) {
    return absl::InvalidArgumentError(absl::StrCat("--out: ", out_, " belongs to another user"));
  }
  fs::permissions(out_, fs::perms::owner_all, error);
  return error ? CannotWrite(out_) : absl::OkStatus();
}

absl::Status Bundle::WriteMissing(const Context& context, const std::vector<std::string>& missing) const {
  std::ofstream file(fs::path(out_) / "missing.txt");
  for (const std::string& what : missing) {
    file << what << "\n";
    context.streams().err << "paramshardctl: bundle: missing " << TerminalText(what) << "\n";
  }
  return file.flush().good() ? absl::OkStatus() : CannotWrite(out_);
}

absl::StatusOr<int> Bundle::Run(const Context& context) {
  RETURN_IF_ERROR(MakeFolder());
  std::vector<std::string> addresses = context.options().addresses;
  if (addresses.empty()) addresses.emplace_back();
  const std::vector<std::string> folders = FoldersOf(addresses);
  std::vector<std::string> missing;
  for (size_t i = 0; i < addresses.size(); ++i) {
    GlobalOptions options = context.options();
    if (!addresses[i].empty()) options.addresses = {addresses[i]};
    const Context of_daemon(options, context.streams());
    DaemonFolder folder(fs::path(out_) / folders[i], of_daemon);
    RETURN_IF_ERROR(folder.Fill());
    missing.insert(missing.end(), folder.missing().begin(), folder.missing().end());
  }
  if (!missing.empty()) RETURN_IF_ERROR(WriteMissing(context, missing));
  context.streams().out << "wrote " << TerminalText(out_) << "\n";
  return missing.empty() ? kSucceeded : kFailed;
}

}  // namespace

const CommandInfo kBundle = {.name = "bundle",
                             .help = "collect answers of daemons in a folder, for support",
                             .asks_all_at_once = true,
                             .create = Create<Bundle>};

}  // namespace paramshard::ctl
