// The server's end of the socket to its keeper.
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
#include "proto/wire/handoff.h"
#include "server/base/kept_store.h"
#include "server/base/server_command.h"
#include "server/base/steady_cond_var.h"
#include "server/base/steady_time.h"
#include "server/keeper/keeper_message.h"
#include "server/keeper/keeper_packet.h"

namespace paramshard::server {

// Thread-safe; calls take turns. Each ends within the timeout, with DEADLINE_EXCEEDED where the keeper has not answered
// by then: it may do what it was asked for yet. A drop has a longer one, since it is answered when the memory is free,
// and whatever has its turn behind a drop waits for that first, as long as one may take in all. Every call may be
// repeated.
//
//   ASSIGN_OR_RETURN(std::unique_ptr<KeeperLink> link, KeeperLink::FromEnvironment());
//   ASSIGN_OR_RETURN(KeptStore::Descriptors memory, link->TakeAll());
//   ...
//   RETURN_IF_ERROR(link->ReportReady(kVersion));
class KeeperLink final : public KeptStore {
 public:
  // In the environment of a server: the number of its descriptor of the socket.
  static constexpr char kVariable[] = "PARAMSHARD_KEEPER_SOCKET";
  static constexpr absl::Duration kTimeout = absl::Seconds(10);
  // More than the kernel needs to free all memory of a machine.
  static constexpr absl::Duration kDropTimeout = absl::Minutes(2);

  explicit KeeperLink(wire::FileDescriptor socket, absl::Duration timeout = kTimeout,
                      absl::Duration drop_timeout = kDropTimeout)
      : socket_(std::move(socket)), timeout_(timeout), drop_timeout_(drop_timeout) {}

  // Takes over the socket that the keeper has left to this process, and removes the variable, so that no child has it:
  // called once, before there are threads. NOT_FOUND without the variable; INVALID_ARGUMENT when it names no such
  // socket.
  static absl::StatusOr<std::unique_ptr<KeeperLink>> FromEnvironment();

  absl::Status Keep(absl::string_view name, int fd) override;
  absl::Status DropPrefix(absl::string_view prefix) override;
  // RESOURCE_EXHAUSTED also when this process may not open as many. Of other names it opens those of one message at
  // most, and closes them at once.
  absl::StatusOr<Descriptors> Take(absl::string_view prefix) override;

  // The server serves. Until it says so, its end counts as a start that has failed.
  absl::Status ReportReady(absl::string_view version);
  // Has the keeper start the next server with that command, or with the same one. Then the server drains, and exits
  // with kExitRestart. NOT_FOUND when the program is none that can be executed, and from a keeper of before for none.
  absl::Status RequestRestart(const std::optional<ServerCommand>& command);

  // Why the last restart that was asked for was given up, and this server started in the place of that one; empty when
  // it was not, or when there was none. Of the time before this server asks for one itself.
  absl::StatusOr<std::string> LastRestart();
  // How many servers the keeper has started after its first one. INVALID_ARGUMENT from a keeper of before, which does
  // not know.
  absl::StatusOr<int64_t> CountRestarts();

  // To poll with no events: POLLHUP says that the keeper is gone. Then the server ends: what it makes from then on
  // would be nobody's after it. The socket stays this object's.
  int fd() const { return socket_.get(); }

 private:
  struct Answer {
    std::vector<std::string> words;
    std::vector<wire::FileDescriptor> fds;
    bool more = false;
  };

  // Waits for the turn of a call, which then has until the time that is returned.
  absl::StatusOr<SteadyTime> AwaitTurn(absl::Duration timeout) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // One request and its answer; the error that the answer is, or why there is none.
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
  bool busy_ ABSL_GUARDED_BY(mu_) = false;                          // somebody's turn
  SteadyTime drop_until_ ABSL_GUARDED_BY(mu_) = SteadyTime::min();  // the deadline of a drop that has it
  int64_t drops_ ABSL_GUARDED_BY(mu_) = 0;                          // that are through
  uint64_t last_sequence_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_KEEPER_KEEPER_LINK_H_
