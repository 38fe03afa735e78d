#include "server/edge/mirror_service.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <set>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "common/model/limits.h"
#include "common/model/model_spec_proto.h"
#include "common/rpc/durations.h"
#include "kernels/base/status_macros.h"
#include "paramshard/v1/mirror.grpc.pb.h"
#include "server/mirrors/planes_chunk.h"

namespace paramshard::server {
namespace {

// A mirror that takes planes more slowly keeps the image from others for too long.
constexpr CallerTimeout kTransferTimeout = {.longest_wait = absl::Seconds(10), .bytes_per_second = 4 << 20};
constexpr absl::Duration kLongestWait = absl::Seconds(30);
// Questions wait for news, and look so often if an image has made room for another version. Of the threads that answer
// them some stay free: more questions do not wait.
constexpr absl::Duration kLongestQuestion = absl::Seconds(2);
constexpr absl::Duration kLook = absl::Milliseconds(100);
constexpr int kMostWaiting = 12;
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

// Returns true if the answer names a version that the mirror does not have, or no longer names a model.
bool HasNews(const v1::AskVersionsRequest& request, const v1::AskVersionsResponse& response) {
  std::set<std::pair<absl::string_view, std::pair<absl::string_view, int64_t>>> held;
  std::set<absl::string_view> models;
  const auto key = [](absl::string_view model, const v1::PlaneVersion& version) {
    return std::pair(model, std::pair(absl::string_view(version.history_id()), version.commit_number()));
  };
  for (const v1::MirrorReport& report : request.reports()) {
    models.insert(report.model());
    for (const v1::PlaneVersion* const version : {&report.active(), &report.staged()}) {
      held.insert(key(report.model(), *version));
    }
  }
  return static_cast<int>(models.size()) != response.models_size() ||
         !absl::c_all_of(response.models(), [&](const v1::AskVersionsResponse::Named& named) {
           return held.contains(key(named.model(), named.version()));
         });
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

// Sends an image while it is copied.
class ImageSender {
 public:
  ImageSender(const Model& model, const SharedImage& image, MessageWriter<v1::FetchPlanesResponse>* writer)
      : model_(model), image_(image), writer_(writer) {}

  // CANCELLED the caller is gone; errors of the copy.
  absl::Status Send() {
    RETURN_IF_ERROR(Write(Begin()));
    v1::FetchPlanesResponse end;
    for (int rank = 0; rank < image_->ranks(); ++rank) {
      v1::FetchPlanesResponse::RankDigest& digest = *end.mutable_end()->add_digests();
      digest.set_rank(model_.topology().GroupRank(rank));
      ASSIGN_OR_RETURN(*digest.mutable_digest(), SendRank(rank));
    }
    return Write(end);
  }

 private:
  v1::FetchPlanesResponse Begin() const {
    v1::FetchPlanesResponse response;
    v1::FetchPlanesResponse::Begin& begin = *response.mutable_begin();
    *begin.mutable_version() = ToProto(image_->version());
    begin.set_reader_data(std::string(image_->version().reader_data()));
    for (int rank = 0; rank < image_->ranks(); ++rank) {
      v1::FetchPlanesResponse::RankPlanes& planes = *begin.add_ranks();
      planes.set_rank(model_.topology().GroupRank(rank));
      planes.set_bytes(image_->planes(rank).size_bytes());
    }
    return response;
  }

  // Returns the rank's digest.
  absl::StatusOr<std::string> SendRank(int rank) {
    const Memory& planes = image_->planes(rank);
    PlanesHash hash;
    for (int64_t offset = 0; offset < planes.size_bytes(); offset += kPlanesChunkBytes) {
      const int64_t bytes = std::min(kPlanesChunkBytes, planes.size_bytes() - offset);
      RETURN_IF_ERROR(image_->AwaitCopied(rank, offset + bytes));
      const auto chunk = absl::MakeConstSpan(planes.data() + offset, bytes);
      hash.Add(offset, chunk);
      RETURN_IF_ERROR(Write(PlanesMessage(chunk, image_.get())));
      model_.world().metrics->Add(Metric::kMirrorSentBytes, 0, bytes);
    }
    return hash.digest();
  }

  absl::Status Write(const auto& message) {
    return writer_->Write(message) ? absl::OkStatus() : absl::CancelledError("the caller is gone");
  }

  const Model& model_;
  const SharedImage& image_;
  MessageWriter<v1::FetchPlanesResponse>* const writer_;
};

MirrorTransfer ResultOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return MirrorTransfer::kSent;
    case absl::StatusCode::kAborted:
      return MirrorTransfer::kMissed;
    case absl::StatusCode::kDeadlineExceeded:
      return MirrorTransfer::kTimedOut;
    case absl::StatusCode::kCancelled:
      return MirrorTransfer::kGone;
    default:
      return MirrorTransfer::kFailed;
  }
}

}  // namespace

