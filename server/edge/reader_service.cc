#include "server/edge/reader_service.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/model/model_spec_proto.h"
#include "common/shared_memory/companion_packet.h"
#include "kernels/base/status_macros.h"
#include "paramshard/v1/reader.grpc.pb.h"

namespace paramshard::server {
namespace {

constexpr size_t kMostNameBytes = 64;

int64_t PlaneBytes(const Model& model) {
  int64_t bytes = 0;
  for (const auto& shard : model.committed().shards) bytes += shard->memory().planes().size_bytes();
  return bytes;
}

absl::Status SendMemory(const Model& model, const Publication::Reader& reader, const CompanionServer& companion,
                        const std::string& token) {
  const auto& shards = model.committed().shards;
  const Memory& publication = reader.publication_page();
  const Memory& lease = reader.lease_page();
  const wire::CompanionReader pages{.publication_bytes = publication.size_bytes(),
                                    .lease_bytes = lease.size_bytes(),
                                    .ranks = static_cast<int64_t>(shards.size())};
  RETURN_IF_ERROR(companion.Send(token, pages, {publication.fd(), lease.fd()}));
  for (size_t rank = 0; rank < shards.size(); ++rank) {
    const Memory& planes = shards[rank]->memory().planes();
    const wire::CompanionPlanes message{.rank = static_cast<int64_t>(rank), .bytes = planes.size_bytes()};
    RETURN_IF_ERROR(companion.Send(token, message, {planes.fd()}));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckMayRead(absl::string_view model, const Topology& topology, uid_t user, bool trusts_gpu_readers) {
  if (topology.spans_daemons()) {
    return absl::FailedPreconditionError(
        absl::StrCat("read ", model, ": this daemon has ranks ", topology.first_rank(), " to ",
                     topology.first_rank() + topology.rank_count() - 1, " of ", topology.shard_size(),
                     " that share the model; want a daemon with all of them: set shard_size to its devices"));
  }
  if (!topology.on_gpus() || trusts_gpu_readers || HasDaemonsRights(user)) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "read ", model, ": user ", user,
      " is not the daemon's, and memory of a GPU cannot be shared read-only; read as the daemon's user, or start the "
      "daemon with --trust-gpu-readers=on"));
}

ReaderService::ReaderService(const ModelStore* store, Callers* callers, CallWorkers* workers, bool trusts_gpu_readers)
    : GuardedService(v1::ReaderService::service_full_name(), callers, CallerTimeout(), store->world().metrics),
      store_(store),
      callers_(callers),
      trusts_gpu_readers_(trusts_gpu_readers) {
  Handle("OpenReader", workers->questions.get(), &ReaderService::OpenReader);
  CheckComplete();
}

absl::StatusOr<v1::OpenReaderResponse> ReaderService::OpenReader(const Call& call,
                                                                 const v1::OpenReaderRequest& request) {
  if (request.name().size() > kMostNameBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("open reader: want a name of at most ", kMostNameBytes, " bytes, got ", request.name().size()));
  }
  const Callers::Caller& caller = call.caller();
  ASSIGN_OR_RETURN(const std::shared_ptr<Model> model, store_->Find(request.model()));
  RETURN_IF_ERROR(CheckMayRead(request.model(), model->topology(), caller.peer.uid, trusts_gpu_readers_));
  absl::StatusOr<std::shared_ptr<Publication::Reader>> reader =
      model->publication().AddReader({.name = absl::Utf8SafeCEscape(request.name()),
                                      .pid = caller.peer.pid,
                                      .uid = caller.peer.uid,
                                      .mapped_bytes = PlaneBytes(*model)});
  if (!reader.ok()) {
    return absl::Status(reader.status().code(),
                        absl::StrCat("read ", request.model(), ": ", reader.status().message()));
  }
  RETURN_IF_ERROR(callers_->Keep(caller, *reader));
  RETURN_IF_ERROR(SendMemory(*model, **reader, callers_->companion(), caller.token));
  v1::OpenReaderResponse response;
  *response.mutable_spec() = ModelSpecToProto(model->spec());
  response.set_shard_size(model->layout().ranks());
  response.set_layout_fingerprint(model->layout_fingerprint());
  for (const auto& shard : model->committed().shards) response.add_gpu_uuids(shard->memory().device().gpu_uuid());
  return response;
}

}  // namespace paramshard::server
