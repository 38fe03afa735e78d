#include "server/world/remote_cluster.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include <grpcpp/grpcpp.h>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/numeric/int128.h"
#include "absl/random/random.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "common/rpc/durations.h"
#include "common/rpc/status.h"
#include "kernels/base/status_macros.h"
#include "paramshard/v1/cluster.grpc.pb.h"
#include "server/base/grpc_deadline.h"
#include "server/base/steady_cond_var.h"
#include "server/base/thread.h"
#include "server/observe/log.h"
#include "server/observe/log_throttle.h"
#include "server/world/cluster_messages.h"
#include "server/world/epoch_dispatcher.h"
#include "server/world/membership.h"
#include "server/world/node_zero_link.h"
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
// How long one call that does not wait may take.
constexpr absl::Duration kPutWait = absl::Seconds(5);
// How long one GetValue call waits: a value may take as long as the start of an epoch.
constexpr absl::Duration kValueWait = absl::Seconds(30);
// How long node 0 may take to name the missing nodes.
constexpr absl::Duration kQuestionWait = absl::Seconds(2);
// Largest number of nodes accepted from node 0.
constexpr int kMostNodes = 1 << 20;
// How much longer a call may take than the wait that it asks for.
constexpr absl::Duration kCallSlack = absl::Seconds(2);

// Returns true if another attempt would be refused too.
bool IsRefusal(const absl::Status& status) {
  return absl::IsAlreadyExists(status) || absl::IsInvalidArgument(status) || absl::IsFailedPrecondition(status) ||
         absl::IsPermissionDenied(status) || absl::IsUnimplemented(status);
}

// Returns true if the connection ended before the answer came.
bool IsCutOff(const absl::Status& status) { return absl::IsUnavailable(status) || absl::IsCancelled(status); }

absl::uint128 DrawIncarnation() {
  absl::BitGen random;
  return absl::MakeUint128(random(), random());
}

