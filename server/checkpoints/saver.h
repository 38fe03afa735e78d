// Saves of one model: when they are due, this daemon's part in them, and their outcome. Savers, which makes the savers
// of a daemon's models.
#ifndef PARAMSHARD_SERVER_CHECKPOINTS_SAVER_H_
#define PARAMSHARD_SERVER_CHECKPOINTS_SAVER_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/numeric/int128.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "server/base/clock.h"
#include "server/base/disk_calls.h"
#include "server/base/steady_cond_var.h"
#include "server/checkpoints/checkpoint_folder.h"
#include "server/checkpoints/daemon_images.h"
#include "server/checkpoints/retention.h"
#include "server/checkpoints/save_agreement.h"
#include "server/checkpoints/save_records.h"
#include "server/checkpoints/staging_directory.h"
#include "server/models/model.h"
#include "server/models/model_saver.h"
#include "server/terms/save_message.h"

namespace paramshard::server {

struct SavePolicy {
  int64_t every_commits = 0;                         // saves commits whose number is a multiple of it; 0: none
  absl::Duration every_time = absl::ZeroDuration();  // saves the first commit after it; 0: never
  RetentionPolicy keep = {};
  bool on_drain = true;
  // Longest time of a save: then it is abandoned.
  absl::Duration timeout = absl::Minutes(10);
};

// Every save goes the same way, on the saver's own thread and one thread for each further rank (node 0 leads, the
// others follow):
//
//   node 0 holds its state (CopyGate), and orders the others to hold theirs as soon as its commit is answered there ->
//   all copy their ranks, steps may go on -> node 0 makes the staging directory, and permits the others to write -> all
//   write -> the others report their parts -> node 0 publishes, deletes old checkpoints, and sends the result
//
// A failure anywhere abandons that save alone: it is counted, logged and among the records. One save at a time: a save
// that falls due meanwhile is skipped, an order meanwhile is refused. If node 0 is lost, or sends no result until the
// deadline, the others forget the save.
class Saver final : public ModelSaver {
 public:
  struct Options {
    std::string root;  // of checkpoints, for all daemons
    // The saver leads the saves of its world, at node 0. Others use only `on_drain` of the policy.
    bool leads = true;
    SavePolicy policy = {};
    DiskCalls* calls = nullptr;             // outlives the saver
    const Clock* clock = &Clock::Steady();  // likewise
    std::function<absl::Time()> now = absl::Now;
    HistoryIdSource draw_id = RandomHistoryId;
    // Called for every rank of the daemon before it is copied: tests hold copies back.
    std::function<void(int rank)> before_copy = [](int) {};
  };

  // Takes the memory for copies, and opens ROOT/MODEL if it leads. `model` outlives the saver. Errors of
  // Publisher::Open, unless `trouble` says otherwise, and of DaemonImages::Create; RESOURCE_EXHAUSTED for no thread.
  static absl::StatusOr<std::unique_ptr<Saver>> Create(Model& model, const Options& options,
                                                       SaverSource::FolderTrouble trouble);
  ~Saver() override;

  void OnCommitted(const CommitAnswer& answer, bool asked) override;
  void OnSettled() override;
  void OnMessage(const SaveMessage& message) override;
  void Stop() override;
  absl::StatusOr<SaveRecord> Request() override;
  absl::StatusOr<SaveRecord> Await(int64_t number, SteadyTime deadline) const override;
  absl::Status CheckIdle(absl::string_view operation) const override;
  void Drain(SteadyTime deadline) override;
  bool IsDrained() const override;
  std::vector<SaveRecord> records() const override;
  SaveCounts counts() const override;
  int64_t image_bytes() const override { return images_->memory_bytes(); }

 private:
  // A save until its result is known.
  struct UnderWay {
    int64_t number = 0;  // of its record
    SteadyTime begun;
    SaveOrder order = {};                           // that node 0 has given; without an id until then
    std::shared_ptr<SaveAgreement> agreement = {};  // since the order
    bool is_held = false;                           // the state is, or was until it was copied
    std::optional<SaveEnd> end = {};                // that came from node 0 before the thread was done
    absl::Status part = absl::OkStatus();           // that was reported to node 0
  };
  // A state for the thread to save.
  struct Work {
    SaveIdentity identity;
    std::shared_ptr<SaveAgreement> agreement;
    HeldState state;
  };

