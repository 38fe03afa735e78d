#include "server/mirrors/planes_receiver.h"

#include <google/protobuf/io/coded_stream.h>
#include <grpcpp/impl/rpc_method.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/proto_buffer_reader.h>
#include <grpcpp/support/sync_stream.h>

#include <algorithm>
#include <optional>
#include <thread>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "common/rpc/durations.h"
#include "kernels/base/status_macros.h"
#include "paramshard/v1/mirror.grpc.pb.h"
#include "server/base/clock.h"
#include "server/base/thread.h"
#include "server/mirrors/plane_versions.h"
#include "server/mirrors/planes_chunk.h"
#include "server/world/cluster_messages.h"

namespace paramshard::server {
namespace {

// A transfer that stands still is noticed so much later.
constexpr absl::Duration kLook = absl::Seconds(1);
constexpr char kFetchPlanes[] = "/paramshard.v1.MirrorService/FetchPlanes";

absl::Status Damaged(const auto&... text) { return absl::DataLossError(absl::StrCat("planes: ", text...)); }

// Checks one owner's messages, and copies its planes to where they belong.
class PartReader {
 public:
  PartReader(const wire::PublishedVersion& wanted, const MirroredModel& model, const PlanesOwner& owner)
      : wanted_(wanted), model_(model), owner_(owner) {}

  absl::Status Read(grpc::ByteBuffer& message) {
    {
      grpc::ProtoBufferReader bytes(&message);
      google::protobuf::io::CodedInputStream input(&bytes);
      if (input.ReadTag() == kPlanesTag) return Take(input, static_cast<int64_t>(message.Length()));
    }
    grpc::ProtoBufferReader bytes(&message);
    v1::FetchPlanesResponse response;
    if (!response.ParseFromZeroCopyStream(&bytes)) return Damaged("got a message that does not parse");
    if (response.has_begin()) return Begin(response.begin());
    if (response.has_end()) return End(response.end());
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
    if (begin.ranks_size() != owner_.ranks) return Damaged("want ", owner_.ranks, " ranks, got ", begin.ranks_size());
    for (const auto& planes : begin.ranks()) {
      const int rank = owner_.first_rank + static_cast<int>(ranks_.size());
      const int64_t bytes = static_cast<int64_t>(model_.staging(rank).size());
      if (planes.rank() != rank || planes.bytes() != bytes) {
        return Damaged("want ", bytes, " bytes of rank ", rank, ", got ", planes.bytes(), " of rank ", planes.rank());
      }
      ranks_.emplace_back();
    }
    SkipWholeRanks();
    return absl::OkStatus();
  }

  absl::Status Take(google::protobuf::io::CodedInputStream& input, int64_t message_bytes) {
    if (next_ == ranks_.size()) return Damaged("got more than all planes");
    Rank& rank = ranks_[next_];
    const absl::Span<uint8_t> left = Staging(next_).subspan(rank.received);
    const absl::Span<uint8_t> planes = left.subspan(0, kPlanesChunkBytes);
    if (!ReadPlanes(input, planes)) {
      return Damaged("want ", planes.size(), " bytes of rank ", owner_.first_rank + next_, " from byte ", rank.received,
                     " on, got a message of ", message_bytes);
    }
    // The hash is made of the bytes that lie there, not of those that came.
    rank.hash.Add(rank.received, planes);
    rank.received += static_cast<int64_t>(planes.size());
    SkipWholeRanks();
    return absl::OkStatus();
  }

  absl::Status End(const v1::FetchPlanesResponse::End& end) {
    if (!version_.has_value() || is_whole_ || next_ < ranks_.size()) return Damaged("the end came before all planes");
    if (end.digests_size() != owner_.ranks) {
      return Damaged("want ", owner_.ranks, " digests, got ", end.digests_size());
    }
    for (int i = 0; i < owner_.ranks; ++i) {
      const int rank = owner_.first_rank + i;
      if (end.digests(i).rank() != rank || end.digests(i).digest() != ranks_[i].hash.digest()) {
        return Damaged("the digest of rank ", rank, " is wrong");
      }
    }
    is_whole_ = true;
    return absl::OkStatus();
  }

  absl::Span<uint8_t> Staging(size_t i) const { return model_.staging(owner_.first_rank + static_cast<int>(i)); }
  void SkipWholeRanks() {
    while (next_ < ranks_.size() && ranks_[next_].received == static_cast<int64_t>(Staging(next_).size())) ++next_;
  }