// Returns true if the status is the coordinator's answer to a vote; any other error leaves the node in doubt.
bool IsRefusedVote(const absl::Status& status) {
  return absl::IsAborted(status) || absl::IsFailedPrecondition(status) || absl::IsInvalidArgument(status) ||
         absl::IsDataLoss(status);
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
  absl::Status CheckNodeZero() const override;
  void SetListener(EpochListener* listener) override { dispatcher_.SetListener(listener); }

  void Report(const ModelReport& report) override;
  void Forget(absl::string_view model) override;
  void EndEpoch(absl::string_view model, int64_t epoch, const absl::Status& why) override;
  void EndOnBadLinks(absl::string_view model, int64_t epoch, const absl::Status& why,
                     const std::vector<BadLink>& links) override;
  void ReportCommands(absl::string_view model, int64_t epoch, const std::vector<CommandInWords>& commands) override;
  void ReportDetached(absl::string_view model, int64_t epoch, int rank, int64_t command_count,
                      const absl::Status& why) override;
  void ReportCarriedOut(absl::string_view model, int64_t epoch, int64_t command, bool more) override;
  absl::StatusOr<CommitDecision> Vote(const CommitVote& vote) override;
  absl::StatusOr<CommitDecision> QueryCommit(const CommitQuery& query) override;
  std::unique_ptr<Rendezvous> MakeRendezvous(absl::string_view model, int64_t epoch) override;
  absl::Status TellSave(const SaveNews& news) override;
  absl::Status TellRestore(const RestoreNews& news) override;
  void Stop() override;

  absl::Status Put(const v1::PutValueRequest& request);
  absl::StatusOr<v1::GetValueResponse> Get(v1::GetValueRequest request, absl::Duration timeout);

 private:
  // A waiting vote, or a query about a commit. Forget ends it.
  struct Ballot {
    std::string model;
    int64_t commit_number = 0;
    bool forgotten = false;  // guarded by mu_
  };

  // A call that Stop cancels; Forget too, if it belongs to a ballot.
  class Call {
   public:
    Call(RemoteCluster& cluster, absl::Duration timeout, const Ballot* ballot = nullptr);
    ~Call();
    grpc::ClientContext context;

   private:
    RemoteCluster& cluster_;
  };

  // A stream to node 0 and its resources. Ended before it is destroyed.
  struct Stream {
    Stream(RemoteCluster& cluster, std::shared_ptr<NodeZeroLink> stream_link, int64_t number)
        : link(std::move(stream_link)), connection(number), call(cluster, absl::InfiniteDuration()) {}

    // Waits until node 0 has ended the stream.
    absl::Status End() {
      writer.reset();
      return FromGrpcStatus(stream->Finish());
    }
    absl::Status Abandon() {
      call.context.TryCancel();
      return End();
    }

    const std::shared_ptr<NodeZeroLink> link;
    const int64_t connection;
    Call call;
    std::unique_ptr<JoinStream> stream;
    std::unique_ptr<JoinWriter> writer;
  };
  using StreamPtr = std::unique_ptr<Stream>;

  void Run();
  // Joins and serves the stream until it breaks. Returns why it broke.
  absl::Status RunStream();
  // Opens a stream and sends the hello.
  absl::StatusOr<StreamPtr> OpenStream(std::shared_ptr<NodeZeroLink> link, bool goes_on);
  void Begin(Stream& stream);
  // Takes messages until the stream ends. Returns the number of the connection on which it goes on, if any.
  std::optional<int64_t> Read(Stream& stream);
  void Close();
  // Returns a link whose certificate is not older than the one in the files.
  std::shared_ptr<NodeZeroLink> FreshLink();
  std::shared_ptr<NodeZeroLink> link() const;
  // Adds to `why` that this daemon's certificate has ended, if so.
  absl::Status WithCertificate(const absl::Status& why) const;

  // Renewed certificates.
  void RunRenewals();
  // If there is another certificate, opens a stream that continues the current one.
  void Renew();
  void LogRefused(const absl::Status& why);
  void LogDisplaced(const absl::Status& why);
  // Notes that node 0 has accepted the next stream.
  absl::StatusOr<StreamPtr> OpenNext(std::shared_ptr<NodeZeroLink> link);
  // Returns the next stream; null if it broke.
  StreamPtr AwaitNext(int64_t connection);
  // Sends this node's messages on the other stream from now on.
  void Move(Stream& from, Stream& to);

  void Take(const v1::JoinResponse& response);
  void TakeWelcome(const v1::Welcome& welcome) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // DEADLINE_EXCEEDED naming the missing nodes, if node 0 names them.
  absl::Status MissingError(absl::Duration timeout);
  // Forgets the model's attached trainers, which must be reported anew.
  void ForgetAttached(const std::string& model) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The same at the end of an epoch. Does nothing for an epoch that this node has ended itself: trainers reported since
  // then wait for the next epoch.
  void ForgetEpoch(const std::string& model, int64_t epoch) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void EndRunning(const absl::Status& why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // UNAVAILABLE while there is no stream.
  absl::Status Tell(v1::JoinRequest request);
  // Drops the message while there is no stream.
  void Send(v1::JoinRequest request) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // Returns false if stopped.
  bool Pause(absl::Duration pause);
  void ObserveRoundTrip(absl::Duration took, const v1::VoteResponse& response);
  // Makes one call, which may take so long. Returns nothing if node 0 waits for other nodes.
  using AskOnce = absl::FunctionRef<absl::StatusOr<std::optional<CommitDecision>>(grpc::ClientContext& context)>;
  // Asks until node 0 answers, or the doubt has lasted too long.
  absl::StatusOr<CommitDecision> Ask(Ballot ballot, absl::Duration wait, AskOnce ask);
  absl::StatusOr<CommitDecision> Repeat(const Ballot& ballot, absl::Duration wait, AskOnce ask);
  // Returns false if the vote must not be repeated.
  bool PauseBallot(const Ballot& ballot, absl::Duration pause);
  // Returns why a vote is not repeated.
  absl::Status GivenUpError(const Ballot& ballot);
  absl::Status StoppedError() const;
  std::string CoordinatorName() const { return absl::StrCat("node 0 (", options_.coordinator_address, ")"); }

  // Constant after construction.
  const RemoteOptions options_;
  const absl::uint128 incarnation_ = DrawIncarnation();

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
  std::vector<int> device_counts_ ABSL_GUARDED_BY(mu_);                           // empty before the first welcome
  std::shared_ptr<NodeZeroLink> link_ ABSL_GUARDED_BY(mu_);                       // of calls
  JoinWriter* writer_ ABSL_GUARDED_BY(mu_) = nullptr;                             // of the stream, while there is one
  int64_t connection_ ABSL_GUARDED_BY(mu_) = 0;                                   // its number, or 0
  int64_t last_connection_ ABSL_GUARDED_BY(mu_) = 0;                              // of all streams
  bool is_renewing_ ABSL_GUARDED_BY(mu_) = false;                                 // the next stream is being opened
  StreamPtr next_ ABSL_GUARDED_BY(mu_);                                           // the stream that node 0 continues on
  bool joined_ ABSL_GUARDED_BY(mu_) = false;                                      // node 0 has welcomed the last stream
  int answers_ ABSL_GUARDED_BY(mu_) = 0;                                          // of node 0 to world questions
  std::map<std::string, ModelReport, std::less<>> reports_ ABSL_GUARDED_BY(mu_);  // sent again on every new stream
  std::map<std::string, int64_t, std::less<>> running_ ABSL_GUARDED_BY(mu_);      // epochs by model
  std::set<Ballot*> ballots_ ABSL_GUARDED_BY(mu_);
  std::map<grpc::ClientContext*, const Ballot*> calls_ ABSL_GUARDED_BY(mu_);  // null if it belongs to no ballot
};

class RemoteRendezvous final : public Rendezvous {
 public:
  RemoteRendezvous(RemoteCluster* cluster, absl::string_view model, int64_t epoch)
      : cluster_(cluster), model_(model), epoch_(epoch) {}

  absl::Status Put(absl::string_view key, absl::string_view value) override {
    v1::PutValueRequest request;
    request.set_model(model_);
    request.set_epoch(epoch_);
    request.set_key(std::string(key));
    request.set_value(std::string(value));
    request.set_node(cluster_->node());
    return cluster_->Put(request);
  }

  absl::StatusOr<std::string> Get(int node, absl::string_view key, absl::Duration timeout) override {
    v1::GetValueRequest request = GetRequest(key);
    request.set_of_node(node);
    ASSIGN_OR_RETURN(v1::GetValueResponse response, cluster_->Get(std::move(request), timeout));
    return std::move(*response.mutable_value());
  }

  absl::Status PutParts(absl::string_view key, const std::vector<std::string>& parts) override {
    v1::PutValueRequest request;
    request.set_model(model_);
    request.set_epoch(epoch_);
    request.set_key(std::string(key));
    request.set_node(cluster_->node());
    request.mutable_parts()->Assign(parts.begin(), parts.end());
    return cluster_->Put(request);
  }

  absl::StatusOr<std::vector<std::string>> GetParts(absl::string_view key, absl::Duration timeout) override {
    v1::GetValueRequest request = GetRequest(key);
    request.set_of_parts(true);
    ASSIGN_OR_RETURN(const v1::GetValueResponse response, cluster_->Get(std::move(request), timeout));
    return std::vector<std::string>(response.parts().begin(), response.parts().end());
  }

 private:
  v1::GetValueRequest GetRequest(absl::string_view key) const {
    v1::GetValueRequest request;
    request.set_model(model_);
    request.set_epoch(epoch_);
    request.set_key(std::string(key));
    request.set_node(cluster_->node());
    return request;
  }

  RemoteCluster* const cluster_;
  const std::string model_;
  const int64_t epoch_;
};

RemoteCluster::Call::Call(RemoteCluster& cluster, absl::Duration timeout, const Ballot* ballot) : cluster_(cluster) {
  if (timeout != absl::InfiniteDuration()) context.set_deadline(GrpcDeadline(timeout));
  absl::MutexLock lock(&cluster_.mu_);
  cluster_.calls_.emplace(&context, ballot);
  if (cluster_.stopped_ || (ballot != nullptr && ballot->forgotten)) context.TryCancel();
}

RemoteCluster::Call::~Call() {
  absl::MutexLock lock(&cluster_.mu_);
  cluster_.calls_.erase(&context);
}

RemoteCluster::RemoteCluster(const RemoteOptions& options) : options_(options), link_(MakeNodeZeroLink(options)) {}

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
    for (const auto& [call, ballot] : calls_) call->TryCancel();
    changed_.SignalAll();
  }
  for (std::thread* thread : {&renewals_, &thread_}) {
    if (thread->joinable()) thread->join();
  }
}

