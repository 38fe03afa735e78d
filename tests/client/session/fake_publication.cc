#include "tests/client/session/fake_publication.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server_builder.h>

#include "absl/strings/str_cat.h"
#include "client/internal/sockets.h"
#include "common/model/layout_fingerprint.h"
#include "common/model/model_spec_proto.h"
#include "common/shared_memory/companion_packet.h"
#include "kernels/base/check.h"
#include "kernels/formats/codec.h"
#include "kernels/formats/format.h"

namespace paramshard {
namespace {

using wire::Gate;

ModelSpec CheckedSpec(const ModelSpec& spec) {
  absl::StatusOr<ModelSpec> checked = ParseModelSpec(ModelSpecToProto(spec));
  PARAMSHARD_CHECK(checked.ok());
  return *std::move(checked);
}

wire::FileDescriptor Listen(const std::string& path) {
  wire::FileDescriptor listener(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.data(), path.size());
  unlink(path.c_str());
  PARAMSHARD_CHECK(bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0);
  PARAMSHARD_CHECK(listen(listener.get(), 64) == 0);
  return listener;
}

}  // namespace

SharedMemory::SharedMemory(int64_t size_bytes) : fd(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING)) {
  PARAMSHARD_CHECK(ftruncate(fd.get(), size_bytes) == 0);
  PARAMSHARD_CHECK(fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0);
  absl::StatusOr<internal::MappedMemory> mapped =
      internal::MappedMemory::Map("test", fd, size_bytes, internal::MappedMemory::Access::kReadWrite);
  PARAMSHARD_CHECK(mapped.ok());
  mapping = *std::move(mapped);
}

wire::FileDescriptor SharedMemory::Duplicate() const {
  return wire::FileDescriptor(fcntl(fd.get(), F_DUPFD_CLOEXEC, 0));
}

wire::PublishedVersion VersionAt(int64_t commit_number, char history) {
  wire::PublishedVersion version{.commit_number = commit_number, .version = commit_number};
  std::fill_n(version.history_id, wire::kHistoryIdBytes, history);
  return version;
}

// --- FakePublication

FakePublication::FakePublication(const ModelSpec& spec, int ranks, int copies)
    : layout_(CheckedSpec(spec), ranks),
      copies_(copies),
      page_memory_(wire::PublicationPage::kBytes),
      page_(page_memory_.mapping.data()) {
  for (int rank = 0; rank < ranks; ++rank) arenas_.emplace_back(copies * layout_.arena_bytes(rank));
  page_.SetGate({.generation = 1, .state = Gate::State::kWriting});
}

uint8_t* FakePublication::arena(int rank) const {
  const auto copy = static_cast<int64_t>(page_.gate().generation % copies_);
  return arenas_[rank].mapping.data() + copy * layout_.arena_bytes(rank);
}

void FakePublication::Ask() const { page_.SetGate({page_.gate().generation, Gate::State::kAsked}); }

void FakePublication::BeginWriting(absl::string_view text) const {
  page_.SetGate({page_.gate().generation + 1, Gate::State::kWriting});
  page_.SetText(text);
}

void FakePublication::Publish(const wire::PublishedVersion& version) const {
  if (page_.gate().state != Gate::State::kWriting) BeginWriting();
  page_.SetVersion(version);
  page_.SetText("");
  page_.SetGate({page_.gate().generation, Gate::State::kValid});
}

void FakePublication::End(absl::string_view text) const {
  page_.SetGate({page_.gate().generation + 1, Gate::State::kWriting});
  page_.SetText(text);
  page_.SetGate({page_.gate().generation, Gate::State::kEnded});
}

void FakePublication::Encode(int unit, int parameter, const std::vector<float>& values) const {
  const ParameterSpec& spec = layout_.spec().units[unit].parameters[parameter];
  const Encoding encoding = EncodingOf(spec.encoding);
  const TensorScaling scaling{.amax = Amax(values.data(), static_cast<int64_t>(values.size())), .scale = kDelayedScale};
  for (int rank = 0; rank < layout_.ranks(); ++rank) {
    const RowRange rows = layout_.Extent(unit, parameter, rank);
    if (rows.size() == 0) continue;
    const ArenaPlace place = layout_.PlaceInArena(unit, parameter, Plane::kRowWise, rank);
    const auto at = [&](int64_t offset) { return offset < 0 ? nullptr : arena(rank) + offset; };
    EncodePlanes(encoding, values.data() + rows.begin * spec.columns(), rows.size(), spec.columns(),
                 {.data = at(place.data), .scales = at(place.scales), .amax = at(place.amax)}, {}, scaling);
  }
}

v1::OpenReaderResponse FakePublication::Answer() const {
  v1::OpenReaderResponse answer;
  *answer.mutable_spec() = ModelSpecToProto(layout_.spec());
  answer.set_shard_size(layout_.ranks());
  answer.set_layout_fingerprint(LayoutFingerprint(layout_));
  for (int rank = 0; rank < layout_.ranks(); ++rank) answer.add_gpu_uuids("");
  answer.set_copies(copies_);
  return answer;
}

