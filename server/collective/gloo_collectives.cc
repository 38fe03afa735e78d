#include "server/collective/gloo_collectives.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/time/clock.h"
#include "kernels/base/status_macros.h"

namespace paramshard::server {
namespace {

constexpr int64_t kSliceAlignment = 64;

int64_t Padded(int64_t bytes) { return (bytes + kSliceAlignment - 1) / kSliceAlignment * kSliceAlignment; }

}  // namespace

GlooCollectives::GlooCollectives(const Options& options, std::unique_ptr<TcpMesh> gather,
                                 std::unique_ptr<TcpMesh> reduce)
    : options_(options), gather_(std::move(gather)), reduce_(std::move(reduce)) {
  int64_t largest = 0;
  for (size_t unit = 0; unit < options_.model->units.size(); ++unit) {
    largest = std::max(largest, ReceiveBytes(static_cast<int>(unit)));
  }
  received_.resize(largest * (ranks() - 1));
}

void GlooCollectives::Abort(const absl::Status& status) {
  end_.Set(status);
  gather_->Abort(status);
  reduce_->Abort(status);
}

absl::Status GlooCollectives::Settle(const absl::Status& status, const CommandHeader& header) {
  if (status.ok()) return status;
  end_.Set(InCommand(status, header, *options_.model));
  return end_.status();
}

// Gather.

absl::Status GlooCollectives::Gather(const GatherCall& call, absl::FunctionRef<void(int rank, int source)> delivered) {
  RETURN_IF_ERROR(end_.status());
  return Settle(TryGather(call, absl::Now() + options_.timeout, delivered), CommandHeader::Of(call));
}

absl::Status GlooCollectives::TryGather(const GatherCall& call, absl::Time deadline,
                                        absl::FunctionRef<void(int rank, int source)> delivered) {
  RETURN_IF_ERROR(AgreeOnCommand(*gather_, CommandHeader::Of(call), *options_.model, deadline));
  LandOwnPieces(call);
  delivered(rank(), rank());
  return gather_->Exchange(GatherTransfers(call), deadline, [&](int source) { delivered(rank(), source); });
}

void GlooCollectives::LandOwnPieces(const GatherCall& call) {
  uint8_t* const slot = options_.memory.slots + options_.layout->slot_offsets()[call.slot];
  for (const PieceCopy& piece : options_.layout->Pieces(call.unit, call.use, rank())) {
    std::memcpy(slot + piece.target, options_.memory.arena + piece.source, piece.bytes);
  }
}

std::vector<PeerTransfer> GlooCollectives::GatherTransfers(const GatherCall& call) {
  uint8_t* const slot = options_.memory.slots + options_.layout->slot_offsets()[call.slot];
  // Gloo only reads what it sends.
  uint8_t* const arena = const_cast<uint8_t*>(options_.memory.arena);
  std::vector<Bytes> own;
  for (const PieceCopy& piece : options_.layout->Pieces(call.unit, call.use, rank())) {
    own.push_back({arena + piece.source, piece.bytes});
  }
  std::vector<PeerTransfer> transfers;
  for (int step = 1; step < ranks(); ++step) {
    const int peer = (rank() + step) % ranks();
    PeerTransfer& transfer = transfers.emplace_back(PeerTransfer{peer, own, {}});
    for (const PieceCopy& piece : options_.layout->Pieces(call.unit, call.use, peer)) {
      transfer.receives.push_back({slot + piece.target, piece.bytes});
    }
  }
  return transfers;
}

// Reduce.

absl::Status GlooCollectives::Reduce(const ReduceCall& call) {
  RETURN_IF_ERROR(end_.status());
  return Settle(TryReduce(call, absl::Now() + options_.timeout), CommandHeader::Of(call));
}

absl::Status GlooCollectives::TryReduce(const ReduceCall& call, absl::Time deadline) {
  RETURN_IF_ERROR(AgreeOnCommand(*reduce_, CommandHeader::Of(call), *options_.model, deadline));
  RETURN_IF_ERROR(reduce_->Exchange(ReduceTransfers(call), deadline, [](int) {}));
  Sum(call);
  return absl::OkStatus();
}

std::vector<PeerTransfer> GlooCollectives::ReduceTransfers(const ReduceCall& call) {
  uint8_t* const slot = GradientSlot(call.slot);
  const std::vector<GradientSlice> own = options_.layout->Slices(call.unit, rank());
  std::vector<PeerTransfer> transfers;
  for (int step = 1; step < ranks(); ++step) {
    const int peer = (rank() + step) % ranks();
    PeerTransfer& transfer = transfers.emplace_back(PeerTransfer{peer, {}, {}});
    for (const GradientSlice& slice : options_.layout->Slices(call.unit, peer)) {
      transfer.sends.push_back({slot + slice.slot_offset, GradientSliceBytes(call.unit, slice)});
    }
    uint8_t* received = ReceivedFrom(peer, call.unit);
    for (const GradientSlice& slice : own) {
      const int64_t bytes = GradientSliceBytes(call.unit, slice);
      transfer.receives.push_back({received, bytes});
      received += Padded(bytes);
    }
  }
  return transfers;
}

void GlooCollectives::Sum(const ReduceCall& call) const {
  int64_t offset = 0;
  for (const GradientSlice& slice : options_.layout->Slices(call.unit, rank())) {
    float* const accumulator = call.accumulators[slice.parameter];
    if (accumulator != nullptr) {
      std::vector<const void*> sources(ranks());
      for (int source = 0; source < ranks(); ++source) {
        sources[source] =
            source == rank() ? GradientSlot(call.slot) + slice.slot_offset : ReceivedFrom(source, call.unit) + offset;
      }
      SumGradients(sources, options_.model->units[call.unit].parameters[slice.parameter].gradient_type, slice.elements,
                   call.overwrite[slice.parameter], accumulator);
    }
    offset += Padded(GradientSliceBytes(call.unit, slice));
  }
}

int64_t GlooCollectives::GradientSliceBytes(int unit, const GradientSlice& slice) const {
  return slice.elements * GradientBytes(options_.model->units[unit].parameters[slice.parameter].gradient_type);
}

int64_t GlooCollectives::ReceiveBytes(int unit) const {
  int64_t bytes = 0;
  for (const GradientSlice& slice : options_.layout->Slices(unit, rank())) {
    bytes += Padded(GradientSliceBytes(unit, slice));
  }
  return bytes;
}

uint8_t* GlooCollectives::ReceivedFrom(int peer, int unit) {
  return received_.data() + ReceiveBytes(unit) * (peer < rank() ? peer : peer - 1);
}

const uint8_t* GlooCollectives::ReceivedFrom(int peer, int unit) const {
  return const_cast<GlooCollectives*>(this)->ReceivedFrom(peer, unit);
}

uint8_t* GlooCollectives::GradientSlot(int slot) const {
  return options_.memory.slots + options_.layout->gradient_slot_offsets()[slot];
}

}  // namespace paramshard::server
