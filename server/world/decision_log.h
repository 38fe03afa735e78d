// Log of node 0's decisions on a disk, which outlives the memory of the journals.
#ifndef PARAMSHARD_SERVER_WORLD_DECISION_LOG_H_
#define PARAMSHARD_SERVER_WORLD_DECISION_LOG_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "paramshard/v1/cluster.pb.h"
#include "server/base/disk.h"
#include "server/base/disk_calls.h"
#include "server/terms/cluster.h"
#include "server/world/disk_watch.h"

namespace paramshard::server {

// Folder of one node 0, with a file for each model. A file has two copies, which are written in turns, so that a torn
// write leaves the other copy. A mark names the last copy that has reached the disk. Writes wait for the disk. Errors:
// see Disk; a failed write is undone as far as the disk permits, and the next write replaces the file. Not thread-safe.
//
//   ASSIGN_OR_RETURN(auto log, DecisionLog::Open(&calls, "/var/lib/paramshard"));
//   ASSIGN_OR_RETURN(std::vector<ClosedEpoch> closed, log->Reconcile(*std::move(of_journals)));
//   log->BeginEpoch({.model = "m", .history_id = id, .epoch = 7, .commit_number = 12, .active = {0, 1}});
//   log->Decide("m", 13, decision, client_states);   both before any node is told
class DecisionLog {
 public:
  // Environment variable by which a keeper passes its servers the number of their descriptor of the folder's lock.
  static constexpr char kLockVariable[] = "PARAMSHARD_STATE_DIR_LOCK";
  // Locks the folder for this process and for processes that it lends the descriptor to: a keeper holds the lock for
  // its servers, so that no other node 0 gets between two of them. `lent`: descriptor that this process was lent.
  // Errors of CheckOwnFolder; FAILED_PRECONDITION another process has the folder.
  static absl::StatusOr<Disk::Descriptor> Lock(DiskCalls* calls, const std::string& folder, int lent = -1);

  // Opens the folder, which stays locked while the log lives. `calls` outlive the log. Errors of Lock; DATA_LOSS naming
  // a file whose copies are both damaged, or whose marked copy is.
  static absl::StatusOr<std::unique_ptr<DecisionLog>> Open(DiskCalls* calls, const std::string& folder, int lent = -1);

  // Returns the earlier epochs that `journals` and the folder know. Journals win for histories that they know: the
  // folder is corrected where it differs, since no node was told of its version.
  absl::StatusOr<std::vector<ClosedEpoch>> Reconcile(std::vector<ClosedEpoch> journals);

  // Records an epoch without a decision yet, or a history that a restore begins after the named epoch. Keeps the last
  // decision if it is of that history and not later than the commit at which the epoch begins.
  absl::Status BeginEpoch(ClosedEpoch begun);
  // Records the decision about the next commit of the model's epoch, which has begun. `client_states` are the client
  // states that node 0's ranks sent with it.
  absl::Status Decide(const std::string& model, int64_t commit_number, const CommitDecision& decision,
                      std::vector<std::string> client_states);
  // Returns the client states of the last decision if the query is about it and `node` is the node that keeps them.
  std::optional<std::vector<std::string>> SentByNode0(const CommitQuery& query, int node) const;
  // Removes a deleted model's file. A file that cannot be removed does no harm.
  void Forget(absl::string_view model);

 private:
  // Content of a copy.
  struct Content {
    ClosedEpoch epoch;
    std::vector<int> decided_by = {};             // nodes of the last decision's epoch
    std::vector<std::string> client_states = {};  // of node 0's ranks, sent with the last decision
  };
  struct Kept {
    Content content;
    int64_t sequence = 0;
    int64_t copy_bytes = 0;               // room for one copy
    std::optional<Disk::File> file = {};  // unset: the next write makes a new file
  };

  DecisionLog(DiskCalls* calls, std::string folder, Disk::Descriptor lock, std::unique_ptr<DiskWatch> watch)
      : disk_(calls), folder_(std::move(folder)), lock_(std::move(lock)), watch_(std::move(watch)) {}

  absl::Status Read();
  std::string PathOf(absl::string_view model) const;
  // Replaces the model's content, or leaves the old one.
  absl::Status Write(Content next);
  absl::Status WriteCopy(Kept& kept, absl::Span<const uint8_t> copy);
  void WriteMark(Kept& kept);
  absl::Status Replace(Kept& kept, const Content& content);
  // Undoes a failed write. No node was told of the part that has reached the disk.
  void TakeBack(Kept& kept, bool was_in_place);
  absl::StatusOr<Disk::File> MakeFile(const std::string& new_path, const std::string& path,
                                      absl::Span<const uint8_t> bytes);
  static v1::KeptEpoch MessageOf(const Content& content, int64_t sequence);
  static Content ContentOf(const v1::KeptEpoch& message);
  static std::vector<uint8_t> CopyOf(const Content& content, int64_t sequence);

  const Disk disk_;
  const std::string folder_;
  const Disk::Descriptor lock_;
  const std::unique_ptr<DiskWatch> watch_;
  std::map<std::string, Kept, std::less<>> kept_;  // by model
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_WORLD_DECISION_LOG_H_
