#include "server/world/world_context.h"

#include <numeric>

#include "absl/strings/str_cat.h"

namespace paramshard::server {

WorldContext::Lock::Lock(absl::Mutex* mu, WorldContext* world) : mu_(mu), world_(world) {
  mu_->Lock();
  while (world_->is_writing) world_->written.Wait(mu_);
}

WorldContext::Lock::~Lock() ABSL_NO_THREAD_SAFETY_ANALYSIS {
  const PendingAnswers answers = std::exchange(world_->answers, {});
  mu_->Unlock();
  for (const std::function<void()>& answer : answers) answer();
}

void WorldContext::Tell(int node, const ToNode& message) {
  if (sinks[node] != nullptr) sinks[node]->Tell(message);
}

void WorldContext::TellNodes(const std::vector<int>& nodes, const ToNode& message) {
  for (const int node : nodes) Tell(node, message);
}

void WorldContext::TellAll(const ToNode& message) {
  for (int node = 0; node < members.nodes(); ++node) Tell(node, message);
}

void WorldContext::TellFollowers(const ToNode& message) {
  for (int node = 1; node < members.nodes(); ++node) Tell(node, message);
}

absl::Status WorldContext::WriteInLog(absl::FunctionRef<absl::Status()> write) ABSL_NO_THREAD_SAFETY_ANALYSIS {
  is_writing = true;
  mu->Unlock();
  absl::Status status = write();
  mu->Lock();
  is_writing = false;
  written.SignalAll();
  return status;
}

WorldFacts WorldContext::Facts() {
  const SteadyTime now = SteadyNow();
  links.TryAgain(now);
  return {.members = members,
          .policy = policy,
          .left_out = links.left_out(),
          .has_saves = !terms.save_dir.empty(),
          .now = now};
}

absl::Status WorldContext::CheckAllPresent(absl::string_view operation, absl::string_view model) const {
  for (int node = 0; node < members.nodes(); ++node) {
    if (members.present(node)) continue;
    return absl::UnavailableError(
        absl::StrCat(operation, " ", model, ": all nodes are required, ", NodeName(members, node), " is not here"));
  }
  return absl::OkStatus();
}

absl::Status WorldContext::StoppedError() { return absl::UnavailableError("cluster: stopped, the daemon drains"); }

}  // namespace paramshard::server
