#include "server/collective/mesh_connector.h"

#include <algorithm>
#include <condition_variable>
#include <map>
#include <mutex>
#include <set>
#include <thread>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "kernels/base/status_macros.h"
#include "server/base/steady_time.h"

namespace paramshard::server {
namespace {

// The rendezvous knows nothing of an abort: for so long it is waited for between two looks.
constexpr absl::Duration kAbortLatency = absl::Milliseconds(500);

using Meshes = std::vector<std::unique_ptr<TcpMesh>>;
// Of one daemon: for each of its meshes the addresses that it has for each member; empty for
// itself.
using AddressBook = std::vector<std::vector<std::string>>;

std::string BookKey(int node) { return absl::StrCat("meshes/", node); }

std::string EncodeBook(const AddressBook& book) {
  return absl::StrJoin(book, ";", [](std::string* out, const std::vector<std::string>& addresses) {
    absl::StrAppend(out, absl::StrJoin(addresses, ",", [](std::string* hex, const std::string& address) {
                      absl::StrAppend(hex, absl::BytesToHexString(address));
                    }));
  });
}

AddressBook DecodeBook(absl::string_view text) {
  AddressBook book;
  for (absl::string_view line : absl::StrSplit(text, ';')) {
    std::vector<std::string>& addresses = book.emplace_back();
    for (absl::string_view hex : absl::StrSplit(line, ',')) addresses.push_back(absl::HexStringToBytes(hex));
  }
  return book;
}

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

AddressBook OwnBook(const Meshes& meshes) {
  AddressBook book;
  for (const auto& mesh : meshes) {
    std::vector<std::string>& addresses = book.emplace_back();
    for (int peer = 0; peer < mesh->size(); ++peer) {
      addresses.push_back(peer == mesh->self() ? "" : mesh->AddressFor(peer));
    }
  }
  return book;
}

absl::StatusOr<AddressBook> GetBook(const MeshConnection& connection, int node, absl::Time deadline) {
  const absl::StatusOr<std::string> text = AwaitValue(connection, BookKey(node), deadline);
  if (text.ok()) return DecodeBook(*text);
  if (!absl::IsDeadlineExceeded(text.status())) return text.status();
  return absl::UnavailableError(
      absl::StrCat("node ", node, " expected within ", absl::FormatDuration(connection.timeout), ", it did not come"));
}

absl::StatusOr<std::map<int, AddressBook>> ShareBooks(const MeshConnection& connection, const Meshes& meshes,
                                                      absl::Time deadline) {
  std::set<int> nodes;
  for (const MeshPlan& plan : connection.plans) {
    for (const MeshPlan::Peer& peer : plan.members) nodes.insert(peer.member.node);
  }
  std::map<int, AddressBook> books;
  books[connection.node] = OwnBook(meshes);
  RETURN_IF_ERROR(connection.rendezvous->Put(BookKey(connection.node), EncodeBook(books[connection.node])));
  for (int node : nodes) {
    if (node == connection.node) continue;
    ASSIGN_OR_RETURN(books[node], GetBook(connection, node, deadline));
  }
  return books;
}

absl::StatusOr<std::string> FindAddress(const std::map<int, AddressBook>& books, const MeshPlan::Peer& peer, int self) {
  const AddressBook& book = books.at(peer.member.node);
  if (peer.mesh < static_cast<int>(book.size()) && self < static_cast<int>(book[peer.mesh].size())) {
    return book[peer.mesh][self];
  }
  return absl::InternalError(absl::StrCat(MemberName(peer.member), ": its daemon has sent no address for it"));
}

absl::Status ConnectMesh(TcpMesh& mesh, const MeshPlan& plan, const std::map<int, AddressBook>& books) {
  for (int peer = 0; peer < mesh.size(); ++peer) {
    if (peer == plan.self) continue;
    ASSIGN_OR_RETURN(const std::string address, FindAddress(books, plan.members[peer], plan.self));
    RETURN_IF_ERROR(mesh.Connect(peer, address));
  }
  return absl::OkStatus();
}

// Connects meshes on a thread each: a member that listens waits for one that connects, which may be
// in the same daemon.
class ParallelConnect {
 public:
  ParallelConnect(const MeshConnection& connection, const Meshes& meshes, const std::map<int, AddressBook>& books)
      : meshes_(meshes), left_(meshes.size()) {
    for (size_t i = 0; i < meshes.size(); ++i) {
      threads_.emplace_back(
          [this, &books, &mesh = *meshes[i], &plan = connection.plans[i]] { Finish(ConnectMesh(mesh, plan, books)); });
    }
  }

  // The first error. At the deadline, and at the first error, all meshes close.
  absl::Status Wait(absl::Time deadline) {
    if (!AllConnected(deadline)) {
      for (const auto& mesh : meshes_) mesh->Close();
    }
    for (std::thread& thread : threads_) thread.join();
    return status_;
  }

  // As if a connection had failed.
  void Abort(const absl::Status& status) {
    std::lock_guard<std::mutex> lock(mu_);
    status_.Update(status);
    changed_.notify_all();
  }

 private:
  void Finish(const absl::Status& status) {
    std::lock_guard<std::mutex> lock(mu_);
    --left_;
    status_.Update(status);
    changed_.notify_all();
  }

  bool AllConnected(absl::Time deadline) {
    std::unique_lock<std::mutex> lock(mu_);
    changed_.wait_until(lock, SteadyDeadline(deadline - absl::Now()), [this] { return left_ == 0 || !status_.ok(); });
    return left_ == 0 && status_.ok();
  }

  const Meshes& meshes_;
  std::mutex mu_;
  std::condition_variable changed_;
  // Guarded by mu_.
  size_t left_ ABSL_GUARDED_BY(mu_);
  absl::Status status_ ABSL_GUARDED_BY(mu_);

  std::vector<std::thread> threads_;  // last: they use the rest
};

}  // namespace

absl::StatusOr<Meshes> ConnectMeshes(const MeshConnection& connection) {
  const absl::Time deadline = absl::Now() + connection.timeout;
  ASSIGN_OR_RETURN(Meshes meshes, Listen(connection));
  ASSIGN_OR_RETURN(const auto books, ShareBooks(connection, meshes, deadline));
  ParallelConnect connect(connection, meshes, books);
  {
    const ConnectAbort::Hook hook(connection.abort, [&](const absl::Status& status) { connect.Abort(status); });
    RETURN_IF_ERROR(connect.Wait(deadline));
  }
  return meshes;
}

absl::StatusOr<std::string> AwaitValue(const MeshConnection& connection, absl::string_view key, absl::Time deadline) {
  while (true) {
    const absl::Duration left = deadline - absl::Now();
    absl::StatusOr<std::string> value = connection.rendezvous->Get(key, std::min(left, kAbortLatency));
    if (value.ok() || !absl::IsDeadlineExceeded(value.status()) || left <= kAbortLatency) return value;
    if (connection.abort != nullptr) RETURN_IF_ERROR(connection.abort->status());
  }
}

}  // namespace paramshard::server
