#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
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
  v1::MirrorReport held;  // before, where that is asked
  v1::ActivateMirrorResponse response;

  std::string Name() const {
    if (!options.addresses.empty()) return options.addresses.front();
    return response.has_mirror() ? response.mirror().mirror() : "this daemon";
  }
};

std::string HeldText(const Activation& mirror, const std::string& model) {
  const v1::MirrorReport& held = mirror.held;
  if (!mirror.status.ok()) return absl::StrCat(mirror.Name(), ": ", mirror.status.ToString());
  if (held.model().empty()) return absl::StrCat(mirror.Name(), " mirrors no model ", model);
  if (held.has_staged()) return absl::StrCat(mirror.Name(), " has commit ", held.staged().commit_number(), " staged");
  if (!held.has_active()) return absl::StrCat(mirror.Name(), " has no version");
  return absl::StrCat(mirror.Name(), " has commit ", held.active().commit_number(), " active and none staged");
}

// Returns the newest version that all have, of which one at least has it staged, unless nothing is staged anywhere.
absl::StatusOr<int64_t> ChooseCommit(const std::string& model, const std::vector<Activation>& mirrors) {
  struct Holders {
    size_t all = 0;
    size_t staged = 0;
  };
  std::map<std::pair<int64_t, std::string>, Holders> versions;
  std::optional<int64_t> newest_staged;
  for (const Activation& mirror : mirrors) {
    const auto hold = [&](const v1::PlaneVersion& version) -> Holders& {
      Holders& holders = versions[{version.commit_number(), version.history_id()}];
      ++holders.all;
      return holders;
    };
    if (mirror.held.has_active()) hold(mirror.held.active());
    if (!mirror.held.has_staged()) continue;
    ++hold(mirror.held.staged()).staged;
    newest_staged = std::max(newest_staged.value_or(0), mirror.held.staged().commit_number());
  }
  for (auto version = versions.rbegin(); version != versions.rend(); ++version) {
    const Holders& holders = version->second;
    if (holders.all == mirrors.size() && (holders.staged > 0 || !newest_staged.has_value()))
      return version->first.first;
  }
  const std::string advice =
      newest_staged.has_value()
          ? absl::StrCat("try again later, or switch those that have it: mirror activate ", model, " ", *newest_staged)
          : "try again later";
  return absl::FailedPreconditionError(absl::StrCat("no version is staged at all mirrors; ",
                                                    absl::StrJoin(mirrors, "; ",
                                                                  [&](std::string* text, const Activation& mirror) {
                                                                    absl::StrAppend(text, HeldText(mirror, model));
                                                                  }),
                                                    "; ", advice));
}

class MirrorActivate final : public Command {
 public:
  void AddOptions(CLI::App& app) override {
    AddModelArgument(app, model_);
    app.add_option("commit", commit_, "the commit number of the version; default: the newest that all have staged")
        ->check(CLI::NonNegativeNumber);
  }
  std::vector<std::string> Objects() const override { return {model_}; }
  absl::StatusOr<int> Run(const Context& context) override;

 private:
  absl::StatusOr<int> Write(const Context& context, const std::vector<Activation>& mirrors) const;

  std::string model_;
  std::optional<int64_t> commit_;
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
  if (!commit_.has_value()) {
    at_each([](const MirrorActivate& self, const Context&, Activation& mirror) {
      v1::ListMirrorsResponse listed;
      mirror.status = mirror.client->status();
      if (mirror.status.ok()) {
        mirror.status = (*mirror.client)->Call(&AdminClient::Stub::ListMirrors, v1::ListMirrorsRequest(), listed);
      }
      for (const v1::MirrorReport& report : listed.mirrors()) {
        if (report.model() == self.model_) mirror.held = report;
      }
    });
    ASSIGN_OR_RETURN(commit_, ChooseCommit(model_, mirrors));
  }
  at_each([](const MirrorActivate& self, const Context&, Activation& mirror) {
    mirror.status = mirror.client->status();
    if (!mirror.status.ok()) return;
    v1::ActivateMirrorRequest request;
    request.set_model(self.model_);
    request.set_commit_number(*self.commit_);
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
    const std::string name = mirror.Name();
    const std::string why = mirror.status.ok() ? "" : mirror.status.ToString();
    const std::string state = mirror.status.ok() ? absl::StrCat("active at commit ", *commit_) : "left behind";
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
