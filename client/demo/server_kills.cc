#include "client/demo/server_kills.h"

#include <signal.h>

#include <iostream>

#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "kernels/base/status_macros.h"

namespace paramshard::demo {
namespace {

constexpr double kLongestWaitSeconds = 0.1;  // dozens of steps

}  // namespace

absl::Status ServerKills::Poll(absl::Duration interval) {
  if (times_.empty()) return KillWhenHeld();
  for (const nlohmann::json& event : events_.Read()) RETURN_IF_ERROR(Await(event));
  if (due_ - absl::Now() > interval) return absl::OkStatus();
  absl::SleepFor(due_ - absl::Now());
  // Reads the events since then, which tell whether there are steps left.
  for (const nlohmann::json& event : events_.Read()) RETURN_IF_ERROR(Await(event));
  if (!IsNearEnd()) Kill(*server_);
  due_ = absl::InfiniteFuture();
  return absl::OkStatus();
}

absl::Status ServerKills::KillWhenHeld() {
  for (const nlohmann::json& event : victims_events_.Read()) {
    if (event["event"] != "holding") continue;
    RETURN_IF_ERROR(world_->AwaitSaved(options_.model));
    ASSIGN_OR_RETURN(save_stall_seconds_, world_->SaveStallSeconds(options_.model));
    ASSIGN_OR_RETURN(const pid_t server, world_->ServerPid());
    Kill(server);
    return absl::OkStatus();
  }
  return absl::OkStatus();
}

// Plans the next kill, a random time after the training has gone on.
absl::Status ServerKills::Await(const nlohmann::json& event) {
  if (event["event"] == "progress") epoch_ = event["epoch"].get<double>();
  const bool goes_on = event["event"] == "committed" && event["time"].get<double>() > times_.back();
  if (!goes_on || IsNearEnd() || static_cast<int>(times_.size()) > options_.at_random) return absl::OkStatus();
  ASSIGN_OR_RETURN(server_, world_->ServerPid());
  due_ = absl::Now() + absl::Seconds(std::uniform_real_distribution<double>(0, kLongestWaitSeconds)(random_));
  return absl::OkStatus();
}

// A kill in the last epoch could take the answer to the last commit from one rank only. The other rank would leave, and
// the one would wait for it forever.
bool ServerKills::IsNearEnd() const { return epoch_ >= static_cast<double>(options_.epochs - 1); }

void ServerKills::Kill(pid_t server) {
  times_.push_back(absl::ToDoubleSeconds(absl::Now() - absl::UnixEpoch()));
  kill(server, SIGKILL);
  std::cout << absl::StrFormat("killed process %d, which served all ranks; its keeper starts a new one", server)
            << std::endl;
}

}  // namespace paramshard::demo
