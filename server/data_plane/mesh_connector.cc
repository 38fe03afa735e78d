#include "server/data_plane/mesh_connector.h"

#include <algorithm>
#include <cstddef>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "kernels/base/status_macros.h"
#include "server/base/steady_cond_var.h"
#include "server/base/thread.h"
#include "server/data_plane/mesh_addresses.h"
#include "server/data_plane/mesh_tag.h"

namespace paramshard::server {
namespace {

// Wait between two looks for an abort, which the rendezvous does not know.
constexpr absl::Duration kAbortLatency = absl::Milliseconds(500);

// Calls `get` until it has a value. DEADLINE_EXCEEDED at the deadline.
template <typename Get>
auto Await(const MeshConnection& connection, SteadyTime deadline, Get get) {
  while (true) {
    const absl::Duration left = TimeLeft(deadline);
    auto value = get(std::min(left, kAbortLatency));
    if (value.ok() || !absl::IsDeadlineExceeded(value.status()) || left <= kAbortLatency) return value;
    if (connection.abort != nullptr && !connection.abort->status().ok()) {
      return decltype(value)(connection.abort->status());
    }
  }
}

using Meshes = std::vector<std::unique_ptr<TcpMesh>>;
// Addresses for this daemon, by the node that listens there.
using AddressBooks = std::vector<MeshAddresses>;

constexpr absl::string_view kKey = "meshes";

absl::StatusOr<Meshes> Listen(const MeshConnection& connection) {
  ASSIGN_OR_RETURN(const auto device, MakeTcpDevice(connection.listen_address));
  Meshes meshes;
  for (const MeshPlan& plan : connection.plans) {
    std::vector<MeshMember> members;
    for (const MeshPlan::Peer& peer : plan.members) members.push_back(peer.member);
    ASSIGN_OR_RETURN(meshes.emplace_back(), TcpMesh::Create(device, std::move(members), plan.self, connection.timeout));
  }
  return meshes;
}

// Returns this daemon's addresses for others, by node.
AddressBooks OwnBooks(const MeshConnection& connection, const Meshes& meshes) {
  AddressBooks books(connection.nodes);
  for (size_t mesh = 0; mesh < meshes.size(); ++mesh) {
    const MeshPlan& plan = connection.plans[mesh];
    for (int member = 0; member < meshes[mesh]->size(); ++member) {
      if (member == plan.self) continue;
      books[plan.members[member].member.node][{static_cast<int>(mesh), member}] = meshes[mesh]->AddressFor(member);
    }
  }
  const LinkListener* const listener = connection.links == nullptr ? nullptr : connection.links->listener();
  for (MeshAddresses& book : books) {
    if (listener != nullptr && !book.empty()) book[kLinkPlace] = listener->address();
  }
  return books;
}

// Every daemon reads only its own addresses.
absl::StatusOr<AddressBooks> ShareBooks(const MeshConnection& connection, const Meshes& meshes, SteadyTime deadline) {
  std::vector<std::string> parts;
  for (const MeshAddresses& book : OwnBooks(connection, meshes)) parts.push_back(EncodeAddresses(book));
  RETURN_IF_ERROR(connection.rendezvous->PutParts(kKey, parts));
  const auto read =
      Await(connection, deadline, [&](absl::Duration wait) { return connection.rendezvous->GetParts(kKey, wait); });
  if (absl::IsDeadlineExceeded(read.status())) {
    return absl::UnavailableError(absl::StrCat("timed out after ", absl::FormatDuration(connection.timeout),
                                               " waiting for all nodes: ", read.status().message()));
  }
  RETURN_IF_ERROR(read.status());
  AddressBooks books;
  for (const std::string& part : *read) books.push_back(DecodeAddresses(part));
  return books;
}

// Returns the other daemons of the meshes, with the addresses of their link listeners.
std::vector<LinkPeer> LinkPeers(const MeshConnection& connection, const AddressBooks& books) {
  std::vector<LinkPeer> peers;
  for (size_t node = 0; node < books.size(); ++node) {
    const auto address = books[node].find(kLinkPlace);
    if (address == books[node].end() || static_cast<int>(node) == connection.node) continue;
    peers.push_back({.node = static_cast<int>(node), .address = address->second});
  }
  return peers;
}

absl::Status TryLinks(const MeshConnection& connection, const AddressBooks& books, SteadyTime deadline) {
  if (connection.links == nullptr) return absl::OkStatus();
  connection.links->SetPeers(LinkPeers(connection, books));
  return connection.links->Check(std::min(kLinkTimeout, TimeLeft(deadline)), connection.abort);
}

absl::StatusOr<std::string> FindAddress(const AddressBooks& books, const MeshPlan::Peer& peer, int self) {
  const size_t node = peer.member.node;
  if (node < books.size()) {
    const auto address = books[node].find({peer.mesh, self});
    if (address != books[node].end()) return address->second;
  }
  return absl::InternalError(absl::StrCat(MemberName(peer.member), ": its daemon has sent no address for it"));
}

absl::Status ConnectMesh(TcpMesh& mesh, const MeshPlan& plan, const AddressBooks& books) {
  for (int peer = 0; peer < mesh.size(); ++peer) {
    if (peer == plan.self) continue;
    ASSIGN_OR_RETURN(const std::string address, FindAddress(books, plan.members[peer], plan.self));
    RETURN_IF_ERROR(mesh.Connect(peer, address));
  }
  return absl::OkStatus();
}

// Returns the tag of the plan's mesh, equal for all its members.
MeshTag TagOf(const MeshConnection& connection, const MeshPlan& plan) {
  std::string name;
  for (const MeshPlan::Peer& peer : plan.members) {
    absl::StrAppend(&name, peer.member.node, ":", peer.member.rank, ":", peer.mesh, ",");
  }
  return MakeMeshTag(connection.epoch, name);
}

// Connects each mesh on a thread of its own: a listening member waits for a connecting one, which may be in the same
// daemon.
class ParallelConnect {
 public:
  // The arguments outlive this object.
  ParallelConnect(const MeshConnection& connection, const Meshes& meshes, const AddressBooks& books)
      : connection_(connection), meshes_(meshes), books_(books), left_(meshes.size()) {}

