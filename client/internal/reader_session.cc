#include "client/internal/reader_session.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/internal/epoch_layout.h"
#include "client/internal/sockets.h"
#include "client/internal/unary_call.h"
#include "common/model/limits.h"
#include "common/model/names.h"
#include "kernels/base/status_macros.h"
#include "kernels/formats/format.h"
#include "paramshard/v1/reader.grpc.pb.h"

namespace paramshard::internal {
namespace {

// The daemon has sent the memory before it answers.
constexpr absl::Duration kMemoryTimeout = absl::Seconds(5);
constexpr size_t kSimilarNames = 3;
constexpr int kMostCopies = 2;

int CopiesOf(const v1::OpenReaderResponse& opened) { return opened.copies() == 0 ? 1 : opened.copies(); }

absl::Status CheckBytes(absl::string_view memory, int64_t expected, int64_t got) {
  if (expected == got) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("reader memory: ", memory, ": want ", expected, " bytes, got ", got));
}

// Returns how many characters two names have in common at their ends.
size_t CommonEnds(absl::string_view a, absl::string_view b) {
  const size_t shorter = std::min(a.size(), b.size());
  const size_t head = std::mismatch(a.begin(), a.begin() + shorter, b.begin()).first - a.begin();
  const size_t tail = std::mismatch(a.rbegin(), a.rbegin() + (shorter - head), b.rbegin()).first - a.rbegin();
  return head + tail;
}

// Returns names of which at least half is in common with `name`, the most similar first.
std::vector<absl::string_view> SimilarNames(absl::string_view name, absl::Span<const ReadParameter> parameters) {
  std::vector<std::pair<size_t, absl::string_view>> found;
  for (const ReadParameter& parameter : parameters) {
    const size_t common = CommonEnds(name, parameter.name);
    if (common * 2 >= std::max(name.size(), parameter.name.size())) found.emplace_back(common, parameter.name);
  }
  std::stable_sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
  std::vector<absl::string_view> names;
  for (const auto& [common, similar] : found) {
    if (names.size() < kSimilarNames) names.push_back(similar);
  }
  return names;
}

// gRPC's own messages name neither the call nor what to do.
absl::Status ExplainAnswer(const std::string& model, const Companion& companion, const absl::Status& answer) {
  const std::string call = absl::StrCat("open reader of ", model);
  if (companion.IsLost() || absl::IsUnauthenticated(answer)) {
    return absl::UnavailableError(absl::StrCat(call, ": the daemon (pid ", companion.daemon_pid(),
                                               ") exited during the call (", answer.message(), ")"));
  }
  if (absl::IsDeadlineExceeded(answer)) return absl::DeadlineExceededError(absl::StrCat(call, ": no answer"));
  if (!absl::IsUnimplemented(answer)) return answer;
  return absl::FailedPreconditionError(
      absl::StrCat(call, ": the daemon serves no readers: it is of an older version than this library"));
}

}  // namespace

absl::Status ParameterNotFound(absl::string_view model, absl::Span<const ReadParameter> parameters,
                               absl::string_view name) {
  const std::vector<absl::string_view> similar = SimilarNames(name, parameters);
  return absl::NotFoundError(
      absl::StrCat("parameter ", DisplayName(name), ": not found in ", model,
                   similar.empty() ? "" : absl::StrCat("; similar: ", absl::StrJoin(similar, ", "))));
}

absl::StatusOr<std::shared_ptr<ReaderSession>> ReaderSession::Open(const Reader::Options& options,
                                                                   const Deadline& deadline,
                                                                   const Interruption& interruption) {
  RETURN_IF_ERROR(CheckGrpcWasNotForked());
  ASSIGN_OR_RETURN(const SocketPaths paths, FindSockets(options.socket_dir));
  const auto timeout = [&] { return std::min(options.connect_timeout, deadline.Left()); };
  ASSIGN_OR_RETURN(Companion companion, Companion::Connect(paths.companion, timeout()));
  // The reader lives as long as the companion connection: the channel serves one call.
  ASSIGN_OR_RETURN(const std::shared_ptr<grpc::Channel> channel, OpenChannel(paths, timeout()));
  const auto stub = v1::ReaderService::NewStub(channel);
  grpc::ClientContext context;
  context.AddMetadata(wire::kTokenMetadata, companion.token());
  context.set_deadline(deadline.ToGrpc());
  v1::OpenReaderRequest request;
  request.set_model(options.model);
  request.set_name(options.name);
  v1::OpenReaderResponse opened;
  const absl::Status answer =
      CallUnary(*stub, &v1::ReaderService::Stub::PrepareAsyncOpenReader, context, request, opened, interruption);
  if (!answer.ok()) return ExplainAnswer(options.model, companion, answer);
  ASSIGN_OR_RETURN(ReaderMemory memory, companion.ReceiveReader(kMemoryTimeout));
  return Create({.companion = std::move(companion), .memory = std::move(memory), .opened = std::move(opened)});
}