absl::Status RemoteCluster::StoppedError() const {
  return absl::UnavailableError(absl::StrCat("cluster: node ", options_.node, " has stopped"));
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
    const absl::Status why = WithCertificate(RunStream());
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
      LogDisplaced(why);
      pause = kDisplacedPause;
    }
    // Random pauses keep daemons that have lost node 0 together from coming back together.
  } while (Pause(absl::Uniform(random, 0.5, 1.0) * pause));
}

absl::Status RemoteCluster::RunStream() {
  ASSIGN_OR_RETURN(StreamPtr stream, OpenStream(FreshLink(), /*goes_on=*/false));
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

absl::StatusOr<RemoteCluster::StreamPtr> RemoteCluster::OpenStream(std::shared_ptr<NodeZeroLink> link, bool goes_on) {
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
  v1::JoinRequest hello = HelloMessage(options_.node, options_.nodes, options_.devices, options_.terms);
  SetConnection(hello, incarnation_, connection, goes_on);
  opened->writer->Write(std::move(hello));
  return opened;
}

void RemoteCluster::Begin(Stream& stream) {
  absl::MutexLock lock(&mu_);
  writer_ = stream.writer.get();
  connection_ = stream.connection;
  joined_ = false;
  for (const auto& [model, report] : reports_) Send(ReportMessage(report));
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

absl::Status RemoteCluster::CheckNodeZero() const {
  absl::MutexLock lock(&mu_);
  if (joined_ && writer_ != nullptr) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(CoordinatorName(), " is not reached: ", last_error_.message()));
}

std::shared_ptr<NodeZeroLink> RemoteCluster::link() const {
  absl::MutexLock lock(&mu_);
  return link_;
}

std::shared_ptr<NodeZeroLink> RemoteCluster::FreshLink() {
  const std::shared_ptr<NodeZeroLink> last = link();
  if (options_.own_certificate == nullptr) return last;
  const absl::StatusOr<tls::Certificate> certificate = options_.own_certificate();
  if (!certificate.ok() || certificate->fingerprint == last->certificate) return last;
  std::shared_ptr<NodeZeroLink> fresh = MakeNodeZeroLink(options_);
  absl::MutexLock lock(&mu_);
  link_ = fresh;
  return fresh;
}

// Node 0 closes the socket, or does not accept it, without giving a reason.
absl::Status RemoteCluster::WithCertificate(const absl::Status& why) const {
  if (why.ok() || options_.own_certificate == nullptr) return why;
  const absl::Status own = options_.own_certificate().status();
  return own.ok() ? why : absl::Status(why.code(), absl::StrCat(why.message(), "; ", own.message()));
}

// Renewed certificates.

void RemoteCluster::RunRenewals() {
  while (Pause(options_.renewal_period)) Renew();
}

void RemoteCluster::Renew() {
  const absl::StatusOr<tls::Certificate> certificate = options_.own_certificate();
  if (!certificate.ok()) return LogRefused(certificate.status());
  int64_t before = 0;
  {
    absl::MutexLock lock(&mu_);
    if (!joined_ || connection_ == 0 || next_ != nullptr || certificate->fingerprint == link_->certificate) return;
    before = connection_;
    is_renewing_ = true;
  }
  absl::StatusOr<StreamPtr> next = OpenNext(MakeNodeZeroLink(options_));
  {
    absl::MutexLock lock(&mu_);
    is_renewing_ = false;
    changed_.SignalAll();
    if (next.ok() && connection_ == before) {
      next_ = *std::move(next);
      return;
    }
  }
  if (!next.ok()) return LogRefused(next.status());
  (void)(*next)->Abandon();  // the stream that it goes on from is gone
}

// This process stood still, and one of the two daemons has to end.
void RemoteCluster::LogDisplaced(const absl::Status& why) {
  if (const std::optional<int64_t> count = displacements_.Pass(); count.has_value()) {
    Log(LogLevel::kError, "another daemon has taken the place of this one", {{"why", std::string(why.message())}},
        *count);
  }
}

// The renewal is tried again, with the certificate read anew.
void RemoteCluster::LogRefused(const absl::Status& why) {
  const std::optional<int64_t> count = refusals_.Pass();
  if (count.has_value()) {
    Log(LogLevel::kWarning, "failed to load renewed certificate", {{"why", std::string(why.message())}}, *count);
  }
}

absl::StatusOr<RemoteCluster::StreamPtr> RemoteCluster::OpenNext(std::shared_ptr<NodeZeroLink> link) {
  ASSIGN_OR_RETURN(StreamPtr next, OpenStream(std::move(link), /*goes_on=*/true));
  v1::JoinResponse welcome;
  if (next->stream->Read(&welcome) && welcome.has_welcome()) return next;
  const absl::Status why = next->Abandon();
  return why.ok() ? absl::UnavailableError(absl::StrCat(CoordinatorName(), " has ended the stream")) : why;
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
    link_ = to.link;
  }
  Log(LogLevel::kInfo, "renewed certificate in use", {{"connection", absl::StrCat(to.connection)}});
}

