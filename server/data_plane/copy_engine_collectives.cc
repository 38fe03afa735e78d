#include "server/data_plane/copy_engine_collectives.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "kernels/gpu/faults.h"
#include "kernels/reduce/gradient_sum_cuda.h"

namespace paramshard::server {
namespace {

// Smallest piece that takes longer to copy than the other pieces take to be enqueued.
constexpr int64_t kLargePieceBytes = int64_t{1} << 20;

}  // namespace

absl::StatusOr<std::unique_ptr<Collectives>> CopyEngineCollectives::Create(const LocalGroup& group, int rank,
                                                                           bool sums_at_commit) {
  if (group.ranks() > gpu::kMaxGradientSources) {
    return absl::InvalidArgumentError(absl::StrCat("copy engine: want at most ", gpu::kMaxGradientSources,
                                                   " GPUs in one daemon, got ", group.ranks()));
  }
  ASSIGN_OR_RETURN(LocalReduction reduction, LocalReduction::Create(group, rank, sums_at_commit));
  std::vector<Target> targets(group.ranks());
  for (int peer = 0; peer < group.ranks(); ++peer) {
    if (peer == rank) continue;
    ASSIGN_OR_RETURN(targets[peer].stream, gpu::Stream::Create(group.memory[rank].device->id().index));
    for (size_t slot = 0; slot < group.layout->slot_offsets().size(); ++slot) {
      ASSIGN_OR_RETURN(gpu::Event end, gpu::Event::Create(targets[peer].stream->device()));
      targets[peer].flights.push_back({.end = std::move(end)});
    }
  }
  return std::unique_ptr<Collectives>(new CopyEngineCollectives(group, rank, std::move(reduction), std::move(targets)));
}

CopyEngineCollectives::CopyEngineCollectives(LocalGroup group, int rank, LocalReduction reduction,
                                             std::vector<Target> targets)
    : group_(std::move(group)), rank_(rank), reduction_(std::move(reduction)), targets_(std::move(targets)) {}

// A gather that failed halfway, or whose end was never asked for, may still be in progress.
CopyEngineCollectives::~CopyEngineCollectives() {
  for (const Target& target : targets_) {
    if (target.stream.has_value()) target.stream->Synchronize().IgnoreError();
  }
}

std::vector<int> CopyEngineCollectives::PeersOf(const GatherCall& call) const {
  if (call.target == rank_) return {};
  if (call.target >= 0) return {call.target};
  std::vector<int> peers;
  // Every rank begins with its next neighbour, so that ranks write to different peers.
  for (int step = 1; step < group_.ranks(); ++step) peers.push_back((rank_ + step) % group_.ranks());
  return peers;
}

const CopyEngineCollectives::GatherCopies& CopyEngineCollectives::CopiesOf(const GatherCall& call, int peer) {
  const auto [entry, is_new] = copies_.try_emplace({peer, call.unit, call.phase, call.slot});
  if (!is_new) return entry->second;
  std::vector<PieceCopy> pieces = group_.layout->Pieces(call.unit, call.phase, rank_);
  const auto largest = std::max_element(pieces.begin(), pieces.end(),
                                        [](const PieceCopy& a, const PieceCopy& b) { return a.bytes < b.bytes; });
  if (largest != pieces.end()) std::rotate(pieces.begin(), largest, largest + 1);
  const size_t in_first = !pieces.empty() && pieces[0].bytes >= kLargePieceBytes ? 1 : pieces.size();
  uint8_t* const slot = group_.memory[peer].slots + group_.layout->slot_offsets()[call.slot];
  for (size_t i = 0; i < pieces.size(); ++i) {
    gpu::BatchCopy& copies = i < in_first ? entry->second.first : entry->second.rest;
    copies.Add(slot + pieces[i].target, group_.memory[rank_].arena + pieces[i].source, pieces[i].bytes);
    entry->second.size_bytes += pieces[i].bytes;
  }
  return entry->second;
}

absl::Status CopyEngineCollectives::Gather(const GatherCall& call, Delivered) {
  RETURN_IF_ERROR(abort_.status());
  for (const int peer : PeersOf(call)) {
    Target& target = targets_[peer];
    const gpu::DeviceScope scope(target.stream->device());
    const GatherCopies& copies = CopiesOf(call, peer);
    RETURN_IF_ERROR(copies.first.Enqueue(target.stream->get()));
    RETURN_IF_ERROR(copies.rest.Enqueue(target.stream->get()));
    group_.metrics->AddMoved(MovedBy::kCopyEngine, MoveDirection::kSent, copies.size_bytes);
    ready_.Write(&group_.memory[peer].words.ready(call.slot, rank_), static_cast<uint32_t>(call.number));
    RETURN_IF_ERROR(ready_.Enqueue(target.stream->get()));
    Flight& flight = target.flights[call.slot];
    flight.deadline = SteadyDeadline(gpu::kStreamTimeout);
    RETURN_IF_ERROR(flight.end.Record(target.stream->get()));
  }
  return absl::OkStatus();
}

// Waits for the copies after Abort too: they write until they are done.
absl::StatusOr<bool> CopyEngineCollectives::GatherDone(const GatherCall& call, Delivered delivered) {
  const std::vector<int> peers = PeersOf(call);
  for (const int peer : peers) {
    const Flight& flight = targets_[peer].flights[call.slot];
    ASSIGN_OR_RETURN(const bool done, flight.end.IsDone());
    if (!done && SteadyNow() >= flight.deadline) {
      return gpu::ReportFault(targets_[peer].stream->device(),
                              absl::StrCat("a gather timed out after ", absl::FormatDuration(gpu::kStreamTimeout)));
    }
    if (!done) return false;
  }
  RETURN_IF_ERROR(abort_.status());
  for (const int peer : peers) delivered(peer, rank_);
  return true;
}

absl::Status CopyEngineCollectives::Land(const LandCall& call) {
  RETURN_IF_ERROR(abort_.status());
  return reduction_.Land(call);
}

absl::StatusOr<std::vector<int32_t>> CopyEngineCollectives::Reduce(const ReduceCall& call) {
  RETURN_IF_ERROR(abort_.status());
  absl::StatusOr<std::vector<int32_t>> absent = reduction_.Reduce(call);
  RETURN_IF_ERROR(abort_.status());
  return absent;
}

absl::StatusOr<std::vector<SumTask>> CopyEngineCollectives::TakeSums() {
  RETURN_IF_ERROR(abort_.status());
  return reduction_.TakeSums();
}

}  // namespace paramshard::server