absl::StatusOr<ReaderSession::Memory> ReaderSession::Map(const Parts& parts, const Layout& layout) {
  const ReaderMemory& memory = parts.memory;
  RETURN_IF_ERROR(CheckBytes("publication page", wire::PublicationPage::kBytes, memory.publication.bytes));
  RETURN_IF_ERROR(CheckBytes("lease page", wire::LeasePage::kBytes, memory.lease.bytes));
  const auto ranks = static_cast<size_t>(layout.ranks());
  if (memory.planes.size() != ranks) {
    return absl::InternalError(
        absl::StrCat("reader memory: want planes of ", ranks, " ranks, got ", memory.planes.size()));
  }
  const auto& gpus = parts.opened.gpu_uuids();
  if (static_cast<size_t>(gpus.size()) != ranks) {
    return absl::InternalError(absl::StrCat("reader memory: want GPUs of ", ranks, " ranks, got ", gpus.size()));
  }
  const int copies = CopiesOf(parts.opened);
  if (copies < 1 || copies > kMostCopies) {
    return absl::InternalError(
        absl::StrCat("reader memory: want 1 to ", kMostCopies, " copies of planes, got ", copies));
  }
  Memory mapped;
  ASSIGN_OR_RETURN(mapped.publication, MappedMemory::Map("publication page", memory.publication.fd,
                                                         memory.publication.bytes, MappedMemory::Access::kRead));
  ASSIGN_OR_RETURN(mapped.lease, MappedMemory::Map("lease page", memory.lease.fd, memory.lease.bytes,
                                                   MappedMemory::Access::kReadWrite));
  for (int rank = 0; rank < layout.ranks(); ++rank) {
    const ReaderMemory::Part& part = memory.planes[rank];
    RETURN_IF_ERROR(CheckBytes(absl::StrCat("planes of rank ", rank), copies * layout.arena_bytes(rank), part.bytes));
    ASSIGN_OR_RETURN(PlaneMemory planes, parts.map_planes(gpus[rank], part.fd, part.bytes));
    mapped.planes.push_back(std::move(planes));
  }
  return mapped;
}

absl::StatusOr<std::shared_ptr<ReaderSession>> ReaderSession::Create(Parts parts) {
  const v1::OpenReaderResponse& opened = parts.opened;
  ASSIGN_OR_RETURN(Layout layout, ComputeLayout(opened.spec(), opened.shard_size(), opened.layout_fingerprint()));
  ASSIGN_OR_RETURN(Memory memory, Map(parts, layout));
  return ShareWithinProcess(std::unique_ptr<ReaderSession>(
      new ReaderSession(std::move(parts.companion), std::move(layout), CopiesOf(opened), std::move(memory))));
}

ReaderSession::ReaderSession(Companion companion, Layout layout, int copies, Memory memory)
    : companion_(std::move(companion)),
      layout_(std::move(layout)),
      copies_(copies),
      names_(layout_.spec()),
      memory_(std::move(memory)),
      publication_(memory_.publication.data()),
      lease_(memory_.lease.data()) {
  for (int unit = 0; unit < static_cast<int>(layout_.spec().units.size()); ++unit) {
    const std::vector<ParameterSpec>& parameters = layout_.spec().units[unit].parameters;
    first_parameters_.push_back(static_cast<int>(parameters_.size()));
    for (int i = 0; i < static_cast<int>(parameters.size()); ++i) {
      const ParameterSpec& spec = parameters[i];
      places_.push_back({.unit = unit, .parameter = i});
      parameters_.push_back({.name = spec.name,
                             .shape = spec.shape,
                             .rows = spec.rows(),
                             .columns = spec.columns(),
                             .encoding = EncodingOf(spec.encoding)});
    }
  }
}

