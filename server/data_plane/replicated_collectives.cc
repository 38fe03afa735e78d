#include "server/data_plane/replicated_collectives.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "server/data_plane/daemon_max.h"
#include "server/data_plane/scratch_memory.h"
#include "server/data_plane/sum_chain.h"

namespace paramshard::server {
namespace {

constexpr int64_t kFloatBytes = sizeof(float);

void AddTransfer(int peer, Bytes send, Bytes receive, std::vector<PeerTransfer>& transfers) {
  PeerTransfer transfer{peer, {}, {}};
  if (send.size > 0) transfer.sends.push_back(send);
  if (receive.size > 0) transfer.receives.push_back(receive);
  if (send.size > 0 || receive.size > 0) transfers.push_back(std::move(transfer));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Collectives>> ReplicatedCollectives::Create(const Options& options,
                                                                           std::unique_ptr<Collectives> local,
                                                                           std::unique_ptr<Mesh> replicas) {
  std::unique_ptr<ReplicatedCollectives> engine(
      new ReplicatedCollectives(options, std::move(local), std::move(replicas)));
  RETURN_IF_ERROR(engine->Allocate());
  return std::unique_ptr<Collectives>(std::move(engine));
}

ReplicatedCollectives::ReplicatedCollectives(const Options& options, std::unique_ptr<Collectives> local,
                                             std::unique_ptr<Mesh> replicas)
    : options_(options),
      name_(absl::StrCat(local->name(), "+", replicas->name())),
      local_(std::move(local)),
      replicas_(std::move(replicas)) {}

absl::Status ReplicatedCollectives::Allocate() {
  const int64_t bytes = PartialSumBytes(*options_.model, *options_.layout, options_.rank, replicas_->size());
  ASSIGN_OR_RETURN(partials_, options_.device->Allocate("paramshard-partial-sums", bytes, Sharing::kPrivate));
  ASSIGN_OR_RETURN(queue_, options_.device->MakeQueue());
  return absl::OkStatus();
}

absl::Status ReplicatedCollectives::Gather(const GatherCall& call, Delivered delivered) {
  return local_->Gather(call, delivered);
}

absl::StatusOr<bool> ReplicatedCollectives::GatherDone(const GatherCall& call, Delivered delivered) {
  return local_->GatherDone(call, delivered);
}

void ReplicatedCollectives::Abort(const absl::Status& status) {
  end_.Set(status);
  local_->Abort(status);
  replicas_->Abort(status);
}

absl::Status ReplicatedCollectives::Reduce(const ReduceCall& call) {
  RETURN_IF_ERROR(end_.status());
  absl::Status status = TryReduce(call, SteadyDeadline(options_.timeout));
  if (status.ok()) return status;
  end_.Set(InCommand(status, CommandHeader::Of(call), *options_.model));
  return end_.status();
}

absl::Status ReplicatedCollectives::TryReduce(const ReduceCall& call, SteadyTime deadline) {
  RETURN_IF_ERROR(SumGroup(call));
  RETURN_IF_ERROR(AgreeOnCommand(*replicas_, CommandHeader::Of(call), *options_.model, deadline));
  const int64_t elements = PartialElements(*options_.layout, options_.rank, call.unit);
  return replicas_->size() == 2 ? SumPair(call, elements, deadline) : SumBlocks(call, elements, deadline);
}

absl::Status ReplicatedCollectives::MaxOverDaemons(int64_t number, absl::Span<float> values) {
  RETURN_IF_ERROR(end_.status());
  const absl::Status status = server::MaxOverDaemons(*replicas_, number, values, SteadyDeadline(options_.timeout));
  if (status.ok()) return status;
  end_.Set(status);
  return end_.status();
}

absl::Status ReplicatedCollectives::SendToReplica(int node, absl::Span<const uint8_t> bytes, SteadyTime deadline) {
  // A mesh only reads memory that it sends.
  void* const data = const_cast<uint8_t*>(bytes.data());
  return MoveState({MemberOf(node), {{data, static_cast<int64_t>(bytes.size())}}, {}}, deadline);
}

absl::Status ReplicatedCollectives::ReceiveFromReplica(int node, absl::Span<uint8_t> bytes, SteadyTime deadline) {
  return MoveState({MemberOf(node), {}, {{bytes.data(), static_cast<int64_t>(bytes.size())}}}, deadline);
}

int ReplicatedCollectives::MemberOf(int node) const {
  int member = 0;
  while (replicas_->member(member).node != node) ++member;
  return member;
}

absl::Status ReplicatedCollectives::MoveState(const PeerTransfer& transfer, SteadyTime deadline) {
  RETURN_IF_ERROR(end_.status());
  const absl::Status status = replicas_->host_mesh().Exchange({transfer}, deadline, [](int) {});
  if (status.ok()) return status;
  end_.Set(absl::Status(status.code(), absl::StrCat("state of a replica: ", status.message())));
  return end_.status();
}

float* ReplicatedCollectives::Received() const {
  return Partials() + LargestPartialElements(*options_.model, *options_.layout, options_.rank);
}

absl::Status ReplicatedCollectives::SumGroup(const ReduceCall& call) {
  const size_t parameters = call.accumulators.size();
  std::vector<MutableGradient> partials(parameters);
  float* partial = Partials();
  for (const GradientSlice& slice : options_.layout->Slices(call.unit, options_.rank)) {
    const bool present = call.accumulators[slice.parameter].data != nullptr;
    if (present) partials[slice.parameter] = partial;
    partial += slice.elements;
  }
  const std::unique_ptr<bool[]> overwrite(new bool[parameters]);
  std::fill_n(overwrite.get(), parameters, true);
  ReduceCall in_group = call;
  in_group.accumulators = partials;
  in_group.overwrite = absl::MakeConstSpan(overwrite.get(), parameters);
  return local_->Reduce(in_group);
}

// Blocks would move as many bytes, but wait twice.
absl::Status ReplicatedCollectives::SumPair(const ReduceCall& call, int64_t elements, SteadyTime deadline) {
  const int self = replicas_->self();
  std::vector<PeerTransfer> transfers;
  AddTransfer(1 - self, {Partials(), elements * kFloatBytes}, {Received(), elements * kFloatBytes}, transfers);
  RETURN_IF_ERROR(replicas_->Exchange(transfers, deadline, [](int) {}));
  std::vector<const float*> partials = {Partials(), Received()};
  if (self == 1) std::swap(partials[0], partials[1]);
  return Accumulate(call, {}, std::move(partials));
}

absl::Status ReplicatedCollectives::SumBlocks(const ReduceCall& call, int64_t elements, SteadyTime deadline) {
  const int self = replicas_->self();
  const ReplicaBlocks blocks(elements, replicas_->size());
  RETURN_IF_ERROR(replicas_->Exchange(ScatterTransfers(blocks), deadline, [](int) {}));
  RETURN_IF_ERROR(SumOwnBlock(blocks));
  RETURN_IF_ERROR(replicas_->Exchange(GatherTransfers(blocks), deadline, [](int) {}));
  std::vector<DeviceQueue::CopyTask> own;
  if (blocks.size(self) > 0) {
    own.push_back({Partials() + blocks.begin(self), ReceivedBlock(self, blocks), blocks.size(self) * kFloatBytes});
  }
  return Accumulate(call, own, {Partials()});
}

float* ReplicatedCollectives::ReceivedBlock(int node, const ReplicaBlocks& blocks) const {
  return Received() + node * blocks.block_elements();
}

std::vector<PeerTransfer> ReplicatedCollectives::ScatterTransfers(const ReplicaBlocks& blocks) const {
  const int self = replicas_->self();
  std::vector<PeerTransfer> transfers;
  for (int step = 1; step < replicas_->size(); ++step) {
    const int peer = (self + step) % replicas_->size();
    AddTransfer(peer, {Partials() + blocks.begin(peer), blocks.size(peer) * kFloatBytes},
                {ReceivedBlock(peer, blocks), blocks.size(self) * kFloatBytes}, transfers);
  }
  return transfers;
}

std::vector<PeerTransfer> ReplicatedCollectives::GatherTransfers(const ReplicaBlocks& blocks) const {
  const int self = replicas_->self();
  std::vector<PeerTransfer> transfers;
  for (int step = 1; step < replicas_->size(); ++step) {
    const int peer = (self + step) % replicas_->size();
    AddTransfer(peer, {ReceivedBlock(self, blocks), blocks.size(self) * kFloatBytes},
                {Partials() + blocks.begin(peer), blocks.size(peer) * kFloatBytes}, transfers);
  }
  return transfers;
}

absl::Status ReplicatedCollectives::SumOwnBlock(const ReplicaBlocks& blocks) {
  const int self = replicas_->self();
  if (blocks.size(self) == 0) return absl::OkStatus();
  SumTask sum{.sources = {},
              .type = GradientType::kFP32,
              .count = blocks.size(self),
              .overwrite = true,
              .accumulator = ReceivedBlock(self, blocks)};
  for (int node = 0; node < replicas_->size(); ++node) {
    sum.sources.push_back(node == self ? Partials() + blocks.begin(self) : ReceivedBlock(node, blocks));
  }
  return SumInChain(*queue_, absl::MakeConstSpan(&sum, 1), options_.most_sum_sources);
}

absl::Status ReplicatedCollectives::Accumulate(const ReduceCall& call, absl::Span<const DeviceQueue::CopyTask> copies,
                                               std::vector<const float*> parts) {
  std::vector<SumTask> sums;
  for (const GradientSlice& slice : options_.layout->Slices(call.unit, options_.rank)) {
    if (const MutableGradient accumulator = call.accumulators[slice.parameter]; accumulator.data != nullptr) {
      sums.push_back({{parts.begin(), parts.end()},
                      GradientType::kFP32,
                      slice.elements,
                      call.overwrite[slice.parameter],
                      accumulator});
    }
    for (const float*& part : parts) part += slice.elements;
  }
  return queue_->Run(copies, sums);
}

}  // namespace paramshard::server
