// Server's end of the socket to its keeper.
#ifndef PARAMSHARD_SERVER_KEEPER_KEEPER_LINK_H_
#define PARAMSHARD_SERVER_KEEPER_KEEPER_LINK_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/shared_memory/file_descriptor.h"
#include "server/base/kept_store.h"
#include "server/base/server_command.h"
#include "server/base/steady_cond_var.h"
#include "server/base/steady_time.h"
#include "server/keeper/keeper_message.h"
#include "server/keeper/keeper_packet.h"

namespace paramshard::server {

// Thread-safe; calls take turns. A call ends within the timeout, with DEADLINE_EXCEEDED if the keeper has not answered
// by then; the request may still be carried out. A drop has a longer timeout, because the keeper answers it once the
// memory is free; calls behind a drop wait for it first, at most the drop's timeout in all. Every call may be repeated.
//
//   ASSIGN_OR_RETURN(std::unique_ptr<KeeperLink> link, KeeperLink::FromEnvironment());
//   ASSIGN_OR_RETURN(KeptStore::Descriptors memory, link->TakeAll());
//   ...
//   RETURN_IF_ERROR(link->ReportReady(kVersion));
class KeeperLink final : public KeptStore {
 public:
  // Environment variable with the number of the server's descriptor of the socket.
  static constexpr char kVariable[] = "PARAMSHARD_KEEPER_SOCKET";
  static constexpr absl::Duration kTimeout = absl::Seconds(10);
  // Longer than the kernel takes to free all memory of a machine.
  static constexpr absl::Duration kDropTimeout = absl::Minutes(2);

  explicit KeeperLink(wire::FileDescriptor socket, absl::Duration timeout = kTimeout,
                      absl::Duration drop_timeout = kDropTimeout)
      : socket_(std::move(socket)), timeout_(timeout), drop_timeout_(drop_timeout) {}

  // Takes over the socket inherited from the keeper, and removes the variable, so that no child uses it. Call it once,
  // before there are threads. NOT_FOUND without the variable; INVALID_ARGUMENT if it names no such socket.
  static absl::StatusOr<std::unique_ptr<KeeperLink>> FromEnvironment();

  absl::Status Keep(absl::string_view name, int fd) override;
  absl::Status DropPrefix(absl::string_view prefix) override;
  // RESOURCE_EXHAUSTED also if this process may not open as many descriptors. The last message may contain descriptors
  // of other names, which are closed at once.
  absl::StatusOr<Descriptors> Take(absl::string_view prefix) override;

  // Reports that the server serves. If the server ends before this call, its start counts as failed.
  absl::Status ReportReady(absl::string_view version);
  // Makes the keeper start the next server with that command; null: with the same one. Then the server must drain and
  // exit with kExitRestart. NOT_FOUND if the program cannot be executed; an older keeper returns it for null, too.
  absl::Status RequestRestart(const std::optional<ServerCommand>& command);

  // Returns why the last requested restart failed, so that this server was started instead; empty if it did not fail or
  // there was none. Valid until this server requests a restart itself.
  absl::StatusOr<std::string> LastRestart();
  // Returns how many servers the keeper has started after its first one. INVALID_ARGUMENT from an older keeper, which
  // does not know the request.
  absl::StatusOr<int64_t> CountRestarts();

  // Descriptor to poll with no events: POLLHUP means that the keeper is gone. Then the server must end, because memory
  // that it allocates from then on would not outlive it. Owned by this object.
  int fd() const { return socket_.get(); }

 private:
  struct Answer {
    std::vector<std::string> words;
    std::vector<wire::FileDescriptor> fds;
    bool more = false;
  };

  // Waits for the turn of a call; returns the call's deadline.
  absl::StatusOr<SteadyTime> AwaitTurn(absl::Duration timeout) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Sends a request and returns its answer, the error in the answer, or the reason why there is none.
  absl::StatusOr<Answer> Call(KeeperMessageKind kind, std::vector<std::string> words, absl::Span<const int> fds = {});
  absl::StatusOr<Answer> TakeTurn(const KeeperMessage& request, absl::Span<const int> fds, SteadyTime deadline);
  absl::Status Send(const std::string& bytes, absl::Span<const int> fds, SteadyTime deadline) const;
  absl::StatusOr<Answer> AwaitAnswer(uint64_t sequence, SteadyTime deadline) const;

  // Constant after construction.
  const wire::FileDescriptor socket_;
  const absl::Duration timeout_;
  const absl::Duration drop_timeout_;

  absl::Mutex mu_;
  SteadyCondVar free_;
  bool busy_ ABSL_GUARDED_BY(mu_) = false;                          // a call has its turn
  SteadyTime drop_until_ ABSL_GUARDED_BY(mu_) = SteadyTime::min();  // deadline of that call if it is a drop
  int64_t drops_ ABSL_GUARDED_BY(mu_) = 0;                          // finished drops
  uint64_t last_sequence_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_KEEPER_KEEPER_LINK_H_
