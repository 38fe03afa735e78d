#include "server/world/remote_cluster.h"

#include <algorithm>
#include <optional>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include <grpcpp/grpcpp.h>

#include "absl/base/thread_annotations.h"
#include "absl/numeric/int128.h"
#include "absl/random/random.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "kernels/base/status_macros.h"
#include "paramshard/v1/cluster.grpc.pb.h"
#include "server/base/grpc_deadline.h"
#include "server/base/steady_cond_var.h"
#include "server/base/thread.h"
#include "server/observe/log.h"
#include "server/observe/log_throttle.h"
#include "server/world/cluster_messages.h"
#include "server/world/coordinator_calls.h"
#include "server/world/coordinator_link.h"
#include "server/world/epoch_dispatcher.h"
#include "server/world/membership.h"
#include "server/world/node_reports.h"
#include "server/world/stream_writer.h"

namespace paramshard::server {
namespace {

using JoinStream = grpc::ClientReaderWriter<v1::JoinRequest, v1::JoinResponse>;
using JoinWriter = StreamWriter<JoinStream, v1::JoinRequest>;

constexpr absl::Duration kFirstPause = absl::Milliseconds(20);
constexpr absl::Duration kLongestPause = absl::Milliseconds(500);
// Pause between attempts of a daemon whose place another daemon has taken.
constexpr absl::Duration kDisplacedPause = absl::Seconds(5);
// How long one attempt to join waits for the connection.
constexpr absl::Duration kConnectWait = absl::Milliseconds(200);
// How long node 0 may take to name the missing nodes.
constexpr absl::Duration kQuestionWait = absl::Seconds(2);
// Largest number of nodes accepted from node 0.
constexpr int kMostNodes = 1 << 20;

// Returns true if another attempt would be refused too.
bool IsRefusal(const absl::Status& status) {
  return absl::IsAlreadyExists(status) || absl::IsInvalidArgument(status) || absl::IsFailedPrecondition(status) ||
         absl::IsPermissionDenied(status) || absl::IsUnimplemented(status);
}

absl::uint128 DrawIncarnation() {
  absl::BitGen random;
  return absl::MakeUint128(random(), random());
}

absl::Status StoppedError(int node) {
  return absl::UnavailableError(absl::StrCat("cluster: node ", node, " has stopped"));
}

// Adds to `why` that this daemon's certificate has ended, if so. Node 0 closes the socket, or does not accept it,
// without giving a reason.
absl::Status WithCertificate(const RemoteOptions& options, const absl::Status& why) {
  if (why.ok() || options.own_certificate == nullptr) return why;
  const absl::Status own = options.own_certificate().status();
  return own.ok() ? why : absl::Status(why.code(), absl::StrCat(why.message(), "; ", own.message()));
}

// This process stood still, and one of the two daemons has to end.
void LogDisplaced(LogThrottle& throttle, const absl::Status& why) {
  if (const std::optional<int64_t> count = throttle.Pass(); count.has_value()) {
    Log(LogLevel::kError, "another daemon has taken the place of this one", {{"why", std::string(why.message())}},
        *count);
  }
}

// The renewal is tried again, with the certificate read anew.
void LogRefused(LogThrottle& throttle, const absl::Status& why) {
  const std::optional<int64_t> count = throttle.Pass();
  if (count.has_value()) {
    Log(LogLevel::kWarning, "failed to load renewed certificate", {{"why", std::string(why.message())}}, *count);
  }
}

class RemoteCluster final : public Cluster {
 public:
  explicit RemoteCluster(const RemoteOptions& options);
  ~RemoteCluster() override;

  // Called once, first.
  absl::Status Start();

  // Waits until node 0 has accepted or refused this node.
  absl::Status AwaitWelcome();

  int node() const override { return options_.node; }
  int nodes() const override;
  std::vector<int> device_counts() const override;
  absl::Status AwaitWorld(absl::Duration timeout) override;
  absl::Status CheckCoordinator() const override;
  void SetListener(EpochListener* listener) override { dispatcher_.SetListener(listener); }

