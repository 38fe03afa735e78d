#include "server/data_plane/nccl_mesh.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "kernels/base/status_macros.h"
#include "kernels/gpu/memory.h"

namespace paramshard::server {
namespace {

// The pause between two looks at the GPU.
constexpr absl::Duration kNap = absl::Microseconds(20);
// Bytes that members send each other when they connect.
constexpr int64_t kGreetingBytes = 16;

}  // namespace

absl::StatusOr<std::unique_ptr<NcclMesh>> NcclMesh::Create(const gpu::Nccl& nccl, int device,
                                                           std::unique_ptr<TcpMesh> host_mesh) {
  ASSIGN_OR_RETURN(gpu::Stream stream, gpu::Stream::Create(device));
  return std::unique_ptr<NcclMesh>(new NcclMesh(nccl, std::move(stream), std::move(host_mesh)));
}

NcclMesh::NcclMesh(const gpu::Nccl& nccl, gpu::Stream stream, std::unique_ptr<TcpMesh> host_mesh)
    : Mesh(host_mesh->members(), host_mesh->self()),
      nccl_(nccl),
      host_mesh_(std::move(host_mesh)),
      stream_(std::move(stream)) {}

void NcclMesh::Abort(const absl::Status& status) {
  end_.Set(status);  // seen by the thread that waits for the GPU
  host_mesh_->Abort(status);
}

absl::Status NcclMesh::End(const absl::Status& status) {
  end_.Set(status);
  communicator_.Abort();
  (void)stream_.Synchronize();
  host_mesh_->Abort(end_.status());
  host_mesh_->Close();
  return end_.status();
}

absl::Status NcclMesh::Connect(absl::string_view id, SteadyTime deadline) {
  const int device = stream_.device();
  ASSIGN_OR_RETURN(const auto greetings,
                   gpu::DeviceMemory::Create(device, 2 * kGreetingBytes * size(), {device}, /*shareable=*/false));
  std::vector<PeerTransfer> transfers;
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == self()) continue;
    uint8_t* const greeting = greetings.data() + 2 * kGreetingBytes * peer;
    transfers.push_back({peer, {{greeting, kGreetingBytes}}, {{greeting + kGreetingBytes, kGreetingBytes}}});
  }
  const absl::Status status = TryConnect(id, transfers, deadline);
  return status.ok() ? status : End(status);
}

absl::Status NcclMesh::TryConnect(absl::string_view id, absl::Span<const PeerTransfer> greetings, SteadyTime deadline) {
  RETURN_IF_ERROR(end_.status());
  ASSIGN_OR_RETURN(communicator_, gpu::NcclCommunicator::Join(nccl_, stream_.device(), id, self(), size()));
  RETURN_IF_ERROR(AwaitReady(PeerNames(greetings), deadline));
  return TryExchange(greetings, deadline);
}

absl::Status NcclMesh::Exchange(absl::Span<const PeerTransfer> transfers, SteadyTime deadline,
                                absl::FunctionRef<void(int peer)> received) {
  const absl::Status status = TryExchange(transfers, deadline);
  if (!status.ok()) return End(status);
  for (const PeerTransfer& transfer : transfers) received(transfer.peer);
  return absl::OkStatus();
}

absl::Status NcclMesh::TryExchange(absl::Span<const PeerTransfer> transfers, SteadyTime deadline) {
  using Operation = gpu::NcclCommunicator::Operation;
  RETURN_IF_ERROR(end_.status());
  std::vector<Operation> operations;
  const auto add = [&](Operation::Kind kind, int peer, const Bytes& bytes) {
    if (bytes.size > 0) operations.push_back({kind, peer, bytes.data, bytes.size});
  };
  for (const PeerTransfer& transfer : transfers) {
    for (const Bytes& bytes : transfer.receives) add(Operation::Kind::kReceive, transfer.peer, bytes);
    for (const Bytes& bytes : transfer.sends) add(Operation::Kind::kSend, transfer.peer, bytes);
  }
  if (operations.empty()) return absl::OkStatus();
  const std::string peers = PeerNames(transfers);
  const gpu::DeviceScope scope(stream_.device());
  RETURN_IF_ERROR(communicator_.Enqueue(operations, stream_.get()));
  RETURN_IF_ERROR(AwaitReady(peers, deadline));
  // Errors of other members show at the communicator, errors of this GPU at the stream.
  const auto is_done = [&]() -> absl::StatusOr<bool> {
    ASSIGN_OR_RETURN(const bool ready, communicator_.Ready());
    ASSIGN_OR_RETURN(const bool idle, stream_.IsIdle());
    return ready && idle;
  };
  return Await(is_done, peers, deadline);
}

absl::Status NcclMesh::AwaitReady(const std::string& peers, SteadyTime deadline) const {
  return Await([this] { return communicator_.Ready(); }, peers, deadline);
}

absl::Status NcclMesh::Await(absl::FunctionRef<absl::StatusOr<bool>()> is_done, const std::string& peers,
                             SteadyTime deadline) const {
  for (;;) {
    RETURN_IF_ERROR(end_.status());
    const absl::StatusOr<bool> done = is_done();
    if (!done.ok()) {
      return absl::Status(done.status().code(), absl::StrCat("with ", peers, ": ", done.status().message()));
    }
    if (*done) return absl::OkStatus();
    if (SteadyNow() >= deadline) {
      return absl::DeadlineExceededError(absl::StrCat("NCCL: timed out waiting for ", peers));
    }
    absl::SleepFor(kNap);
  }
}

std::string NcclMesh::PeerNames(absl::Span<const PeerTransfer> transfers) const {
  return absl::StrJoin(transfers, ", ", [this](std::string* out, const PeerTransfer& transfer) {
    absl::StrAppend(out, MemberName(member(transfer.peer)));
  });
}

}  // namespace paramshard::server