// Messages.

void RemoteCluster::Send(v1::JoinRequest request) {
  if (writer_ != nullptr) writer_->Write(std::move(request));
}

void RemoteCluster::Take(const v1::JoinResponse& response) {
  absl::MutexLock lock(&mu_);
  if (response.has_welcome()) {
    TakeWelcome(response.welcome());
  } else if (response.has_probe()) {
    Send(ProbeAnswerMessage());
  } else if (response.has_start()) {
    const v1::EpochStart& start = response.start();
    running_[start.model()] = start.epoch();
    // An earlier report is outdated by the epoch's first commit, and is not sent again.
    reports_.erase(start.model());
    dispatcher_.EpochStart(start.model(), EpochStartOf(start));
  } else if (response.has_last_command()) {
    const v1::LastCommand& last = response.last_command();
    dispatcher_.LastCommand(last.model(), last.epoch(), last.command());
  } else if (response.has_commands_wanted()) {
    const v1::CommandsWanted& wanted = response.commands_wanted();
    dispatcher_.CommandsWanted(wanted.model(), wanted.epoch(), CommandsThroughOf(wanted.unless()));
  } else if (response.has_end()) {
    const v1::EpochEnd& end = response.end();
    ForgetEpoch(end.model(), end.epoch());
    dispatcher_.EpochEnd(end.model(), end.epoch(), ReasonFromProto(end.why()));
  } else if (response.has_refusal()) {
    const v1::EpochRefusal& refusal = response.refusal();
    ForgetAttached(refusal.model());
    dispatcher_.EpochRefused(refusal.model(), ReasonFromProto(refusal.why()));
  } else if (response.has_save()) {
    if (const std::optional<SaveNews> news = SaveNewsOf(response.save()); news.has_value()) {
      dispatcher_.SaveNews(*news);
    }
  } else if (response.has_restore()) {
    if (const std::optional<RestoreNews> news = RestoreNewsOf(response.restore()); news.has_value()) {
      dispatcher_.RestoreNews(*news);
    }
  }
}

