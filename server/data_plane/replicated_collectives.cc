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

absl::StatusOr<std::vector<int32_t>> ReplicatedCollectives::Reduce(const ReduceCall& call) {
  RETURN_IF_ERROR(end_.status());
  absl::StatusOr<std::vector<int32_t>> absent = TryReduce(call, SteadyDeadline(options_.timeout));
  if (absent.ok()) return absent;
  end_.Set(InCommand(absent.status(), CommandHeader::Of(call), *options_.model));
  return end_.status();
}

absl::StatusOr<std::vector<int32_t>> ReplicatedCollectives::TryReduce(const ReduceCall& call, SteadyTime deadline) {
  ASSIGN_OR_RETURN(const std::vector<int32_t> absent_here, SumGroup(call));
  ASSIGN_OR_RETURN(const AbsentGradients absent, AgreeOnPush(*replicas_, call, absent_here, *options_.model, deadline));
  const int64_t elements = PartialElements(*options_.layout, options_.rank, call.unit);
  RETURN_IF_ERROR(replicas_->size() == 2 ? SumPair(call, elements, absent, deadline)
                                         : SumBlocks(call, elements, absent, deadline));
  return absent.OnAllMembers();
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

absl::StatusOr<std::vector<int32_t>> ReplicatedCollectives::SumGroup(const ReduceCall& call) {
  const size_t parameters = call.accumulators.size();
  std::vector<MutableGradient> partials(parameters);
  float* partial = Partials();
  for (const GradientSlice& slice : options_.layout->Slices(call.unit, options_.rank)) {
    partials[slice.parameter] = partial;
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
absl::Status ReplicatedCollectives::SumPair(const ReduceCall& call, int64_t elements, const AbsentGradients& absent,
                                            SteadyTime deadline) {
  const int self = replicas_->self();
  std::vector<PeerTransfer> transfers;
  AddTransfer(1 - self, {Partials(), elements * kFloatBytes}, {Received(), elements * kFloatBytes}, transfers);
  RETURN_IF_ERROR(replicas_->Exchange(transfers, deadline, [](int) {}));
  std::vector<const float*> partials = {Partials(), Received()};
  if (self == 1) std::swap(partials[0], partials[1]);
  return Accumulate(call, {}, std::move(partials), absent);
}

absl::Status ReplicatedCollectives::SumBlocks(const ReduceCall& call, int64_t elements, const AbsentGradients& absent,
                                              SteadyTime deadline) {
  const int self = replicas_->self();
  const ReplicaBlocks blocks(elements, replicas_->size());
  RETURN_IF_ERROR(replicas_->Exchange(ScatterTransfers(blocks), deadline, [](int) {}));
  RETURN_IF_ERROR(SumOwnBlock(call.unit, blocks, absent));
  RETURN_IF_ERROR(replicas_->Exchange(GatherTransfers(blocks), deadline, [](int) {}));
  std::vector<DeviceQueue::CopyTask> own;
  if (blocks.size(self) > 0) {
    own.push_back({Partials() + blocks.begin(self), ReceivedBlock(self, blocks), blocks.size(self) * kFloatBytes});
  }
  AbsentGradients absent_in_sum(/*members=*/1, static_cast<int>(call.accumulators.size()));
  absent_in_sum.Add(0, absent.OnAllMembers());
  return Accumulate(call, own, {Partials()}, absent_in_sum);
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

absl::Status ReplicatedCollectives::SumOwnBlock(int unit, const ReplicaBlocks& blocks, const AbsentGradients& absent) {
  const int self = replicas_->self();
  const int64_t begin = blocks.begin(self), end = begin + blocks.size(self);
  std::vector<SumTask> sums;
  // Adds the sum over a part of the block. `parameter`: -1 for parts of all parameters.
  const auto add = [&](int64_t first, int64_t last, int parameter) {
    if (first >= last) return;
    SumTask sum{.sources = {},
                .type = GradientType::kFP32,
                .count = last - first,
                .overwrite = true,
                .accumulator = ReceivedBlock(self, blocks) + (first - begin)};
    for (int node = 0; node < replicas_->size(); ++node) {
      if (parameter >= 0 && absent.Has(node, parameter)) continue;
      sum.sources.push_back(node == self ? Partials() + first : ReceivedBlock(node, blocks) + (first - begin));
    }
    if (!sum.sources.empty()) sums.push_back(std::move(sum));
  };
  if (absent.empty()) {
    add(begin, end, -1);
  } else {
    int64_t first = 0;
    for (const GradientSlice& slice : options_.layout->Slices(unit, options_.rank)) {
      add(std::max(first, begin), std::min(first + slice.elements, end), slice.parameter);
      first += slice.elements;
    }
  }
  return sums.empty() ? absl::OkStatus() : SumInChain(*queue_, sums, options_.most_sum_sources);
}

absl::Status ReplicatedCollectives::Accumulate(const ReduceCall& call, absl::Span<const DeviceQueue::CopyTask> copies,
                                               std::vector<const float*> parts, const AbsentGradients& absent) {
  std::vector<SumTask> sums;
  for (const GradientSlice& slice : options_.layout->Slices(call.unit, options_.rank)) {
    std::vector<const void*> present;
    for (size_t part = 0; part < parts.size(); ++part) {
      if (!absent.Has(static_cast<int>(part), slice.parameter)) present.push_back(parts[part]);
      parts[part] += slice.elements;
    }
    if (present.empty()) continue;
    sums.push_back({std::move(present), GradientType::kFP32, slice.elements, call.overwrite[slice.parameter],
                    call.accumulators[slice.parameter]});
  }
  return queue_->Run(copies, sums);
}

}  // namespace paramshard::server
