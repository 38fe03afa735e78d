#include "server/edge/mirror_service.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <set>

#include "absl/strings/str_cat.h"
#include "common/model/limits.h"
#include "common/model/model_spec_proto.h"
#include "common/rpc/durations.h"
#include "common/shared_memory/crc32c.h"
#include "kernels/base/status_macros.h"
#include "paramshard/v1/mirror.grpc.pb.h"
#include "server/mirrors/planes_chunk.h"

namespace paramshard::server {
namespace {

// A mirror that takes planes more slowly keeps the image from others for too long.
constexpr CallerTimeout kTransferTimeout = {.longest_wait = absl::Seconds(10), .bytes_per_second = 4 << 20};
constexpr absl::Duration kLongestWait = absl::Seconds(30);
constexpr int kMostReports = 1024;
constexpr size_t kMostReportBytes = 4096;

absl::Status CheckReports(const v1::AskVersionsRequest& request) {
  if (request.reports_size() > kMostReports || request.missed_size() > kMostReports) {
    return absl::InvalidArgumentError(absl::StrCat("ask versions: want at most ", kMostReports, " reports, got ",
                                                   std::max(request.reports_size(), request.missed_size())));
  }
  for (const v1::MirrorReport& report : request.reports()) {
    if (report.ByteSizeLong() > kMostReportBytes) {
      return absl::InvalidArgumentError(absl::StrCat("ask versions: want reports of at most ", kMostReportBytes,
                                                     " bytes, got ", report.ByteSizeLong()));
    }
  }
  return absl::OkStatus();
}

// A version that nobody has named, and that is far ahead, would keep the room of an image from others. This owner may be
// some commits behind node 0, which names them.
absl::Status CheckNear(const Model& model, const wire::PublishedVersion& version) {
  const std::optional<wire::PublishedVersion> present = model.publication().last_published();
  const int64_t latest = present.has_value() ? present->commit_number + 2 * VersionChoice::kMostAhead : 0;
  if (!present.has_value() || version.history() != present->history() || version.commit_number <= latest) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("mirror ", model.spec().name, ": want commit ", latest,
                                                 " or an earlier one, got ", version.commit_number));
}

// Sends an image. Returns false if the caller is gone.
bool Send(const Model& model, const PlaneImage& image, MessageWriter<v1::FetchPlanesResponse>* writer) {
  v1::FetchPlanesResponse response;
  *response.mutable_begin()->mutable_version() = ToProto(image.version);
  response.mutable_begin()->set_reader_data(std::string(image.version.reader_data()));
  const auto ranks = static_cast<int>(image.ranks.size());
  for (int rank = 0; rank < ranks; ++rank) {
    v1::FetchPlanesResponse::RankPlanes& planes = *response.mutable_begin()->add_ranks();
    planes.set_rank(model.topology().GroupRank(rank));
    planes.set_bytes(image.ranks[rank].memory.size_bytes());
  }
  if (!writer->Write(response)) return false;
  v1::FetchPlanesResponse end;
  for (int rank = 0; rank < ranks; ++rank) {
    const Memory& planes = image.ranks[rank].memory;
    v1::FetchPlanesResponse::Chunk& chunk = *response.mutable_chunk();
    chunk.set_rank(model.topology().GroupRank(rank));
    PlanesHash hash;
    for (int64_t offset = 0; offset < planes.size_bytes(); offset += kPlanesChunkBytes) {
      const int64_t bytes = std::min(kPlanesChunkBytes, planes.size_bytes() - offset);
      hash.Add(offset, absl::MakeConstSpan(planes.data() + offset, bytes));
      chunk.set_offset(offset);
      chunk.set_data(planes.data() + offset, bytes);
      chunk.set_crc32c(wire::Crc32c(chunk.data()));
      if (!writer->Write(response)) return false;
    }
    v1::FetchPlanesResponse::RankDigest& digest = *end.mutable_end()->add_digests();
    digest.set_rank(chunk.rank());
    digest.set_digest(hash.digest());
  }
  return writer->Write(end);
}

}  // namespace

MirrorService::MirrorService(const ModelStore* store, ImageStore* images, Callers* callers, CallWorkers* workers,
                             Callers::Strangers strangers)
    : GuardedService(v1::MirrorService::service_full_name(), callers, kTransferTimeout, store->world().metrics,
                     strangers),
      store_(store),
      images_(images) {
  Handle("AskVersions", workers->questions.get(), &MirrorService::AskVersions);
  Handle("DescribeModel", workers->questions.get(), &MirrorService::DescribeModel);
  Handle("FetchPlanes", workers->mirrors.get(), &MirrorService::FetchPlanes);
  CheckComplete();
}

void MirrorService::NoteReports(const v1::AskVersionsRequest& request) {
  const SteadyTime now = SteadyNow();
  std::erase_if(reports_, [&](const auto& entry) { return After(entry.second.at, kListed) < now; });
  for (const v1::MirrorReport& report : request.reports()) {
    for (const v1::PlaneVersion* const held : {&report.active(), &report.staged()}) {
      const absl::StatusOr<wire::PublishedVersion> version = FromProto(*held);
      const auto choice = choices_.find(report.model());
      if (version.ok() && choice != choices_.end()) choice->second.OnReceived(*version);
    }
    const std::pair<std::string, std::string> key = {report.mirror(), report.model()};
    if (reports_.contains(key) || reports_.size() < kMostReports) reports_[key] = {.report = report, .at = now};
  }
}