  // Called once. Returns the first error. Closes all meshes at the deadline and at the first error.
  absl::Status Run(SteadyTime deadline) {
    std::vector<std::thread> threads = Start(deadline);
    if (!AllConnected(deadline)) {
      for (const auto& mesh : meshes_) mesh->Close();
    }
    for (std::thread& thread : threads) thread.join();
    absl::MutexLock lock(&mu_);
    return status_;
  }

  // Ends connecting as a failed connection does.
  void Abort(const absl::Status& status) {
    absl::MutexLock lock(&mu_);
    status_.Update(status);
    changed_.SignalAll();
  }

 private:
  // Starts the threads. One that does not start counts as a failed connection.
  std::vector<std::thread> Start(SteadyTime deadline) {
    std::vector<std::thread> threads;
    for (size_t i = 0; i < meshes_.size(); ++i) {
      absl::StatusOr<std::thread> thread =
          StartThread("a connection between daemons", [this, i, deadline] { Finish(Connect(i, deadline)); });
      if (thread.ok()) {
        threads.push_back(*std::move(thread));
      } else {
        Abort(thread.status());
      }
    }
    return threads;
  }

  absl::Status Connect(size_t mesh, SteadyTime deadline) {
    const MeshPlan& plan = connection_.plans[mesh];
    RETURN_IF_ERROR(ConnectMesh(*meshes_[mesh], plan, books_));
    const absl::Status status = ExchangeTags(*meshes_[mesh], TagOf(connection_, plan), deadline);
    return absl::IsDeadlineExceeded(status) ? absl::UnavailableError(status.message()) : status;
  }

  void Finish(const absl::Status& status) {
    absl::MutexLock lock(&mu_);
    --left_;
    status_.Update(status);
    changed_.SignalAll();
  }

  bool AllConnected(SteadyTime deadline) {
    absl::MutexLock lock(&mu_);
    while (left_ > 0 && status_.ok() && !changed_.WaitUntil(&mu_, deadline)) {
    }
    return left_ == 0 && status_.ok();
  }

  const MeshConnection& connection_;
  const Meshes& meshes_;
  const AddressBooks& books_;

  absl::Mutex mu_;
  SteadyCondVar changed_;
  size_t left_ ABSL_GUARDED_BY(mu_);
  absl::Status status_ ABSL_GUARDED_BY(mu_);
};

}  // namespace

absl::StatusOr<Meshes> ConnectMeshes(const MeshConnection& connection) {
  const SteadyTime deadline = SteadyDeadline(connection.timeout);
  ASSIGN_OR_RETURN(Meshes meshes, Listen(connection));
  ASSIGN_OR_RETURN(const auto books, ShareBooks(connection, meshes, deadline));
  RETURN_IF_ERROR(TryLinks(connection, books, deadline));
  ParallelConnect connect(connection, meshes, books);
  {
    const ConnectAbort::Hook hook(connection.abort, [&](const absl::Status& status) { connect.Abort(status); });
    RETURN_IF_ERROR(connect.Run(deadline));
  }
  return meshes;
}

absl::StatusOr<std::string> AwaitValue(const MeshConnection& connection, int node, absl::string_view key,
                                       SteadyTime deadline) {
  return Await(connection, deadline, [&](absl::Duration wait) { return connection.rendezvous->Get(node, key, wait); });
}

}  // namespace paramshard::server