void RemoteCluster::TakeWelcome(const v1::Welcome& welcome) {
  // A stream begins with a welcome, and may carry more of them.
  if (!std::exchange(joined_, true) && !device_counts_.empty()) {
    Log(LogLevel::kInfo, "rejoined the cluster", {});
  }
  const bool has_counts = welcome.device_counts_size() == welcome.nodes();
  if (has_counts) ++answers_;
  // Counts are final once all are known; a restarted node 0 learns them again.
  if (!IsSized(device_counts_) && welcome.nodes() > 0 && welcome.nodes() <= kMostNodes) {
    device_counts_.assign(welcome.nodes(), 0);
    if (has_counts) device_counts_.assign(welcome.device_counts().begin(), welcome.device_counts().end());
  }
  changed_.SignalAll();
}

void RemoteCluster::ForgetAttached(const std::string& model) {
  const auto it = reports_.find(model);
  if (it != reports_.end()) it->second.attached_ranks.clear();
}

void RemoteCluster::ForgetEpoch(const std::string& model, int64_t epoch) {
  const auto running = running_.find(model);
  if (running == running_.end() || running->second != epoch) return;
  running_.erase(running);
  ForgetAttached(model);
}

void RemoteCluster::EndRunning(const absl::Status& why) {
  for (const auto& [model, epoch] : running_) {
    ForgetAttached(model);
    dispatcher_.EpochEnd(model, epoch,
                         absl::UnavailableError(absl::StrCat(CoordinatorName(), " lost: ", why.message(),
                                                             "; without it no commit of ", model, " can be decided")));
  }
  running_.clear();
  const absl::Status lost = absl::UnavailableError(absl::StrCat(CoordinatorName(), " lost: ", why.message()));
  dispatcher_.SaveNews({.model = {}, .what = SaveLeaderLost{lost}});
  dispatcher_.RestoreNews({.model = {}, .what = RestoreLeaderLost{lost}});
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
                                             CoordinatorName(), ": ", last_error_.message()));
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
    if (stopped_) return StoppedError();
    if (IsSized(device_counts_)) return absl::OkStatus();
  }
  return MissingError(timeout);
}