  absl::Status Send(const FromNode& message) override;
  absl::StatusOr<CommitDecision> Vote(const CommitVote& vote) override { return requests_.Vote(vote); }
  absl::StatusOr<CommitDecision> QueryCommit(const CommitQuery& query) override { return requests_.QueryCommit(query); }
  std::unique_ptr<Rendezvous> MakeRendezvous(absl::string_view model, int64_t epoch) override;
  void Stop() override;

 private:
  // A stream to node 0 and its resources. Ended before it is destroyed.
  struct Stream {
    Stream(RemoteCluster& cluster, std::shared_ptr<CoordinatorLink> stream_link, int64_t number)
        : link(std::move(stream_link)), connection(number), call(cluster.requests_, absl::InfiniteDuration()) {}

    // Waits until node 0 has ended the stream.
    absl::Status End() {
      writer.reset();
      return FromGrpcStatus(stream->Finish());
    }
    absl::Status Abandon() {
      call.context.TryCancel();
      return End();
    }

    const std::shared_ptr<CoordinatorLink> link;
    const int64_t connection;
    CoordinatorCalls::Call call;
    std::unique_ptr<JoinStream> stream;
    std::unique_ptr<JoinWriter> writer;
  };
  using StreamPtr = std::unique_ptr<Stream>;

  void Run();
  // Joins and serves the stream until it breaks. Returns why it broke.
  absl::Status RunStream();
  // Opens a stream and sends the hello.
  absl::StatusOr<StreamPtr> OpenStream(std::shared_ptr<CoordinatorLink> link, bool resumes);
  void Begin(Stream& stream);
  // Takes messages until the stream ends. Returns the number of the connection on which it goes on, if any.
  std::optional<int64_t> Read(Stream& stream);
  void Close();
  // Returns a link whose certificate is not older than the one in the files.
  std::shared_ptr<CoordinatorLink> FreshLink();

  // Renewed certificates.
  void RunRenewals();
  // If there is another certificate, opens a stream that continues the current one.
  void Renew();
  // Notes that node 0 has accepted the next stream.
  absl::StatusOr<StreamPtr> OpenNext(std::shared_ptr<CoordinatorLink> link);
  // Returns the next stream; null if it broke.
  StreamPtr AwaitNext(int64_t connection);
  // Sends this node's messages on the other stream from now on.
  void Move(Stream& from, Stream& to);

  void Take(const v1::JoinResponse& response);
  void TakeWelcome(const Welcome& welcome) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // DEADLINE_EXCEEDED naming the missing nodes, if node 0 names them.
  absl::Status MissingError(absl::Duration timeout);
  void EndRunning(const absl::Status& why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Drops the message while there is no stream.
  void WriteOut(v1::JoinRequest request) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // Returns false if stopped.
  bool Pause(absl::Duration pause);

  // Constant after construction.
  const RemoteOptions options_;
  const absl::uint128 incarnation_ = DrawIncarnation();

  CoordinatorCalls requests_{options_};
  EpochDispatcher dispatcher_;
  std::thread thread_;    // set by Start, joined by the first Stop
  std::thread renewals_;  // likewise; only of a node with a certificate
  LogThrottle refusals_;  // of certificates
  LogThrottle displacements_;

  mutable absl::Mutex mu_;
  SteadyCondVar changed_;
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status refused_ ABSL_GUARDED_BY(mu_);  // if not OK, no further attempt
  absl::Status last_error_ ABSL_GUARDED_BY(mu_);
  std::vector<int> device_counts_ ABSL_GUARDED_BY(mu_);  // empty before the first welcome
  JoinWriter* writer_ ABSL_GUARDED_BY(mu_) = nullptr;    // of the stream, while there is one
  int64_t connection_ ABSL_GUARDED_BY(mu_) = 0;          // its number, or 0
  int64_t last_connection_ ABSL_GUARDED_BY(mu_) = 0;     // of all streams
  bool is_renewing_ ABSL_GUARDED_BY(mu_) = false;        // the next stream is being opened
  StreamPtr next_ ABSL_GUARDED_BY(mu_);                  // the stream that node 0 continues on
  bool joined_ ABSL_GUARDED_BY(mu_) = false;             // node 0 has welcomed the last stream
  int answers_ ABSL_GUARDED_BY(mu_) = 0;                 // of node 0 to world questions
  NodeReports reports_ ABSL_GUARDED_BY(mu_);
};

class RemoteRendezvous final : public Rendezvous {
 public:
  RemoteRendezvous(CoordinatorCalls* calls, int node, absl::string_view model, int64_t epoch)
      : calls_(calls), node_(node), model_(model), epoch_(epoch) {}

