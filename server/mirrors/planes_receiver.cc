#include "server/mirrors/planes_receiver.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <optional>
#include <thread>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "common/rpc/durations.h"
#include "common/shared_memory/crc32c.h"
#include "kernels/base/status_macros.h"
#include "paramshard/v1/mirror.grpc.pb.h"
#include "server/base/thread.h"
#include "server/mirrors/plane_versions.h"
#include "server/mirrors/planes_chunk.h"
#include "server/world/cluster_messages.h"

namespace paramshard::server {
namespace {

// A transfer that stands still is noticed so much later.
constexpr absl::Duration kLook = absl::Seconds(1);

absl::Status Damaged(const auto&... text) { return absl::DataLossError(absl::StrCat("planes: ", text...)); }

// Checks one owner's messages, and copies its planes to where they belong.
class PartReader {
 public:
  PartReader(const wire::PublishedVersion& wanted, const MirroredModel& model, const PlanesOwner& owner)
      : wanted_(wanted), model_(model), owner_(owner) {}

  absl::Status Read(const v1::FetchPlanesResponse& response) {
    switch (response.message_case()) {
      case v1::FetchPlanesResponse::kBegin:
        return Begin(response.begin());
      case v1::FetchPlanesResponse::kChunk:
        return Take(response.chunk());
      case v1::FetchPlanesResponse::kEnd:
        return End(response.end());
      case v1::FetchPlanesResponse::MESSAGE_NOT_SET:
        break;
    }
    return Damaged("got an empty message");
  }

  // Returns the version if all has come.
  absl::StatusOr<wire::PublishedVersion> version() const {
    if (is_whole_) return *version_;
    return Damaged("the transfer ended before its end message");
  }

 private:
  struct Rank {
    int64_t received = 0;
    PlanesHash hash = {};
    bool is_checked = false;
  };

  absl::Status Begin(const v1::FetchPlanesResponse::Begin& begin) {
    ASSIGN_OR_RETURN(const wire::PublishedVersion version, FromProto(begin.version()));
    if (version_.has_value() || !IsSameState(version, wanted_)) {
      return Damaged("want commit ", wanted_.commit_number, " once, got commit ", version.commit_number);
    }
    if (begin.reader_data().size() > wire::kPublicationDataBytes) {
      return Damaged("want at most ", wire::kPublicationDataBytes, " bytes of data, got ", begin.reader_data().size());
    }
    version_ = version;
    version_->SetReaderData(begin.reader_data());
    for (const auto& planes : begin.ranks()) {
      if (planes.rank() < owner_.first_rank || planes.rank() >= owner_.first_rank + owner_.ranks) {
        return Damaged("want ranks ", owner_.first_rank, " to ", owner_.first_rank + owner_.ranks - 1, ", got rank ",
                       planes.rank());
      }
      const int64_t expected = model_.staging(planes.rank()).size_bytes();
      if (planes.bytes() != expected) {
        return Damaged("want ", expected, " bytes of rank ", planes.rank(), ", got ", planes.bytes());
      }
      ranks_[planes.rank()] = {};
    }
    if (static_cast<int>(ranks_.size()) == owner_.ranks) return absl::OkStatus();
    return Damaged("want ", owner_.ranks, " ranks, got ", ranks_.size());
  }

  absl::Status Take(const v1::FetchPlanesResponse::Chunk& chunk) {
    const auto found = ranks_.find(chunk.rank());
    const int64_t received = found == ranks_.end() ? -1 : found->second.received;
    if (chunk.offset() != received) {
      return Damaged("want rank ", chunk.rank(), " from byte ", received, " on, got byte ", chunk.offset());
    }
    const Memory& to = model_.staging(chunk.rank());
    const auto bytes = static_cast<int64_t>(chunk.data().size());
    const int64_t expected = std::min(kPlanesChunkBytes, to.size_bytes() - received);
    if (is_whole_ || bytes == 0 || bytes != expected)
      return Damaged("want a chunk of ", expected, " bytes, got ", bytes);
    if (wire::Crc32c(chunk.data()) != chunk.crc32c()) {
      return Damaged("the checksum of rank ", chunk.rank(), " at byte ", received, " is wrong");
    }
    std::memcpy(to.data() + received, chunk.data().data(), bytes);
    // The hash is made of the bytes that lie there, not of those that came.
    found->second.hash.Add(received, absl::MakeConstSpan(to.data() + received, bytes));
    found->second.received += bytes;
    return absl::OkStatus();
  }