absl::Status MirrorService::NoteMissed(const v1::AskVersionsRequest& request) {
  for (const v1::AskVersionsRequest::Missed& missed : request.missed()) {
    ASSIGN_OR_RETURN(const wire::PublishedVersion version, FromProto(missed.version()));
    const auto choice = choices_.find(missed.model());
    if (choice != choices_.end()) choice->second.OnMissed(version, missed.timed_out());
  }
  return absl::OkStatus();
}

absl::StatusOr<v1::AskVersionsResponse> MirrorService::AskVersions(const Call&, const v1::AskVersionsRequest& request) {
  RETURN_IF_ERROR(images_->CheckServes(nullptr));
  if (const int node = store_->world().cluster->node(); node != 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("ask versions: this is node ", node, "; --mirror wants the --listen address of node 0"));
  }
  RETURN_IF_ERROR(CheckReports(request));
  v1::AskVersionsResponse response;
  absl::MutexLock lock(&mu_);
  RETURN_IF_ERROR(NoteMissed(request));
  NoteReports(request);
  std::map<std::string, VersionChoice> choices;
  for (const std::shared_ptr<Model>& model : store_->List()) {
    const std::optional<wire::PublishedVersion> present = model->publication().last_published();
    if (!present.has_value()) continue;
    const std::string& name = model->spec().name;
    VersionChoice& choice = choices[name] = choices_[name];
    v1::AskVersionsResponse::Named& named = *response.add_models();
    named.set_model(name);
    *named.mutable_version() = ToProto(choice.Next(
        *present, [&](const wire::PublishedVersion& version) { return images_->IsBusyWith(*model, version); }));
    named.set_spec_fingerprint(model->fingerprint());
    named.set_layout_fingerprint(model->layout_fingerprint());
  }
  choices_ = std::move(choices);
  return response;
}

absl::StatusOr<v1::DescribeModelResponse> MirrorService::DescribeModel(const Call&,
                                                                       const v1::DescribeModelRequest& request) {
  ASSIGN_OR_RETURN(const std::shared_ptr<Model> model, store_->Find(request.model()));
  RETURN_IF_ERROR(images_->CheckServes(model.get()));
  v1::DescribeModelResponse response;
  *response.mutable_spec() = ModelSpecToProto(model->spec());
  response.set_shard_size(model->layout().ranks());
  response.set_spec_fingerprint(model->fingerprint());
  response.set_layout_fingerprint(model->layout_fingerprint());
  const Topology& topology = model->topology();
  if (!topology.spans_daemons()) {
    v1::DescribeModelResponse::Owner& owner = *response.add_owners();
    owner.set_ranks(topology.shard_size());
    return response;
  }
  const std::vector<std::string> addresses = store_->world().cluster->addresses();
  int first_rank = 0;
  for (int node = 0; node < topology.nodes(); ++node) {
    v1::DescribeModelResponse::Owner& owner = *response.add_owners();
    if (node != topology.node()) owner.set_address(addresses[node]);
    owner.set_first_rank(first_rank);
    owner.set_ranks(topology.device_counts()[node]);
    first_rank += owner.ranks();
    if (node == topology.node() || !owner.address().empty()) continue;
    return absl::FailedPreconditionError(absl::StrCat("mirror ", request.model(), ": node ", node,
                                                      " owns a part of it, and mirrors cannot reach it: it is absent, "
                                                      "or started without a --listen address with a fixed port"));
  }
  return response;
}

absl::Status MirrorService::FetchPlanes(const Call& call, const v1::FetchPlanesRequest& request,
                                        MessageWriter<v1::FetchPlanesResponse>* writer) {
  ASSIGN_OR_RETURN(const wire::PublishedVersion version, FromProto(request.version()));
  const absl::Duration wait = std::min(DurationFromProto(request.wait()), kLongestWait);
  ASSIGN_OR_RETURN(const std::shared_ptr<Model> model, store_->Find(request.model()));
  RETURN_IF_ERROR(CheckNear(*model, version));
  ASSIGN_OR_RETURN(const std::shared_ptr<const PlaneImage> image,
                   images_->Take(*model, version, SteadyDeadline(wait), [&call] { return call.IsCancelled(); }));
  if (Send(*model, *image, writer)) return absl::OkStatus();
  return absl::CancelledError(absl::StrCat("mirror ", request.model(), ": the caller is gone"));
}

std::vector<v1::MirrorReport> MirrorService::Reports() const {
  absl::MutexLock lock(&mu_);
  std::vector<v1::MirrorReport> reports;
  for (const auto& [key, noted] : reports_) {
    if (After(noted.at, kListed) >= SteadyNow()) reports.push_back(noted.report);
  }
  return reports;
}

}  // namespace paramshard::server