internal::ReaderMemory FakePublication::Memory() {
  const SharedMemory& lease = leases_.emplace_back(wire::LeasePage::kBytes);
  internal::ReaderMemory memory{.publication = {page_memory_.Duplicate(), page_memory_.mapping.size_bytes()},
                                .lease = {lease.Duplicate(), lease.mapping.size_bytes()},
                                .planes = {}};
  for (const SharedMemory& arena : arenas_) memory.planes.push_back({arena.Duplicate(), arena.mapping.size_bytes()});
  return memory;
}

// --- FakeReaderDaemon

FakeReaderDaemon::FakeReaderDaemon(const std::string& directory) : end_(eventfd(0, EFD_CLOEXEC)) {
  const absl::StatusOr<internal::SocketPaths> paths = internal::FindSockets(directory);
  PARAMSHARD_CHECK(paths.ok());
  grpc::ServerBuilder builder;
  builder.AddListeningPort(absl::StrCat("unix:", paths->grpc), grpc::InsecureServerCredentials());
  builder.RegisterService(this);
  server_ = builder.BuildAndStart();
  PARAMSHARD_CHECK(server_ != nullptr);
  acceptor_ = std::thread([this, listener = Listen(paths->companion)] { Accept(listener.get()); });
}

FakeReaderDaemon::~FakeReaderDaemon() {
  eventfd_write(end_.get(), 1);
  acceptor_.join();
  server_->Shutdown(std::chrono::system_clock::now());
}

void FakeReaderDaemon::Accept(int listener) {
  while (true) {
    pollfd fds[] = {{.fd = end_.get(), .events = POLLIN, .revents = 0},
                    {.fd = listener, .events = POLLIN, .revents = 0}};
    poll(fds, 2, -1);
    if (fds[0].revents != 0) return;
    wire::FileDescriptor socket(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC));
    if (!wire::ReceiveCompanionPacket(socket.get(), absl::Seconds(30)).ok()) continue;
    const absl::MutexLock lock(&mu_);
    const std::string token = absl::StrCat(absl::Dec(connections_.size(), absl::kZeroPad16), "0123456789abcdef");
    wire::CompanionWelcome welcome;
    std::copy_n(token.data(), wire::kTokenBytes, welcome.token);
    const int pidfd = end_.get();
    // A client that has gone is the test's affair, here and below.
    wire::SendCompanionPacket(socket.get(), wire::CompanionBytes(welcome), absl::MakeConstSpan(&pidfd, 1))
        .IgnoreError();
    connections_.emplace(token, std::move(socket));
  }
}

void FakeReaderDaemon::SetModel(FakePublication* model) {
  const absl::MutexLock lock(&mu_);
  model_ = model;
}

void FakeReaderDaemon::SetAnswer(const grpc::Status& answer) {
  const absl::MutexLock lock(&mu_);
  answer_ = answer;
}

bool FakeReaderDaemon::AwaitAsked(int64_t times) {
  const absl::MutexLock lock(&mu_);
  const int64_t count = asked_ + times;
  const auto reached = [&]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return asked_ >= count; };
  return mu_.AwaitWithTimeout(absl::Condition(&reached), absl::Seconds(30));
}

int64_t FakeReaderDaemon::opened() const {
  const absl::MutexLock lock(&mu_);
  return opened_;
}

std::string FakeReaderDaemon::reader_name() const {
  const absl::MutexLock lock(&mu_);
  return reader_name_;
}

grpc::Status FakeReaderDaemon::OpenReader(grpc::ServerContext* context, const v1::OpenReaderRequest* request,
                                          v1::OpenReaderResponse* response) {
  const absl::MutexLock lock(&mu_);
  ++asked_;
  reader_name_ = request->name();
  const auto token = context->client_metadata().find(wire::kTokenMetadata);
  PARAMSHARD_CHECK(token != context->client_metadata().end());
  const auto connection = connections_.find(std::string(token->second.data(), token->second.size()));
  PARAMSHARD_CHECK(connection != connections_.end());
  if (!answer_.ok()) return answer_;
  if (model_ == nullptr || model_->layout().spec().name != request->model()) {
    return {grpc::StatusCode::NOT_FOUND, absl::StrCat("model ", request->model(), ": not found")};
  }
  const internal::ReaderMemory memory = model_->Memory();
  const int socket = connection->second.get();
  const wire::CompanionReader reader{.publication_bytes = memory.publication.bytes,
                                     .lease_bytes = memory.lease.bytes,
                                     .ranks = static_cast<int64_t>(memory.planes.size())};
  const int pages[] = {memory.publication.fd.get(), memory.lease.fd.get()};
  wire::SendCompanionPacket(socket, wire::CompanionBytes(reader), pages).IgnoreError();
  for (size_t rank = 0; rank < memory.planes.size(); ++rank) {
    const wire::CompanionPlanes planes{.rank = static_cast<int64_t>(rank), .bytes = memory.planes[rank].bytes};
    const int fd = memory.planes[rank].fd.get();
    wire::SendCompanionPacket(socket, wire::CompanionBytes(planes), absl::MakeConstSpan(&fd, 1)).IgnoreError();
  }
  *response = model_->Answer();
  ++opened_;
  return grpc::Status::OK;
}

}  // namespace paramshard
