#include "server/collective/replicated_collectives.h"

#include <algorithm>
#include <utility>

#include "absl/time/clock.h"
#include "kernels/base/status_macros.h"

namespace paramshard::server {

ReplicatedCollectives::ReplicatedCollectives(LocalGroup group, int rank, std::unique_ptr<TcpMesh> replicas,
                                             absl::Duration timeout)
    : group_(std::move(group)), rank_(rank), timeout_(timeout), local_(group_, rank), replicas_(std::move(replicas)) {
  int64_t largest = 0;
  for (size_t unit = 0; unit < group_.model->units.size(); ++unit) {
    largest = std::max(largest, ExtentElements(static_cast<int>(unit)));
  }
  partials_.resize(largest * replicas_->size());
}

absl::Status ReplicatedCollectives::Gather(const GatherCall& call,
                                           absl::FunctionRef<void(int rank, int source)> delivered) {
  return local_.Gather(call, delivered);
}

void ReplicatedCollectives::Abort(const absl::Status& status) {
  end_.Set(status);
  local_.Abort(status);
  replicas_->Abort(status);
}

absl::Status ReplicatedCollectives::Reduce(const ReduceCall& call) {
  RETURN_IF_ERROR(end_.status());
  absl::Status status = TryReduce(call, absl::Now() + timeout_);
  if (status.ok()) return status;
  end_.Set(InCommand(status, CommandHeader::Of(call), *group_.model));
  return end_.status();
}

absl::Status ReplicatedCollectives::TryReduce(const ReduceCall& call, absl::Time deadline) {
  SumGroup(call);
  RETURN_IF_ERROR(AgreeOnCommand(*replicas_, CommandHeader::Of(call), *group_.model, deadline));
  RETURN_IF_ERROR(replicas_->Exchange(Transfers(call.unit), deadline, [](int) {}));
  SumReplicas(call);
  return absl::OkStatus();
}

int64_t ReplicatedCollectives::ExtentElements(int unit) const {
  int64_t elements = 0;
  for (const GradientSlice& slice : group_.layout->Slices(unit, rank_)) elements += slice.elements;
  return elements;
}

void ReplicatedCollectives::SumGroup(const ReduceCall& call) {
  float* partial = Partial(replicas_->self(), call.unit);
  for (const GradientSlice& slice : group_.layout->Slices(call.unit, rank_)) {
    const bool present = call.accumulators[slice.parameter] != nullptr;
    if (present) group_.SumSlice(call, slice, /*overwrite=*/true, partial);
    partial += slice.elements;
  }
}

// Parts of absent parameters travel too: sizes then never depend on anything but the layout.
std::vector<PeerTransfer> ReplicatedCollectives::Transfers(int unit) {
  const int64_t bytes = ExtentElements(unit) * static_cast<int64_t>(sizeof(float));
  std::vector<PeerTransfer> transfers;
  if (bytes == 0) return transfers;
  for (int step = 1; step < replicas_->size(); ++step) {
    const int peer = (replicas_->self() + step) % replicas_->size();
    transfers.push_back({peer, {{Partial(replicas_->self(), unit), bytes}}, {{Partial(peer, unit), bytes}}});
  }
  return transfers;
}

void ReplicatedCollectives::SumReplicas(const ReduceCall& call) {
  int64_t offset = 0;
  for (const GradientSlice& slice : group_.layout->Slices(call.unit, rank_)) {
    if (float* const accumulator = call.accumulators[slice.parameter]; accumulator != nullptr) {
      std::vector<const void*> sources(replicas_->size());
      for (int node = 0; node < replicas_->size(); ++node) {
        sources[node] = Partial(node, call.unit) + offset;
      }
      SumGradients(sources, GradientType::kFP32, slice.elements, call.overwrite[slice.parameter], accumulator);
    }
    offset += slice.elements;
  }
}

}  // namespace paramshard::server