absl::Status RemoteCluster::MissingError(absl::Duration timeout) {
  const SteadyTime deadline = SteadyDeadline(kQuestionWait);
  absl::MutexLock lock(&mu_);
  const int before = answers_;
  Send(WorldQuestionMessage());
  while (!stopped_ && answers_ == before && !changed_.WaitUntil(&mu_, deadline)) {
  }
  if (stopped_) return StoppedError();
  if (IsSized(device_counts_)) return absl::OkStatus();
  if (answers_ != before) return MissingNodesError(device_counts_, timeout);
  return absl::DeadlineExceededError(absl::StrCat("join the world: timed out after ", absl::FormatDuration(timeout),
                                                  " waiting for ", device_counts_.size(), " nodes, and ",
                                                  CoordinatorName(), " does not say which are missing"));
}

// Models.

void RemoteCluster::Report(const ModelReport& report) {
  absl::MutexLock lock(&mu_);
  reports_[report.model] = report;
  Send(ReportMessage(report));
}

void RemoteCluster::Forget(absl::string_view model) {
  absl::MutexLock lock(&mu_);
  if (const auto it = reports_.find(model); it != reports_.end()) reports_.erase(it);
  Send(DeletionMessage(model));
  for (Ballot* ballot : ballots_) {
    if (ballot->model == model) ballot->forgotten = true;
  }
  for (const auto& [call, ballot] : calls_) {
    if (ballot != nullptr && ballot->forgotten) call->TryCancel();
  }
  changed_.SignalAll();
}

void RemoteCluster::EndEpoch(absl::string_view model, int64_t epoch, const absl::Status& why) {
  EndOnBadLinks(model, epoch, why, {});
}

