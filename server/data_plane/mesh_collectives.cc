#include "server/data_plane/mesh_collectives.h"

#include <utility>

#include "kernels/base/status_macros.h"
#include "server/data_plane/daemon_max.h"
#include "server/data_plane/scratch_memory.h"
#include "server/data_plane/sum_chain.h"

namespace paramshard::server {

absl::StatusOr<std::unique_ptr<Collectives>> MeshCollectives::Create(const Options& options,
                                                                     std::unique_ptr<Mesh> gather,
                                                                     std::unique_ptr<Mesh> reduce) {
  std::unique_ptr<MeshCollectives> engine(new MeshCollectives(options, std::move(gather), std::move(reduce)));
  RETURN_IF_ERROR(engine->Allocate());
  return std::unique_ptr<Collectives>(std::move(engine));
}

MeshCollectives::MeshCollectives(const Options& options, std::unique_ptr<Mesh> gather, std::unique_ptr<Mesh> reduce)
    : options_(options), gather_(std::move(gather)), reduce_(std::move(reduce)) {}

absl::Status MeshCollectives::Allocate() {
  ComputeDevice& device = *options_.memory.device;
  const int64_t receive_bytes = ReceiveMemoryBytes(*options_.model, *options_.layout, rank(), kMeshSliceAlignment);
  ASSIGN_OR_RETURN(received_, device.Allocate("paramshard-receive", receive_bytes, Sharing::kPrivate));
  const int64_t chained_bytes =
      ChainedSumBytes(*options_.model, *options_.layout, rank(), ranks(), options_.most_sum_sources);
  if (chained_bytes > 0) {
    ASSIGN_OR_RETURN(chained_, device.Allocate("paramshard-chained-sums", chained_bytes, Sharing::kPrivate));
  }
  ASSIGN_OR_RETURN(gather_queue_, device.MakeQueue());
  ASSIGN_OR_RETURN(reduce_queue_, device.MakeQueue());
  return absl::OkStatus();
}

void MeshCollectives::Abort(const absl::Status& status) {
  end_.Set(status);
  gather_->Abort(status);
  reduce_->Abort(status);
}

absl::Status MeshCollectives::Settle(const absl::Status& status, const CommandHeader& header) {
  if (status.ok()) return status;
  end_.Set(InCommand(status, header, *options_.model));
  return end_.status();
}

// Gather.

absl::Status MeshCollectives::Gather(const GatherCall& call, Delivered delivered) {
  RETURN_IF_ERROR(end_.status());
  return Settle(TryGather(call, SteadyDeadline(options_.timeout), delivered), CommandHeader::Of(call));
}

absl::Status MeshCollectives::TryGather(const GatherCall& call, SteadyTime deadline, Delivered delivered) {
  RETURN_IF_ERROR(AgreeOnCommand(*gather_, CommandHeader::Of(call), *options_.model, deadline));
  RETURN_IF_ERROR(LandOwnPieces(call));
  delivered(rank(), rank());
  return gather_->Exchange(GatherTransfers(call), deadline, [&](int source) { delivered(rank(), source); });
}

absl::Status MeshCollectives::LandOwnPieces(const GatherCall& call) {
  uint8_t* const slot = options_.memory.slots + options_.layout->slot_offsets()[call.slot];
  std::vector<DeviceQueue::CopyTask> copies;
  for (const PieceCopy& piece : options_.layout->Pieces(call.unit, call.phase, rank())) {
    copies.push_back({slot + piece.target, options_.memory.arena + piece.source, piece.bytes});
  }
  return gather_queue_->Copy(copies);
}

std::vector<PeerTransfer> MeshCollectives::GatherTransfers(const GatherCall& call) {
  uint8_t* const slot = options_.memory.slots + options_.layout->slot_offsets()[call.slot];
  // A mesh only reads memory that it sends.
  uint8_t* const arena = const_cast<uint8_t*>(options_.memory.arena);
  std::vector<Bytes> own;
  for (const PieceCopy& piece : options_.layout->Pieces(call.unit, call.phase, rank())) {
    own.push_back({arena + piece.source, piece.bytes});
  }
  std::vector<PeerTransfer> transfers;
  for (int step = 1; step < ranks(); ++step) {
    const int peer = (rank() + step) % ranks();
    PeerTransfer& transfer = transfers.emplace_back(PeerTransfer{peer, own, {}});
    for (const PieceCopy& piece : options_.layout->Pieces(call.unit, call.phase, peer)) {
      transfer.receives.push_back({slot + piece.target, piece.bytes});
    }
  }
  return transfers;
}

// Reduce.

absl::StatusOr<std::vector<int32_t>> MeshCollectives::Reduce(const ReduceCall& call) {
  RETURN_IF_ERROR(end_.status());
  absl::StatusOr<std::vector<int32_t>> absent = TryReduce(call, SteadyDeadline(options_.timeout));
  RETURN_IF_ERROR(Settle(absent.status(), CommandHeader::Of(call)));
  return absent;
}

absl::StatusOr<std::vector<int32_t>> MeshCollectives::TryReduce(const ReduceCall& call, SteadyTime deadline) {
  const absl::Span<const int32_t> own =
      call.absent.empty() ? absl::Span<const int32_t>() : call.absent[options_.local_rank];
  ASSIGN_OR_RETURN(const AbsentGradients absent, AgreeOnPush(*reduce_, call, own, *options_.model, deadline));
  RETURN_IF_ERROR(reduce_->Exchange(ReduceTransfers(call, absent), deadline, [](int) {}));
  RETURN_IF_ERROR(Sum(call, absent));
  return absent.OnAllMembers();
}

std::vector<PeerTransfer> MeshCollectives::ReduceTransfers(const ReduceCall& call, const AbsentGradients& absent) {
  uint8_t* const slot = GradientSlot(call.slot);
  const std::vector<GradientSlice> own = options_.layout->Slices(call.unit, rank());
  std::vector<PeerTransfer> transfers;
  for (int step = 1; step < ranks(); ++step) {
    const int peer = (rank() + step) % ranks();
    PeerTransfer& transfer = transfers.emplace_back(PeerTransfer{peer, {}, {}});
    for (const GradientSlice& slice : options_.layout->Slices(call.unit, peer)) {
      if (absent.Has(rank(), slice.parameter)) continue;
      transfer.sends.push_back({slot + slice.slot_offset, GradientSliceBytes(call.unit, slice)});
    }
    uint8_t* received = ReceivedFrom(peer, call.unit);
    for (const GradientSlice& slice : own) {
      const int64_t bytes = GradientSliceBytes(call.unit, slice);
      if (!absent.Has(peer, slice.parameter)) transfer.receives.push_back({received, bytes});
      received += Padded(bytes, kMeshSliceAlignment);
    }
  }
  return transfers;
}

absl::Status MeshCollectives::Sum(const ReduceCall& call, const AbsentGradients& absent) {
  std::vector<SumTask> sums;
  int64_t offset = 0;
  for (const GradientSlice& slice : options_.layout->Slices(call.unit, rank())) {
    std::vector<const void*> sources;
    for (int source = 0; source < ranks(); ++source) {
      if (absent.Has(source, slice.parameter)) continue;
      sources.push_back(source == rank() ? GradientSlot(call.slot) + slice.slot_offset
                                         : ReceivedFrom(source, call.unit) + offset);
    }
    if (!sources.empty()) {
      sums.push_back({std::move(sources), options_.model->units[call.unit].parameters[slice.parameter].gradient_type,
                      slice.elements, call.overwrite[slice.parameter], call.accumulators[slice.parameter]});
    }
    offset += Padded(GradientSliceBytes(call.unit, slice), kMeshSliceAlignment);
  }
  return ranks() > options_.most_sum_sources ? SumChained(std::move(sums)) : reduce_queue_->Sum(sums);
}

// Sums in float32 memory of the engine first: accumulators may hold other sums too, or round.
absl::Status MeshCollectives::SumChained(std::vector<SumTask> sums) {
  std::vector<SumTask> last;
  auto* chained = reinterpret_cast<float*>(chained_.data());
  constexpr int64_t float_bytes = sizeof(float);
  for (SumTask& sum : sums) {
    last.push_back({{chained}, GradientType::kFP32, sum.count, sum.overwrite, sum.accumulator});
    sum.overwrite = true;
    sum.accumulator = chained;
    chained += Padded(sum.count * float_bytes, kMeshSliceAlignment) / float_bytes;
  }
  RETURN_IF_ERROR(SumInChain(*reduce_queue_, sums, options_.most_sum_sources));
  return reduce_queue_->Sum(last);
}

// Amaxes.

absl::Status MeshCollectives::MaxOverDaemons(int64_t number, absl::Span<float> values) {
  RETURN_IF_ERROR(end_.status());
  const absl::Status status = server::MaxOverDaemons(*reduce_, number, values, SteadyDeadline(options_.timeout));
  if (status.ok()) return status;
  end_.Set(status);
  return end_.status();
}

int64_t MeshCollectives::GradientSliceBytes(int unit, const GradientSlice& slice) const {
  return slice.elements * GradientBytes(options_.model->units[unit].parameters[slice.parameter].gradient_type);
}

int64_t MeshCollectives::ReceiveBytes(int unit) const {
  int64_t bytes = 0;
  for (const GradientSlice& slice : options_.layout->Slices(unit, rank())) {
    bytes += Padded(GradientSliceBytes(unit, slice), kMeshSliceAlignment);
  }
  return bytes;
}

uint8_t* MeshCollectives::ReceivedFrom(int peer, int unit) const {
  return received_.data() + ReceiveBytes(unit) * (peer < rank() ? peer : peer - 1);
}

uint8_t* MeshCollectives::GradientSlot(int slot) const {
  return options_.memory.slots + options_.layout->gradient_slot_offsets()[slot];
}

}  // namespace paramshard::server
