#include "server/edge/reader_service.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/model/model_spec_proto.h"
#include "common/shared_memory/companion_packet.h"
#include "kernels/base/status_macros.h"
#include "paramshard/v1/reader.grpc.pb.h"
#include "server/models/kept_readers.h"

namespace paramshard::server {
namespace {

constexpr size_t kMostNameBytes = 64;

int64_t PlaneBytes(const PublishedPlanes& published) {
  int64_t bytes = 0;
  for (const PublishedPlanes::Rank& rank : published.ranks) bytes += rank.planes->size_bytes();
  return bytes;
}

PublishedPlanes PublishedOf(const std::shared_ptr<Model>& model) {
  PublishedPlanes published{.owner = model,
                            .layout = &model->layout(),
                            .layout_fingerprint = model->layout_fingerprint(),
                            .publication = model->committed().publication};
  for (const auto& shard : model->committed().shards) {
    const ShardMemory& memory = shard->memory();
    published.ranks.push_back({.planes = &memory.planes(), .gpu_uuid = memory.device().gpu_uuid()});
  }
  return published;
}

absl::Status SendMemory(const PublishedPlanes& published, const Publication::Reader& reader,
                        const CompanionServer& companion, const std::string& token) {
  const Memory& publication = reader.publication_page();
  const Memory& lease = reader.lease_page();
  ASSIGN_OR_RETURN(const wire::FileDescriptor lease_file, LockedFileOf(lease.fd()));
  const auto ranks = static_cast<int64_t>(published.ranks.size());
  const wire::CompanionReader pages{
      .publication_bytes = publication.size_bytes(), .lease_bytes = lease.size_bytes(), .ranks = ranks};
  RETURN_IF_ERROR(companion.Send(token, pages, {publication.fd(), lease_file.get()}));
  for (int64_t rank = 0; rank < ranks; ++rank) {
    const Memory& planes = *published.ranks[rank].planes;
    const wire::CompanionPlanes message{.rank = rank, .bytes = planes.size_bytes()};
    RETURN_IF_ERROR(companion.Send(token, message, {planes.fd()}));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckIsWhole(absl::string_view model, const Topology& topology) {
  if (!topology.spans_daemons()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("read ", model, ": this daemon has ranks ", topology.first_rank(), " to ",
                   topology.first_rank() + topology.rank_count() - 1, " of ", topology.shard_size(),
                   " that share the model; want a daemon with all of them: set shard_size to its devices, or read "
                   "beside a mirror (--mirror)"));
}

absl::Status CheckMayMap(absl::string_view model, bool on_gpus, uid_t user, bool trusts_gpu_readers) {
  if (!on_gpus || trusts_gpu_readers || HasDaemonsRights(user)) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "read ", model, ": user ", user,
      " is not the daemon's, and memory of a GPU cannot be shared read-only; read as the daemon's user, or start the "
      "daemon with --trust-gpu-readers=on"));
}

ReaderService::ReaderService(ModelStore* store, const Mirror* mirror, Callers* callers, CallWorkers* workers,
                             bool trusts_gpu_readers)
    : GuardedService(v1::ReaderService::service_full_name(), callers, CallerTimeout(), store->world().metrics),
      store_(store),
      mirror_(mirror),
      callers_(callers),
      trusts_gpu_readers_(trusts_gpu_readers) {
  Handle("OpenReader", workers->questions.get(), &ReaderService::OpenReader);
  CheckComplete();
}

absl::StatusOr<PublishedPlanes> ReaderService::Find(absl::string_view name) const {
  if (mirror_ != nullptr) return mirror_->Find(name);
  ASSIGN_OR_RETURN(const std::shared_ptr<Model> model, store_->Find(name));
  RETURN_IF_ERROR(CheckIsWhole(name, model->topology()));
  return PublishedOf(model);
}

absl::StatusOr<v1::OpenReaderResponse> ReaderService::OpenReader(const Call& call,
                                                                 const v1::OpenReaderRequest& request) {
  if (request.name().size() > kMostNameBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("open reader: want a name of at most ", kMostNameBytes, " bytes, got ", request.name().size()));
  }
  const Callers::Caller& caller = call.caller();
  ASSIGN_OR_RETURN(const PublishedPlanes published, Find(request.model()));
  const bool on_gpus = absl::c_any_of(published.ranks, [](const auto& rank) { return !rank.gpu_uuid.empty(); });
  RETURN_IF_ERROR(CheckMayMap(request.model(), on_gpus, caller.peer.uid, trusts_gpu_readers_));
  ASSIGN_OR_RETURN(wire::FileDescriptor process, callers_->companion().Process(caller.token));
  const Publication::ReaderInfo info{.name = absl::Utf8SafeCEscape(request.name()),
                                     .pid = caller.peer.pid,
                                     .uid = caller.peer.uid,
                                     .mapped_bytes = PlaneBytes(published),
                                     .process = std::make_shared<const wire::FileDescriptor>(std::move(process))};
  absl::StatusOr<std::shared_ptr<Publication::Reader>> reader = published.publication->AddReader(info);
  if (!reader.ok()) {
    return absl::Status(reader.status().code(),
                        absl::StrCat("read ", request.model(), ": ", reader.status().message()));
  }
  RETURN_IF_ERROR(callers_->Keep(caller, *reader));
  RETURN_IF_ERROR(SendMemory(published, **reader, callers_->companion(), caller.token));
  store_->left_readers().Remember(request.model(), info, *reader);
  v1::OpenReaderResponse response;
  *response.mutable_spec() = ModelSpecToProto(published.layout->spec());
  response.set_shard_size(published.layout->ranks());
  response.set_layout_fingerprint(published.layout_fingerprint);
  for (const PublishedPlanes::Rank& rank : published.ranks) response.add_gpu_uuids(rank.gpu_uuid);
  response.set_copies(published.copies);
  return response;
}

}  // namespace paramshard::server