void RemoteCluster::EndOnBadLinks(absl::string_view model, int64_t epoch, const absl::Status& why,
                                  const std::vector<BadLink>& links) {
  absl::MutexLock lock(&mu_);
  ForgetEpoch(std::string(model), epoch);
  Send(DepartureMessage(model, epoch, why, links));
}

void RemoteCluster::ReportCommands(absl::string_view model, int64_t epoch,
                                   const std::vector<CommandInWords>& commands) {
  v1::JoinRequest request = CommandsMessage(model, epoch, commands);
  absl::MutexLock lock(&mu_);
  Send(std::move(request));
}

void RemoteCluster::ReportDetached(absl::string_view model, int64_t epoch, int rank, int64_t command_count,
                                   const absl::Status& why) {
  absl::MutexLock lock(&mu_);
  Send(DetachedMessage(model, epoch, rank, command_count, why));
}

void RemoteCluster::ReportCarriedOut(absl::string_view model, int64_t epoch, int64_t command, bool more) {
  absl::MutexLock lock(&mu_);
  Send(CarriedOutMessage(model, epoch, command, more));
}

absl::StatusOr<CommitDecision> RemoteCluster::Vote(const CommitVote& vote) {
  // A live node 0 answers before the doubt timeout.
  const absl::Duration wait = std::min(kVoteWait, options_.doubt_timeout / 2);
  const v1::VoteRequest request = VoteMessage(options_.node, vote, wait);
  const auto ask = [&](grpc::ClientContext& context) -> absl::StatusOr<std::optional<CommitDecision>> {
    v1::VoteResponse response;
    const SteadyTime begin = SteadyNow();
    RETURN_IF_ERROR(FromGrpcStatus(link()->stub->Vote(&context, request, &response)));
    ObserveRoundTrip(absl::FromChrono(SteadyNow() - begin), response);
    if (!response.has_decision()) return std::nullopt;
    return DecisionOf(response.decision());
  };
  ASSIGN_OR_RETURN(CommitDecision decision, Ask({.model = vote.model, .commit_number = vote.commit_number}, wait, ask));
  if (vote.write_down != nullptr) RETURN_IF_ERROR(vote.write_down(decision));
  return decision;
}

// A message of its own would be one more in each step.
void RemoteCluster::ObserveRoundTrip(absl::Duration took, const v1::VoteResponse& response) {
  if (!response.has_held()) return;
  const absl::Duration underway = std::clamp(took - DurationFromProto(response.held()), absl::ZeroDuration(), took);
  options_.metrics->Observe(Metric::kPeerRoundTrip, absl::ToChronoNanoseconds(underway));
}

absl::StatusOr<CommitDecision> RemoteCluster::QueryCommit(const CommitQuery& query) {
  const v1::QueryCommitRequest request = QueryMessage(options_.node, query);
  const auto ask = [&](grpc::ClientContext& context) -> absl::StatusOr<std::optional<CommitDecision>> {
    v1::QueryCommitResponse response;
    RETURN_IF_ERROR(FromGrpcStatus(link()->stub->QueryCommit(&context, request, &response)));
    if (!response.has_decision()) return std::nullopt;
    return DecisionOf(response.decision());
  };
  return Ask({.model = query.model, .commit_number = query.commit_number}, absl::ZeroDuration(), ask);
}

absl::StatusOr<CommitDecision> RemoteCluster::Ask(Ballot ballot, absl::Duration wait, AskOnce ask) {
  {
    absl::MutexLock lock(&mu_);
    ballots_.insert(&ballot);
  }
  absl::StatusOr<CommitDecision> decision = Repeat(ballot, wait, ask);
  absl::MutexLock lock(&mu_);
  ballots_.erase(&ballot);
  return decision;
}