absl::StatusOr<int> ReaderSession::Find(absl::string_view name) const {
  if (const std::optional<ParameterPlace> place = names_.PlaceOf(name)) {
    return first_parameters_[place->unit] + place->parameter;
  }
  return ParameterNotFound(absl::StrCat("model ", model()), parameters_, name);
}

std::vector<PlaneRows> ReaderSession::RowsOf(int parameter, uint64_t generation) const {
  const auto [unit, in_unit] = places_[parameter];
  const ReadParameter& described = parameters_[parameter];
  std::vector<PlaneRows> result;
  for (int rank = 0; rank < layout_.ranks(); ++rank) {
    const RowRange rows = layout_.Extent(unit, in_unit, rank);
    if (rows.size() == 0) continue;
    const ArenaPlace place = layout_.PlaceInArena(unit, in_unit, Plane::kRowWise, rank);
    const PlaneMemory& planes = memory_.planes[rank];
    const uint8_t* const copy =
        planes.data.get() + static_cast<int64_t>(generation % copies_) * layout_.arena_bytes(rank);
    const auto bytes = [&](int64_t offset, int64_t size) {
      return size > 0 ? absl::MakeConstSpan(copy + offset, size) : absl::Span<const uint8_t>();
    };
    const Encoding& encoding = described.encoding;
    result.push_back({.first_row = rows.begin,
                      .matrix = {.rows = rows.size(),
                                 .columns = described.columns,
                                 .encoding = encoding,
                                 .plane = Plane::kRowWise,
                                 .data = bytes(place.data, DataBytes(encoding, rows.size(), described.columns)),
                                 .scales = bytes(place.scales,
                                                 ScaleBytes(encoding, Plane::kRowWise, rows.size(), described.columns)),
                                 .amax = bytes(place.amax, AmaxBytes(encoding.format)),
                                 .gpu = planes.gpu}});
  }
  return result;
}

std::string ReaderSession::publication_text() const {
  const std::string text = publication_.text();
  return text.empty() ? "no reason given" : IsUtf8(text) ? absl::Utf8SafeCHexEscape(text) : absl::CHexEscape(text);
}

absl::Status ReaderSession::CheckConnected() const {
  if (!companion_.IsLost()) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat("the daemon (pid ", companion_.daemon_pid(), ") has died, or has closed the reader's connection"));
}

absl::StatusOr<std::optional<ModelVersion>> ReaderSession::VersionOf(const wire::Gate& gate, std::string* data) const {
  // A copy that is half of another generation is dropped below.
  const wire::PublishedVersion published = publication_.version();
  std::atomic_thread_fence(std::memory_order_acquire);
  const wire::Gate now = publication_.gate();
  if (!now.readable() || now.generation != gate.generation) return std::nullopt;
  const absl::string_view history = published.history();
  const bool is_history = std::all_of(history.begin(), history.end(), [](char c) { return absl::ascii_isxdigit(c); });
  if (published.data_bytes > kMaxReaderDataBytes) {
    return absl::InternalError(absl::StrCat("publication page of ", model(), ": want at most ", kMaxReaderDataBytes,
                                            " bytes of data, got ", published.data_bytes));
  }
  if (is_history && published.commit_number >= 0 && published.version >= 0) {
    if (data != nullptr) *data = std::string(published.reader_data());
    return ModelVersion{.history_id = std::string(history),
                        .commit_number = published.commit_number,
                        .applied_commits = published.version};
  }
  return absl::InternalError(
      absl::StrCat("publication page of ", model(), ": want a history of hexadecimal digits, and numbers >= 0, got ",
                   DisplayName(history), ", commit ", published.commit_number, ", version ", published.version));
}

bool ReaderSession::Take(const wire::Gate& valid) {
  const absl::MutexLock lock(&mu_);
  // The word is in the page already: the writer saw it, if the gate is still valid.
  if (leased_ == valid.generation) {
    if (publication_.gate() != valid) return false;
    ++holders_;
    return true;
  }
  // Holders of an earlier generation have none to release any more.
  const bool taken = lease_.Take(publication_, valid);
  leased_ = taken ? valid.generation : 0;
  holders_ = taken ? 1 : 0;
  return taken;
}

void ReaderSession::Release(uint64_t generation) {
  const absl::MutexLock lock(&mu_);
  if (leased_ != generation || --holders_ > 0) return;
  leased_ = 0;
  lease_.Release();
}

}  // namespace paramshard::internal