  absl::Status Put(absl::string_view key, absl::string_view value) override {
    v1::PutValueRequest request;
    request.set_model(model_);
    request.set_epoch(epoch_);
    request.set_key(std::string(key));
    request.set_value(std::string(value));
    request.set_node(node_);
    return calls_->Put(request);
  }

  absl::StatusOr<std::string> Get(int node, absl::string_view key, absl::Duration timeout) override {
    v1::GetValueRequest request = GetRequest(key);
    request.set_of_node(node);
    ASSIGN_OR_RETURN(v1::GetValueResponse response, calls_->Get(std::move(request), timeout));
    return std::move(*response.mutable_value());
  }

  absl::Status PutParts(absl::string_view key, const std::vector<std::string>& parts) override {
    v1::PutValueRequest request;
    request.set_model(model_);
    request.set_epoch(epoch_);
    request.set_key(std::string(key));
    request.set_node(node_);
    request.mutable_parts()->Assign(parts.begin(), parts.end());
    return calls_->Put(request);
  }

  absl::StatusOr<std::vector<std::string>> GetParts(absl::string_view key, absl::Duration timeout) override {
    v1::GetValueRequest request = GetRequest(key);
    request.set_of_parts(true);
    ASSIGN_OR_RETURN(const v1::GetValueResponse response, calls_->Get(std::move(request), timeout));
    return std::vector<std::string>(response.parts().begin(), response.parts().end());
  }

 private:
  v1::GetValueRequest GetRequest(absl::string_view key) const {
    v1::GetValueRequest request;
    request.set_model(model_);
    request.set_epoch(epoch_);
    request.set_key(std::string(key));
    request.set_node(node_);
    return request;
  }