absl::StatusOr<CommitDecision> RemoteCluster::Repeat(const Ballot& ballot, absl::Duration wait, AskOnce ask) {
  SteadyTime doubt_deadline = SteadyDeadline(options_.doubt_timeout);
  absl::Duration pause = kFirstPause;
  do {
    Call call(*this, std::min(wait + kCallSlack, TimeLeft(doubt_deadline)), &ballot);
    absl::StatusOr<std::optional<CommitDecision>> answer = ask(call.context);
    if (answer.ok() && answer->has_value()) return **std::move(answer);
    if (IsRefusedVote(answer.status())) return answer.status();
    if (answer.ok()) {  // node 0 has answered: it waits for others, and so does the next call
      doubt_deadline = SteadyDeadline(options_.doubt_timeout);
      pause = absl::ZeroDuration();
    } else {
      pause = std::clamp(2 * pause, kFirstPause, kLongestPause);
    }
  } while (SteadyNow() < doubt_deadline && PauseBallot(ballot, std::min(pause, TimeLeft(doubt_deadline))));
  return GivenUpError(ballot);
}

bool RemoteCluster::PauseBallot(const Ballot& ballot, absl::Duration pause) {
  const SteadyTime deadline = SteadyDeadline(pause);
  absl::MutexLock lock(&mu_);
  while (!stopped_ && !ballot.forgotten && !changed_.WaitUntil(&mu_, deadline)) {
  }
  return !stopped_ && !ballot.forgotten;
}

absl::Status RemoteCluster::GivenUpError(const Ballot& ballot) {
  const std::string operation = absl::StrCat("vote ", ballot.model, " commit ", ballot.commit_number, ": ");
  absl::MutexLock lock(&mu_);
  if (ballot.forgotten) return absl::CancelledError(absl::StrCat(operation, "the model was deleted on this node"));
  if (stopped_) {
    return absl::UnavailableError(
        absl::StrCat(operation, "stopped before ", CoordinatorName(), " answered; it is in doubt"));
  }
  return absl::DataLossError(absl::StrCat(operation, "timed out after ", absl::FormatDuration(options_.doubt_timeout),
                                          " waiting for ", CoordinatorName()));
}

// Saves and restores.

absl::Status RemoteCluster::TellSave(const SaveNews& news) {
  v1::JoinRequest request;
  *request.mutable_save() = SaveMessage(news);
  return Tell(std::move(request));
}

absl::Status RemoteCluster::TellRestore(const RestoreNews& news) {
  v1::JoinRequest request;
  *request.mutable_restore() = RestoreMessage(news);
  return Tell(std::move(request));
}

absl::Status RemoteCluster::Tell(v1::JoinRequest request) {
  absl::MutexLock lock(&mu_);
  if (writer_ == nullptr) return absl::UnavailableError(absl::StrCat(CoordinatorName(), " is not reached"));
  Send(std::move(request));
  return absl::OkStatus();
}

// Rendezvous.

std::unique_ptr<Rendezvous> RemoteCluster::MakeRendezvous(absl::string_view model, int64_t epoch) {
  return std::make_unique<RemoteRendezvous>(this, model, epoch);
}

absl::Status RemoteCluster::Put(const v1::PutValueRequest& request) {
  std::shared_ptr<NodeZeroLink> used;
  absl::Status status;
  do {
    used = link();
    Call call(*this, kPutWait + kCallSlack);
    v1::PutValueResponse response;
    status = FromGrpcStatus(used->stub->PutValue(&call.context, request, &response));
  } while (IsCutOff(status) && link() != used);
  return status;
}

absl::StatusOr<v1::GetValueResponse> RemoteCluster::Get(v1::GetValueRequest request, absl::Duration timeout) {
  const SteadyTime deadline = SteadyDeadline(timeout);
  std::shared_ptr<NodeZeroLink> used;
  absl::Status status;
  do {
    used = link();
    const absl::Duration wait = std::min(TimeLeft(deadline), kValueWait);
    *request.mutable_timeout() = DurationToProto(wait);
    Call call(*this, wait + kCallSlack);
    v1::GetValueResponse response;
    status = FromGrpcStatus(used->stub->GetValue(&call.context, request, &response));
    if (status.ok()) return response;
  } while ((absl::IsDeadlineExceeded(status) || (IsCutOff(status) && link() != used)) && SteadyNow() < deadline);
  return status;
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
