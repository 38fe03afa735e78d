// What node 0 has told others of commits, on a disk: there it outlives the memory that holds the journals.
#ifndef PARAMSHARD_SERVER_CLUSTER_DECISION_LOG_H_
#define PARAMSHARD_SERVER_CLUSTER_DECISION_LOG_H_

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
#include "server/cluster/disk_watch.h"
#include "server/terms/cluster.h"

namespace paramshard::server {

// One folder of one node 0, with a file of two copies for each model, which are written in turns: a write that is torn
// leaves the other one. A mark names the last copy that is on the disk. Writes wait for the disk. Errors are those of Disk; a write that has failed is taken back as far
// as the disk lets it, and the next one makes the file anew. Not thread-safe.
//
//   ASSIGN_OR_RETURN(auto log, DecisionLog::Open(&calls, "/var/lib/paramshard"));
//   ASSIGN_OR_RETURN(std::vector<ClosedEpoch> closed, log->Reconcile(*std::move(of_journals)));
//   log->BeginEpoch({.model = "m", .history_id = id, .epoch = 7, .commit_number = 12, .active = {0, 1}});
//   log->Decide("m", 13, decision, client_states);   both before anybody is told
class DecisionLog {
 public:
  // In the environment of a keeper's servers: the number of their descriptor of the folder's lock.
  static constexpr char kLockVariable[] = "PARAMSHARD_STATE_DIR_LOCK";
  // Makes the folder that of this process, and of those it lends the descriptor to: a keeper holds it for its servers, so
  // that no other node 0 gets between two of them. `lent`: what this process was lent. Errors of CheckOwnFolder;
  // FAILED_PRECONDITION another process has it.
  static absl::StatusOr<Disk::Descriptor> Lock(DiskCalls* calls, const std::string& folder, int lent = -1);

  // The folder is this process's alone while the log lives. `calls` outlive it. Errors of Lock; DATA_LOSS a file of which
  // neither copy is whole, or the marked one is not (names it).
  static absl::StatusOr<std::unique_ptr<DecisionLog>> Open(DiskCalls* calls, const std::string& folder, int lent = -1);

  // What is known of epochs before: `journals`, which count where they know a history, and what the folder holds. What
  // the folder says otherwise of these histories is mended: nobody was told of it.
  absl::StatusOr<std::vector<ClosedEpoch>> Reconcile(std::vector<ClosedEpoch> journals);

  // An epoch without a decision yet, or a history that a restore begins, after the epoch that it names. The last decision
  // before it stays, where it is of that history and no later one than the epoch begins with.
  absl::Status BeginEpoch(ClosedEpoch begun);
  // The commit behind the last one of the model's epoch, which has begun. `client_states` are what node 0's ranks have
  // sent with it.
  absl::Status Decide(const std::string& model, int64_t commit_number, const CommitDecision& decision,
                      std::vector<std::string> client_states);
  // Those of the last decision, where it is the one that is asked for, and `node` is the one that keeps them.
  std::optional<std::vector<std::string>> SentByNode0(const CommitQuery& query, int node) const;
  // There is no such model any more. What cannot be removed does no harm.
  void Forget(absl::string_view model);

 private:
  // What a copy holds.
  struct Content {
    ClosedEpoch epoch;
    std::vector<int> decided_by = {};             // nodes of the last decision's epoch
    std::vector<std::string> client_states = {};  // of node 0's ranks, with that
  };
  struct Kept {
    Content content;
    int64_t sequence = 0;
    int64_t copy_bytes = 0;               // room for one
    std::optional<Disk::File> file = {};  // unset: it is to be made anew
  };

  DecisionLog(DiskCalls* calls, std::string folder, Disk::Descriptor lock, std::unique_ptr<DiskWatch> watch)
      : disk_(calls), folder_(std::move(folder)), lock_(std::move(lock)), watch_(std::move(watch)) {}

  absl::Status Read();
  std::string PathOf(absl::string_view model) const;
  // Makes that the model's epoch, or leaves the one before.
  absl::Status Write(Content next);
  absl::Status WriteCopy(Kept& kept, absl::Span<const uint8_t> copy);
  void WriteMark(Kept& kept);
  absl::Status Replace(Kept& kept, const Content& content);
  // Behind a write that has failed: what has reached the disk of it was told to nobody.
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

#endif  // PARAMSHARD_SERVER_CLUSTER_DECISION_LOG_H_