  CoordinatorCalls* const calls_;
  const int node_;
  const std::string model_;
  const int64_t epoch_;
};

RemoteCluster::RemoteCluster(const RemoteOptions& options) : options_(options) {}

RemoteCluster::~RemoteCluster() { Stop(); }

absl::Status RemoteCluster::Start() {
  RETURN_IF_ERROR(dispatcher_.Start());
  ASSIGN_OR_RETURN(thread_, StartThread("the stream to node 0", [this] { Run(); }));
  if (options_.own_certificate == nullptr) return absl::OkStatus();
  ASSIGN_OR_RETURN(renewals_, StartThread("renewed certificates", [this] { RunRenewals(); }));
  return absl::OkStatus();
}

void RemoteCluster::Stop() {
  {
    absl::MutexLock lock(&mu_);
    if (std::exchange(stopped_, true)) return;
    changed_.SignalAll();
  }
  requests_.Stop();
  for (std::thread* thread : {&renewals_, &thread_}) {
    if (thread->joinable()) thread->join();
  }
}

bool RemoteCluster::Pause(absl::Duration pause) {
  const SteadyTime deadline = SteadyDeadline(pause);
  absl::MutexLock lock(&mu_);
  while (!stopped_ && !changed_.WaitUntil(&mu_, deadline)) {
  }
  return !stopped_;
}

// The stream.

void RemoteCluster::Run() {
  absl::Duration pause = kFirstPause;
  absl::BitGen random;
  // Until then node 0 may not have noticed that the daemon that had this node number before is gone.
  const SteadyTime ghosts_end = SteadyDeadline(options_.ghost_timeout);
  do {
    const absl::Status why = WithCertificate(options_, RunStream());
    absl::MutexLock lock(&mu_);
    last_error_ = why;
    if (joined_ && !stopped_) {
      Log(LogLevel::kWarning, "lost node 0, rejoining the cluster", {{"why", std::string(why.message())}});
    }
    EndRunning(why);
    // Before the first welcome this daemon is not part of the world. Later, node 0 may still know an older stream of
    // it.
    const bool may_be_ghost = absl::IsAlreadyExists(why) && SteadyNow() < ghosts_end;
    if (device_counts_.empty() && IsRefusal(why) && !may_be_ghost) refused_ = why;
    changed_.SignalAll();
    if (!refused_.ok()) return;
    pause = joined_ ? kFirstPause : std::min(2 * pause, kLongestPause);
    if (!device_counts_.empty() && absl::IsAlreadyExists(why)) {
      LogDisplaced(displacements_, why);
      pause = kDisplacedPause;
    }
    // Random pauses keep daemons that have lost node 0 together from coming back together.
  } while (Pause(absl::Uniform(random, 0.5, 1.0) * pause));
}

absl::Status RemoteCluster::RunStream() {
  ASSIGN_OR_RETURN(StreamPtr stream, OpenStream(FreshLink(), /*resumes=*/false));
  Begin(*stream);
  while (const std::optional<int64_t> moved = Read(*stream)) {
    StreamPtr next = AwaitNext(*moved);
    if (next == nullptr) {
      Close();
      (void)stream->Abandon();
      return absl::UnavailableError("the connection for a renewed certificate broke");
    }
    Move(*stream, *next);
    // Node 0 ends the stream when it has read all of it.
    (void)Read(*stream);
    (void)stream->End();
    stream = std::move(next);
  }
  Close();
  return stream->End();
}

absl::StatusOr<RemoteCluster::StreamPtr> RemoteCluster::OpenStream(std::shared_ptr<CoordinatorLink> link,
                                                                   bool resumes) {
  // Attempts pause by the steady clock. gRPC's own backoff waits by the wall clock, and would last longer by as much as
  // that is set back.
  grpc::experimental::ChannelResetConnectionBackoff(link->channel.get());
  // A channel connects only while a thread waits on it: without this the handshake could take seconds between calls.
  link->channel->WaitForConnected(GrpcDeadline(kConnectWait));
  int64_t connection = 0;
  {
    absl::MutexLock lock(&mu_);
    connection = ++last_connection_;
  }
  auto opened = std::make_unique<Stream>(*this, std::move(link), connection);
  opened->stream = opened->link->stub->Join(&opened->call.context);
  absl::StatusOr<std::unique_ptr<JoinWriter>> writer =
      JoinWriter::Start(opened->stream.get(), [call = &opened->call] { call->context.TryCancel(); });
  if (!writer.ok()) {
    (void)opened->Abandon();
    return writer.status();
  }
  opened->writer = *std::move(writer);
  v1::JoinRequest hello =
      HelloMessage(options_.node, options_.nodes, options_.devices, options_.terms, options_.address);
  SetConnection(hello, incarnation_, connection, resumes);
  opened->writer->Write(std::move(hello));
  return opened;
}

void RemoteCluster::Begin(Stream& stream) {
  absl::MutexLock lock(&mu_);
  writer_ = stream.writer.get();
  connection_ = stream.connection;
  joined_ = false;
  for (const auto& [model, report] : reports_.reports()) WriteOut(ToProto(report));
}

std::optional<int64_t> RemoteCluster::Read(Stream& stream) {
  v1::JoinResponse response;
  while (stream.stream->Read(&response)) {
    if (response.has_moved()) return response.moved().connection();
    Take(response);
  }
  return std::nullopt;
}

void RemoteCluster::Close() {
  StreamPtr next;
  {
    absl::MutexLock lock(&mu_);
    writer_ = nullptr;
    connection_ = 0;
    next = std::move(next_);
  }
  if (next != nullptr) (void)next->Abandon();
}

absl::Status RemoteCluster::CheckCoordinator() const {
  absl::MutexLock lock(&mu_);
  if (joined_ && writer_ != nullptr) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(CoordinatorName(options_), " is not reached: ", last_error_.message()));
}

std::shared_ptr<CoordinatorLink> RemoteCluster::FreshLink() {
  const std::shared_ptr<CoordinatorLink> last = requests_.link();
  if (options_.own_certificate == nullptr) return last;
  const absl::StatusOr<tls::Certificate> certificate = options_.own_certificate();
  if (!certificate.ok() || certificate->fingerprint == last->certificate) return last;
  std::shared_ptr<CoordinatorLink> fresh = MakeCoordinatorLink(options_);
  requests_.SetLink(fresh);
  return fresh;
}

// Renewed certificates.

void RemoteCluster::RunRenewals() {
  while (Pause(options_.renewal_period)) Renew();
}

void RemoteCluster::Renew() {
  const absl::StatusOr<tls::Certificate> certificate = options_.own_certificate();
  if (!certificate.ok()) return LogRefused(refusals_, certificate.status());
  int64_t before = 0;
  {
    absl::MutexLock lock(&mu_);
    if (!joined_ || connection_ == 0 || next_ != nullptr || certificate->fingerprint == requests_.link()->certificate)
      return;
    before = connection_;
    is_renewing_ = true;
  }
  absl::StatusOr<StreamPtr> next = OpenNext(MakeCoordinatorLink(options_));
  {
    absl::MutexLock lock(&mu_);
    is_renewing_ = false;
    changed_.SignalAll();
    if (next.ok() && connection_ == before) {
      next_ = *std::move(next);
      return;
    }
  }
  if (!next.ok()) return LogRefused(refusals_, next.status());
  (void)(*next)->Abandon();  // the stream that it goes on from is gone
}

absl::StatusOr<RemoteCluster::StreamPtr> RemoteCluster::OpenNext(std::shared_ptr<CoordinatorLink> link) {
  ASSIGN_OR_RETURN(StreamPtr next, OpenStream(std::move(link), /*resumes=*/true));
  v1::JoinResponse welcome;
  if (next->stream->Read(&welcome) && welcome.has_welcome()) return next;
  const absl::Status why = next->Abandon();
  return why.ok() ? absl::UnavailableError(absl::StrCat(CoordinatorName(options_), " has ended the stream")) : why;
}

RemoteCluster::StreamPtr RemoteCluster::AwaitNext(int64_t connection) {
  absl::MutexLock lock(&mu_);
  while (!stopped_ && is_renewing_) changed_.Wait(&mu_);
  if (next_ == nullptr || next_->connection != connection) return nullptr;
  return std::move(next_);
}

void RemoteCluster::Move(Stream& from, Stream& to) {
  {
    absl::MutexLock lock(&mu_);
    from.writer->Write(NodeMovedMessage(to.connection));
    writer_ = to.writer.get();
    connection_ = to.connection;
    requests_.SetLink(to.link);
  }
  Log(LogLevel::kInfo, "renewed certificate in use", {{"connection", absl::StrCat(to.connection)}});
}

// Messages.

void RemoteCluster::WriteOut(v1::JoinRequest request) {
  if (writer_ != nullptr) writer_->Write(std::move(request));
}

void RemoteCluster::Take(const v1::JoinResponse& response) {
  std::optional<ToNode> message = FromProto(response);
  if (!message.has_value()) return;
  absl::MutexLock lock(&mu_);
  const Overloaded take = {
      [&](const Welcome& welcome) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { TakeWelcome(welcome); },
      [&](const Probe&) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { WriteOut(ProbeAnswerMessage()); },
      [](const auto&) {},
  };
  std::visit(take, *message);
  reports_.Note(*message);
  dispatcher_.Add(*std::move(message));
}

void RemoteCluster::TakeWelcome(const Welcome& welcome) {
  // A stream begins with a welcome, and may carry more of them.
  if (!std::exchange(joined_, true) && !device_counts_.empty()) {
    Log(LogLevel::kInfo, "rejoined the cluster", {});
  }
  const bool has_counts = static_cast<int>(welcome.device_counts.size()) == welcome.nodes;
  if (has_counts) ++answers_;
  // Counts are final once all are known; a restarted node 0 learns them again.
  if (!IsSized(device_counts_) && welcome.nodes > 0 && welcome.nodes <= kMostNodes) {
    device_counts_.assign(welcome.nodes, 0);
    if (has_counts) device_counts_ = welcome.device_counts;
  }
  changed_.SignalAll();
}

void RemoteCluster::EndRunning(const absl::Status& why) {
  for (const auto& [model, epoch] : reports_.EndEpochs()) {
    dispatcher_.Add(EpochEnded{
        .model = model,
        .epoch = epoch,
        .why = absl::UnavailableError(absl::StrCat(CoordinatorName(options_), " lost: ", why.message(),
                                                   "; without it no commit of ", model, " can be decided"))});
  }
  const absl::Status lost = absl::UnavailableError(absl::StrCat(CoordinatorName(options_), " lost: ", why.message()));
  dispatcher_.Add(SaveMessage{.model = {}, .what = SaveLeaderLost{lost}});
  dispatcher_.Add(RestoreMessage{.model = {}, .what = RestoreLeaderLost{lost}});
}

// The world.

absl::Status RemoteCluster::AwaitWelcome() {
  const SteadyTime deadline = SteadyDeadline(options_.join_timeout);
  absl::MutexLock lock(&mu_);
  while (!stopped_ && device_counts_.empty() && refused_.ok() && !changed_.WaitUntil(&mu_, deadline)) {
  }
  if (!refused_.ok()) return refused_;
  if (!device_counts_.empty()) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("join node ", options_.node, ": timed out after ",
                                             absl::FormatDuration(options_.join_timeout), " waiting for ",
                                             CoordinatorName(options_), ": ", last_error_.message()));
}

int RemoteCluster::nodes() const {
  absl::MutexLock lock(&mu_);
  return static_cast<int>(device_counts_.size());
}

std::vector<int> RemoteCluster::device_counts() const {
  absl::MutexLock lock(&mu_);
  return device_counts_;
}

absl::Status RemoteCluster::AwaitWorld(absl::Duration timeout) {
  const SteadyTime deadline = SteadyDeadline(timeout);
  {
    absl::MutexLock lock(&mu_);
    while (!stopped_ && !IsSized(device_counts_) && !changed_.WaitUntil(&mu_, deadline)) {
    }
    if (stopped_) return StoppedError(options_.node);
    if (IsSized(device_counts_)) return absl::OkStatus();
  }
  return MissingError(timeout);
}

absl::Status RemoteCluster::MissingError(absl::Duration timeout) {
  const SteadyTime deadline = SteadyDeadline(kQuestionWait);
  absl::MutexLock lock(&mu_);
  const int before = answers_;
  WriteOut(ToProto(WorldQuestion()));
  while (!stopped_ && answers_ == before && !changed_.WaitUntil(&mu_, deadline)) {
  }
  if (stopped_) return StoppedError(options_.node);
  if (IsSized(device_counts_)) return absl::OkStatus();
  if (answers_ != before) return MissingNodesError(device_counts_, timeout);
  return absl::DeadlineExceededError(absl::StrCat("join the world: timed out after ", absl::FormatDuration(timeout),
                                                  " waiting for ", device_counts_.size(), " nodes, and ",
                                                  CoordinatorName(options_), " does not say which are missing"));
}

// Models.

absl::Status RemoteCluster::Send(const FromNode& message) {
  v1::JoinRequest request = ToProto(message);
  if (const auto* const deleted = std::get_if<ModelDeleted>(&message); deleted != nullptr) {
    requests_.Forget(deleted->model);
  }
  absl::MutexLock lock(&mu_);
  reports_.Note(message);
  if (writer_ == nullptr) return absl::UnavailableError(absl::StrCat(CoordinatorName(options_), " is not reached"));
  WriteOut(std::move(request));
  return absl::OkStatus();
}

// Rendezvous.

std::unique_ptr<Rendezvous> RemoteCluster::MakeRendezvous(absl::string_view model, int64_t epoch) {
  return std::make_unique<RemoteRendezvous>(&requests_, options_.node, model, epoch);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Cluster>> MakeRemoteCluster(const RemoteOptions& options) {
  auto cluster = std::make_unique<RemoteCluster>(options);
  RETURN_IF_ERROR(cluster->Start());
  const std::stop_callback give_up(options.stop, [joining = cluster.get()] { joining->Stop(); });
  RETURN_IF_ERROR(cluster->AwaitWelcome());
  return cluster;
}

}  // namespace paramshard::server
