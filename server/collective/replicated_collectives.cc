#include "server/collective/replicated_collectives.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "server/collective/daemon_max.h"
#include "server/collective/scratch_memory.h"

namespace paramshard::server {

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
  RETURN_IF_ERROR(replicas_->Exchange(Transfers(call.unit), deadline, [](int) {}));
  return SumReplicas(call);
}

absl::Status ReplicatedCollectives::MaxOverDaemons(int64_t number, absl::Span<float> values) {
  RETURN_IF_ERROR(end_.status());
  const absl::Status status = server::MaxOverDaemons(*replicas_, number, values, SteadyDeadline(options_.timeout));
  if (status.ok()) return status;
  end_.Set(status);
  return end_.status();
}

int64_t ReplicatedCollectives::ExtentElements(int unit) const {
  int64_t elements = 0;
  for (const GradientSlice& slice : options_.layout->Slices(unit, options_.rank)) elements += slice.elements;
  return elements;
}

float* ReplicatedCollectives::Partial(int node, int unit) const {
  return reinterpret_cast<float*>(partials_.data()) + node * ExtentElements(unit);
}

absl::Status ReplicatedCollectives::SumGroup(const ReduceCall& call) {
  const size_t parameters = call.accumulators.size();
  std::vector<MutableGradient> partials(parameters);
  float* partial = Partial(replicas_->self(), call.unit);
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

// Parts of absent parameters travel too: sizes then never depend on anything but the layout.
std::vector<PeerTransfer> ReplicatedCollectives::Transfers(int unit) const {
  const int64_t bytes = ExtentElements(unit) * static_cast<int64_t>(sizeof(float));
  std::vector<PeerTransfer> transfers;
  if (bytes == 0) return transfers;
  for (int step = 1; step < replicas_->size(); ++step) {
    const int peer = (replicas_->self() + step) % replicas_->size();
    transfers.push_back({peer, {{Partial(replicas_->self(), unit), bytes}}, {{Partial(peer, unit), bytes}}});
  }
  return transfers;
}

absl::Status ReplicatedCollectives::SumReplicas(const ReduceCall& call) {
  std::vector<SumTask> sums;
  int64_t offset = 0;
  for (const GradientSlice& slice : options_.layout->Slices(call.unit, options_.rank)) {
    if (const MutableGradient accumulator = call.accumulators[slice.parameter]; accumulator.data != nullptr) {
      std::vector<const void*> sources(replicas_->size());
      for (int node = 0; node < replicas_->size(); ++node) {
        sources[node] = Partial(node, call.unit) + offset;
      }
      sums.push_back(
          {std::move(sources), GradientType::kFP32, slice.elements, call.overwrite[slice.parameter], accumulator});
    }
    offset += slice.elements;
  }
  return queue_->Sum(sums);
}

}  // namespace paramshard::server