  Saver(Model& model, const Options& options);
  absl::Status Open(SaverSource::FolderTrouble trouble);
  template <typename What>
  absl::Status Tell(const What& what) const;

  bool Waits() const ABSL_SHARED_LOCKS_REQUIRED(mu_) { return under_way_.has_value() && !under_way_->is_held; }
  absl::Status CheckNoneUnderWay(absl::string_view operation) const ABSL_SHARED_LOCKS_REQUIRED(mu_);
  bool AwaitIdle(SteadyTime deadline) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Returns the record with what is known by now.
  SaveRecord Shown(const SaveRecord& record) const ABSL_SHARED_LOCKS_REQUIRED(mu_);

  // Begins a save at node 0.
  void Begin(SaveReason reason, int64_t step) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Holds the state for the save that waits: at node 0 unless a commit is in progress anywhere; elsewhere as soon as
  // the ordered state exists. `settled`: no commit is to come.
  void Hold(bool settled) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Orders all other daemons to hold this state. ABORTED if the next commit is decided, and perhaps applied elsewhere.
  absl::Status Order(const HeldState& state) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // FAILED_PRECONDITION if `state` is not the state that node 0 holds; ABORTED if it is still to come.
  absl::Status CheckIsOrdered(const HeldState& state, bool settled) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Ends the save that waits.
  void GiveUp(const absl::Status& why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Ends `save`, one of the two below; node 0 sends the result to the others.
  void Finish(std::optional<UnderWay>& save, const SaveEnd& end) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // Begins the save that a draining daemon asks node 0 for, if the state is not saved yet.
  void TakeRequest();
  void TakeOrder(const SaveOrder& order) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void TakeEnd(const SaveEnd& end) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Sends the part to node 0.
  void Report(absl::uint128 id, const absl::StatusOr<PartReport>& part) const;
  // Ends the reported save: node 0 sends nothing more about it, because of `why`.
  void FinishReported(const absl::Status& why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Ends saves that have waited too long for their commit, or for node 0's result.
  void CheckDeadlines() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // Called by the thread.
  std::optional<Work> Take();
  void Save(const Work& work);
  absl::Status Copy(const Work& work);
  absl::StatusOr<PartReport> WritePart(const Work& work);
  absl::StatusOr<std::vector<PartReport>> WriteAll(const Work& work);

  // Constant after Create.
  Model& model_;
  const Options options_;
  std::unique_ptr<DaemonImages> images_;            // the thread's, but for its counters
  const std::unique_ptr<CheckpointFolder> folder_;  // likewise; null where another daemon leads

  mutable absl::Mutex mu_;
  mutable SteadyCondVar changed_;
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
  std::optional<UnderWay> under_way_ ABSL_GUARDED_BY(mu_);
  std::optional<Work> work_ ABSL_GUARDED_BY(mu_);  // until the thread takes it
  SaveRecords records_ ABSL_GUARDED_BY(mu_);
  std::thread thread_ ABSL_GUARDED_BY(mu_);
  // At node 0.
  SteadyTime last_due_ ABSL_GUARDED_BY(mu_);  // by time
  // At other nodes. The save whose part is reported: the next order may come with a decision before this save's end on
  // the stream.
  std::optional<UnderWay> reported_ ABSL_GUARDED_BY(mu_);
  bool request_open_ ABSL_GUARDED_BY(mu_) = false;
  std::deque<absl::uint128> taken_orders_ ABSL_GUARDED_BY(mu_);  // ids of the newest ones: each comes by two ways
};

// The savers of a daemon's models. Constant; thread-safe.
class Savers final : public SaverSource {
 public:
  explicit Savers(Saver::Options options) : options_(std::move(options)) {}

  absl::StatusOr<std::vector<int64_t>> ImageBytes(const Layout& layout, const World& world) const override;
  absl::Duration drain_timeout() const override { return options_.policy.timeout; }
  absl::StatusOr<std::unique_ptr<ModelSaver>> Make(Model& model, FolderTrouble trouble) const override;

 private:
  const Saver::Options options_;
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_CHECKPOINTS_SAVER_H_
