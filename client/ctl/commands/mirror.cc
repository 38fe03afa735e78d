#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "client/ctl/cell.h"
#include "client/ctl/commands.h"
#include "client/ctl/options.h"
#include "client/ctl/table.h"
#include "common/rpc/durations.h"
#include "paramshard/v1/admin.pb.h"

namespace paramshard::ctl {
namespace {

std::string CommitCell(bool is_set, const v1::PlaneVersion& version) {
  return is_set ? absl::StrCat(version.commit_number()) : "-";
}

std::string MirrorsText(const v1::ListMirrorsResponse& response) {
  if (response.mirrors().empty()) return "no mirrors\n";
  Table table({Left("MIRROR"), Left("MODEL"), Right("ACTIVE"), Right("STAGED"), Right("BYTES"), Right("AGE"),
               Left("LAST ERROR")});
  for (const v1::MirrorReport& mirror : response.mirrors()) {
    table.AddRow({TextCell(mirror.mirror()), TextCell(mirror.model()), CommitCell(mirror.has_active(), mirror.active()),
                  CommitCell(mirror.has_staged(), mirror.staged()), BytesCell(mirror.plane_bytes()),
                  mirror.has_active() ? DurationCell(DurationFromProto(mirror.age())) : "-",
                  TextCell(mirror.last_error())});
  }
  return table.Text();
}

class MirrorList final : public Command {
 public:
  absl::StatusOr<int> Run(const Context& context) override {
    return context.Show(&AdminClient::Stub::ListMirrors, v1::ListMirrorsRequest(), MirrorsText);
  }
};

// A mirror that is to activate a version.
struct Activation {
  GlobalOptions options;
  std::optional<absl::StatusOr<AdminClient>> client;
  absl::Status status;
  v1::ActivateMirrorResponse response;
};

class MirrorActivate final : public Command {
 public:
  void AddOptions(CLI::App& app) override {
    AddModelArgument(app, model_);
    app.add_option("commit", commit_, "the commit number of the version")->required()->check(CLI::NonNegativeNumber);
  }
  std::vector<std::string> Objects() const override { return {model_}; }
  absl::StatusOr<int> Run(const Context& context) override;

 private:
  absl::StatusOr<int> Write(const Context& context, const std::vector<Activation>& mirrors) const;

  std::string model_;
  int64_t commit_ = 0;
};

// All are connected before the first is asked, and asked at the same time: they change over together.
absl::StatusOr<int> MirrorActivate::Run(const Context& context) {
  std::vector<Activation> mirrors;
  for (const std::string& address : context.options().addresses) {
    mirrors.emplace_back().options = context.options();
    mirrors.back().options.addresses = {address};
  }
  if (mirrors.empty()) mirrors.emplace_back().options = context.options();
  const auto at_each = [&](void (*act)(const MirrorActivate&, const Context&, Activation&)) {
    std::vector<std::thread> threads;
    for (Activation& mirror : mirrors) {
      threads.emplace_back([&] { act(*this, Context(mirror.options, context.streams()), mirror); });
    }
    for (std::thread& thread : threads) thread.join();
  };
  at_each([](const MirrorActivate&, const Context& at, Activation& mirror) { mirror.client.emplace(at.Connect()); });
  at_each([](const MirrorActivate& self, const Context&, Activation& mirror) {
    mirror.status = mirror.client->status();
    if (!mirror.status.ok()) return;
    v1::ActivateMirrorRequest request;
    request.set_model(self.model_);
    request.set_commit_number(self.commit_);
    mirror.status =
        (*mirror.client)->Call(&AdminClient::Stub::ActivateMirror, request, mirror.response, RpcLength::kLong);
  });
  return Write(context, mirrors);
}

absl::StatusOr<int> MirrorActivate::Write(const Context& context, const std::vector<Activation>& mirrors) const {
  if (mirrors.size() == 1) RETURN_IF_ERROR(mirrors.front().status);
  Table table({Left("MIRROR"), Left("STATE"), Left("WHY")});
  nlohmann::ordered_json answers = nlohmann::ordered_json::array();
  int code = kSucceeded;
  for (const Activation& mirror : mirrors) {
    const std::vector<std::string>& addresses = mirror.options.addresses;
    const std::string name = addresses.empty() ? mirror.response.mirror().mirror() : addresses.front();
    const std::string why = mirror.status.ok() ? "" : mirror.status.ToString();
    const std::string state = mirror.status.ok() ? absl::StrCat("active at commit ", commit_) : "left behind";
    if (!mirror.status.ok()) code = kFailed;
    table.AddRow({name, state, TextCell(why)});
    answers.push_back({{"mirror", name}, {"active", mirror.status.ok()}, {"error", why}});
  }
  context.streams().out << (context.options().output == Output::kJson ? JsonText(answers) : table.Text());
  return code;
}

}  // namespace

const CommandInfo kMirrorList = {.name = "mirror list",
                                 .help = "list what mirrors hold: at a mirror, or at node 0 of the training",
                                 .create = Create<MirrorList>};
const CommandInfo kMirrorActivate = {.name = "mirror activate",
                                     .help = "give readers a version that mirrors have staged",
                                     .asks_all_at_once = true,
                                     .create = Create<MirrorActivate>};

}  // namespace paramshard::ctl