  const wire::PublishedVersion& wanted_;
  const MirroredModel& model_;
  const PlanesOwner& owner_;
  std::optional<wire::PublishedVersion> version_;
  std::vector<Rank> ranks_;  // of the owner
  size_t next_ = 0;          // the rank whose planes come next
  bool is_whole_ = false;
};

}  // namespace

// One owner's transfer. Guarded by the receiver's mutex, but for what gRPC guards. Its thread alone writes the times.
struct PlanesReceiver::Part {
  PlanesOwner owner;
  grpc::ClientContext context;
  std::thread thread;
  std::optional<SteadyTime> begun_at;  // at the first message
  SteadyTime late_at = SteadyDeadline(kWait + kStall);
  std::optional<absl::StatusOr<wire::PublishedVersion>> result;
};

void PlanesReceiver::ReceivePart(const wire::PublishedVersion& wanted, const MirroredModel& model, Part& part) {
  v1::FetchPlanesRequest request;
  request.set_model(model.layout().spec().name);
  *request.mutable_version() = ToProto(wanted);
  *request.mutable_wait() = DurationToProto(kWait);
  PartReader reader(wanted, model, part.owner);
  // A blocking call whose messages are not parsed, which gRPC's generic class does not have.
  const grpc::internal::RpcMethod method(kFetchPlanes, grpc::internal::RpcMethod::SERVER_STREAMING, part.owner.channel);
  const std::unique_ptr<grpc::ClientReader<grpc::ByteBuffer>> stream(
      grpc::internal::ClientReaderFactory<grpc::ByteBuffer>::Create(part.owner.channel.get(), method, &part.context,
                                                                    request));
  absl::Status status;
  grpc::ByteBuffer message;
  while (status.ok() && stream->Read(&message)) {
    status = reader.Read(message);
    const auto bytes = static_cast<int64_t>(message.Length());
    metrics_.Add(Metric::kMirrorReceivedBytes, 0, bytes);
    const SteadyTime latest = SteadyDeadline(pace_.longest);
    const absl::Duration earned =
        absl::Seconds(static_cast<double>(bytes) / static_cast<double>(pace_.bytes_per_second));
    absl::MutexLock lock(&mu_);
    part.late_at = part.begun_at.has_value() ? std::min(latest, After(part.late_at, earned)) : latest;
    if (!part.begun_at.has_value()) part.begun_at = SteadyNow();
  }
  if (!status.ok()) part.context.TryCancel();
  absl::Status end = FromGrpcStatus(stream->Finish());
  // No version is missed: the owner has waited for this end.
  if (part.begun_at.has_value() && absl::IsDeadlineExceeded(end)) end = absl::UnavailableError(end.message());
  if (status.ok()) status = end;
  absl::StatusOr<wire::PublishedVersion> result = status.ok() ? reader.version() : status;
  if (!result.ok()) {
    result = absl::Status(result.status().code(), absl::StrCat(part.owner.address, ": ", result.status().message()));
  }
  absl::MutexLock lock(&mu_);
  part.result = std::move(result);
  changed_.SignalAll();
}

std::string PlanesReceiver::WhyLate(bool has_begun) const {
  if (!has_begun)
    return absl::StrCat("timed out waiting for planes: none after ", absl::FormatDuration(kWait + kStall));
  return absl::StrCat("timed out: it sends less than ", pace_.bytes_per_second, " bytes/s for ",
                      absl::FormatDuration(pace_.longest), "; check the link, and the load of both machines");
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
      } else if (now > part->late_at) {
        why = absl::UnavailableError(absl::StrCat(part->owner.address, ": ", WhyLate(part->begun_at.has_value())));
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
                                                               const MirroredModel& model, SteadyTime named_at) {
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
  SteadyTime begun_at;
  for (const auto& part : parts) {
    ASSIGN_OR_RETURN(const wire::PublishedVersion version, *part->result);
    begun_at = std::max(begun_at, *part->begun_at);
    if (version != **parts.front()->result) return Damaged("owners have different versions");
  }
  metrics_.Observe(Metric::kMirrorVersion, MirrorPhase::kWait, begun_at - named_at);
  metrics_.Observe(Metric::kMirrorVersion, MirrorPhase::kTransfer, SteadyNow() - begun_at);
  return **parts.front()->result;
}

void PlanesReceiver::Stop() {
  absl::MutexLock lock(&mu_);
  stopped_ = true;
  changed_.SignalAll();
}

}  // namespace paramshard::server