MirrorService::MirrorService(const ModelStore* store, ImageStore* images, Callers* callers, CallWorkers* workers,
                             Callers::Strangers strangers)
    : GuardedService(v1::MirrorService::service_full_name(), callers, kTransferTimeout, store->world().metrics,
                     strangers),
      store_(store),
      images_(images) {
  Handle("AskVersions", workers->news.get(), &MirrorService::AskVersions);
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
    if (choice == choices_.end()) continue;
    const absl::StatusOr<std::shared_ptr<Model>> model = store_->Find(missed.model());
    if (!model.ok()) continue;
    const std::optional<wire::PublishedVersion> present = (*model)->publication().last_published();
    if (present.has_value()) choice->second.OnMissed(version, missed.timed_out(), *present);
  }
  return absl::OkStatus();
}

absl::StatusOr<v1::AskVersionsResponse> MirrorService::AskVersions(const Call& call,
                                                                   const v1::AskVersionsRequest& request) {
  RETURN_IF_ERROR(images_->CheckServes(nullptr));
  if (const int node = store_->world().cluster->node(); node != 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("ask versions: this is node ", node, "; --mirror wants the --listen address of node 0"));
  }
  RETURN_IF_ERROR(CheckReports(request));
  {
    absl::MutexLock lock(&mu_);
    RETURN_IF_ERROR(NoteMissed(request));
    NoteReports(request);
  }
  const SteadyTime deadline = SteadyDeadline(std::min(DurationFromProto(request.wait()), kLongestQuestion));
  const bool waits = ++waiting_ <= kMostWaiting;
  v1::AskVersionsResponse response;
  while (true) {
    const int64_t seen = store_->publications().count();
    {
      absl::MutexLock lock(&mu_);
      response = NameVersions();
    }
    const bool is_over = !waits || TimeLeft(deadline) == absl::ZeroDuration() || call.IsCancelled();
    if (is_over || HasNews(request, response)) break;
    store_->publications().AwaitChange(seen, std::min(deadline, SteadyDeadline(kLook)));
  }
  --waiting_;
  return response;
}

v1::AskVersionsResponse MirrorService::NameVersions() {
  v1::AskVersionsResponse response;
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
  const absl::Status status = SendImage(call, *model, version, SteadyDeadline(wait), writer);
  store_->world().metrics->Add(Metric::kMirrorTransfers, ResultOf(status));
  return status;
}

absl::Status MirrorService::SendImage(const Call& call, const Model& model, const wire::PublishedVersion& version,
                                      SteadyTime deadline, MessageWriter<v1::FetchPlanesResponse>* writer) {
  ASSIGN_OR_RETURN(const SharedImage image,
                   images_->Take(model, version, deadline, [&call] { return call.IsCancelled(); }));
  const absl::Status sent = ImageSender(model, image, writer).Send();
  if (sent.ok()) return sent;
  return absl::Status(sent.code(), absl::StrCat("mirror ", model.spec().name, ": ", sent.message()));
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
