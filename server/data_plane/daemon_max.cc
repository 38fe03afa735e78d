#include "server/data_plane/daemon_max.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"

namespace paramshard::server {
namespace {

// Returns the first member of every other node, in order.
std::vector<int> FirstOfOtherNodes(const Mesh& mesh) {
  std::vector<int> peers;
  int node = -1;
  for (int member = 0; member < mesh.size(); ++member) {
    if (mesh.member(member).node == node) continue;
    node = mesh.member(member).node;
    if (node != mesh.member(mesh.self()).node) peers.push_back(member);
  }
  return peers;
}

absl::Status TryMax(Mesh& mesh, int64_t number, absl::Span<float> values, SteadyTime deadline) {
  const std::vector<int> peers = FirstOfOtherNodes(mesh);
  if (peers.empty() || values.empty()) return absl::OkStatus();
  const auto bytes = static_cast<int64_t>(values.size() * sizeof(float));
  std::vector<int64_t> numbers(peers.size());
  std::vector<std::vector<float>> received(peers.size(), std::vector<float>(values.size()));
  std::vector<PeerTransfer> transfers;
  for (size_t i = 0; i < peers.size(); ++i) {
    transfers.push_back({peers[i],
                         {{&number, sizeof(number)}, {values.data(), bytes}},
                         {{&numbers[i], sizeof(number)}, {received[i].data(), bytes}}});
  }
  RETURN_IF_ERROR(mesh.host_mesh().Exchange(transfers, deadline, [](int) {}));
  for (size_t i = 0; i < peers.size(); ++i) {
    if (numbers[i] == number) continue;
    return absl::FailedPreconditionError(absl::StrCat("daemons disagree: ", MemberName(mesh.member(mesh.self())),
                                                      " shares amaxes of command ", number, ", ",
                                                      MemberName(mesh.member(peers[i])), " of command ", numbers[i]));
  }
  for (const std::vector<float>& other : received) {
    for (size_t i = 0; i < values.size(); ++i) values[i] = std::max(values[i], other[i]);
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status MaxOverDaemons(Mesh& mesh, int64_t number, absl::Span<float> values, SteadyTime deadline) {
  const absl::Status status = TryMax(mesh, number, values, deadline);
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat("amaxes of commit, command ", number, ": ", status.message()));
}

}  // namespace paramshard::server