  absl::Status End(const v1::FetchPlanesResponse::End& end) {
    if (!version_.has_value() || is_whole_ || end.digests_size() != static_cast<int>(ranks_.size())) {
      return Damaged("want ", ranks_.size(), " digests once, got ", end.digests_size());
    }
    for (const auto& digest : end.digests()) {
      const auto found = ranks_.find(digest.rank());
      if (found == ranks_.end() || std::exchange(found->second.is_checked, true) ||
          found->second.received != model_.staging(digest.rank()).size_bytes()) {
        return Damaged("rank ", digest.rank(), " is not whole");
      }
      if (found->second.hash.digest() != digest.digest())
        return Damaged("the digest of rank ", digest.rank(), " is wrong");
    }
    is_whole_ = true;
    return absl::OkStatus();
  }

  const wire::PublishedVersion& wanted_;
  const MirroredModel& model_;
  const PlanesOwner& owner_;
  std::optional<wire::PublishedVersion> version_;
  std::map<int, Rank> ranks_;
  bool is_whole_ = false;
};

}  // namespace

// One owner's transfer. Guarded by the receiver's mutex, but for what gRPC guards.
struct PlanesReceiver::Part {
  PlanesOwner owner;
  grpc::ClientContext context;
  std::thread thread;
  SteadyTime heard_at = SteadyNow();
  std::optional<absl::StatusOr<wire::PublishedVersion>> result;
};

void PlanesReceiver::ReceivePart(const wire::PublishedVersion& wanted, const MirroredModel& model, Part& part) {
  v1::FetchPlanesRequest request;
  request.set_model(model.layout().spec().name);
  *request.mutable_version() = ToProto(wanted);
  *request.mutable_wait() = DurationToProto(kWait);
  PartReader reader(wanted, model, part.owner);
  const auto stub = v1::MirrorService::NewStub(part.owner.channel);
  const auto stream = stub->FetchPlanes(&part.context, request);
  absl::Status status;
  v1::FetchPlanesResponse response;
  while (status.ok() && stream->Read(&response)) {
    status = reader.Read(response);
    absl::MutexLock lock(&mu_);
    part.heard_at = SteadyNow();
  }
  if (!status.ok()) part.context.TryCancel();
  const absl::Status end = FromGrpcStatus(stream->Finish());
  if (status.ok()) status = end;
  absl::StatusOr<wire::PublishedVersion> result = status.ok() ? reader.version() : status;
  if (!result.ok()) {
    result = absl::Status(result.status().code(), absl::StrCat(part.owner.address, ": ", result.status().message()));
  }
  absl::MutexLock lock(&mu_);
  part.result = std::move(result);
  changed_.SignalAll();
}

// Cancels all parts at the first failure. A cancelled call ends at once.
absl::Status PlanesReceiver::AwaitParts(std::vector<std::unique_ptr<Part>>& parts) {
  absl::MutexLock lock(&mu_);
  absl::Status why;
  while (!absl::c_all_of(parts, [](const auto& part) { return part->result.has_value(); })) {
    const SteadyTime now = SteadyNow();
    if (why.ok() && stopped_) why = absl::CancelledError("the mirror stops");
    for (const auto& part : parts) {
      if (!why.ok()) break;
      if (part->result.has_value()) {
        why = part->result->status();
      } else if (now > After(part->heard_at, kWait + kStall)) {
        why = absl::DeadlineExceededError(
            absl::StrCat(part->owner.address, ": nothing received for ", absl::FormatDuration(kWait + kStall)));
      }
      if (why.ok()) continue;
      for (const auto& cancelled : parts) cancelled->context.TryCancel();
    }
    if (stopped_) {
      for (const auto& cancelled : parts) cancelled->context.TryCancel();
    }
    changed_.WaitUntil(&mu_, SteadyDeadline(kLook));
  }
  return why;
}

absl::StatusOr<wire::PublishedVersion> PlanesReceiver::Receive(const std::vector<PlanesOwner>& owners,
                                                               const wire::PublishedVersion& wanted,
                                                               const MirroredModel& model) {
  std::vector<std::unique_ptr<Part>> parts;
  for (const PlanesOwner& owner : owners) {
    parts.push_back(std::make_unique<Part>());
    parts.back()->owner = owner;
  }
  for (const auto& part : parts) {
    absl::StatusOr<std::thread> thread = StartThread(
        "receiving planes", [this, &wanted, &model, part = part.get()] { ReceivePart(wanted, model, *part); });
    absl::MutexLock lock(&mu_);
    if (thread.ok()) {
      part->thread = *std::move(thread);
    } else {
      part->result = thread.status();
    }
  }
  const absl::Status cancelled = AwaitParts(parts);
  for (const auto& part : parts) {
    if (part->thread.joinable()) part->thread.join();
  }
  RETURN_IF_ERROR(cancelled);
  for (const auto& part : parts) {
    ASSIGN_OR_RETURN(const wire::PublishedVersion version, *part->result);
    if (version != **parts.front()->result) return Damaged("owners have different versions");
  }
  return **parts.front()->result;
}

void PlanesReceiver::Stop() {
  absl::MutexLock lock(&mu_);
  stopped_ = true;
  changed_.SignalAll();
}

}  // namespace paramshard::server
