// Saves of one model at node 0: when they are due, and their outcome. Savers, which makes the savers of a daemon's
// models.
#ifndef PARAMSHARD_SERVER_CHECKPOINTS_SAVER_H_
#define PARAMSHARD_SERVER_CHECKPOINTS_SAVER_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/numeric/int128.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/checkpoint/manifest.h"
#include "server/base/clock.h"
#include "server/base/disk_calls.h"
#include "server/base/steady_cond_var.h"
#include "server/checkpoints/daemon_images.h"
#include "server/checkpoints/publisher.h"
#include "server/checkpoints/retention.h"
#include "server/checkpoints/save_records.h"
#include "server/models/model.h"
#include "server/models/model_saver.h"
#include "server/terms/save_news.h"

namespace paramshard::server {

struct SavePolicy {
  int64_t every_commits = 0;                         // saves commits whose number is a multiple of it; 0: none
  absl::Duration every_time = absl::ZeroDuration();  // saves the first commit after it; 0: never
  RetentionPolicy keep = {};
  bool on_drain = true;
  // Longest time of a save: then it is abandoned.
  absl::Duration timeout = absl::Minutes(10);
};

// Every save goes the same way, on the saver's own thread and one thread for each further rank:
//
//   the state is held (CopyGate), and all other daemons are told to hold theirs -> ranks are copied, steps may go on ->
//   files are written, here and elsewhere -> the others have reported their parts -> published -> retention
//
// A failure, here or elsewhere, abandons that save alone: it is counted, logged and among the records. One save at a
// time: a save that falls due meanwhile is skipped. FollowingSaver is the part of other daemons.
class Saver final : public ModelSaver {
 public:
  struct Options {
    std::string root;  // of checkpoints
    SavePolicy policy = {};
    DiskCalls* calls = nullptr;             // outlives the saver
    const Clock* clock = &Clock::Steady();  // likewise
    std::function<absl::Time()> now = absl::Now;
    HistoryIdSource draw_id = RandomHistoryId;
    // Called for every rank of the daemon before it is copied: tests hold copies back.
    std::function<void(int rank)> before_copy = [](int) {};
  };

  // Opens ROOT/MODEL and takes the memory for copies. `model` outlives the saver. Errors of Publisher::Open, unless
  // `trouble` says otherwise, and of StateImage::Create; RESOURCE_EXHAUSTED for no thread.
  static absl::StatusOr<std::unique_ptr<Saver>> Create(Model& model, const Options& options,
                                                       SaverSource::FolderTrouble trouble);
  ~Saver() override;

  void OnCommitted(const CommitAnswer& answer, bool asked) override;
  void OnSettled() override;
  void OnNews(const SaveNews& news) override;
  void Stop() override;
  absl::StatusOr<SaveRecord> Request() override;
  absl::StatusOr<SaveRecord> Await(int64_t number, SteadyTime deadline) const override;
  absl::Status CheckIdle(absl::string_view operation) const override;
  void Drain(SteadyTime deadline) override;
  bool IsDrained() const override;
  std::vector<SaveRecord> records() const override;
  SaveCounts counts() const override;
  int64_t image_bytes() const override;

 private:
  // A state for the thread to save: it is held here and, as soon as they can, at all other daemons.
  struct Work {
    int64_t number = 0;
    SaveIdentity identity;
    SteadyTime deadline;
    Model::HeldState state;
    bool alone = false;  // without other daemons: one is away, and replicas go on without it
  };

  Saver(Model& model, const Options& options);
  absl::Status Open(SaverSource::FolderTrouble trouble);
  // Requires the right to use the publisher. Errors of Publisher::Open.
  absl::Status OpenFolder();
  Cluster& cluster() const { return *model_.world().cluster; }

  std::optional<SaveReason> ReasonFor(const CommitAnswer& answer, bool asked) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Begin(SaveReason reason, int64_t step) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Holds the state for the save that waits, and orders all other daemons to hold theirs, unless a commit is in
  // progress anywhere.
  void Hold() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status Order(Work& work) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Returns true if this daemon has all of the state, and others may be away.
  bool MaySaveAlone() const;
  // Takes a daemon's report on the save in progress. Ignores reports of other saves, and repetitions.
  void TakePart(const SavePart& part) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Begins the save that a draining daemon asks for, if the state is not saved yet.
  void TakeWish();
  void TellEnd(const SaveRecord& record) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Images of the save in progress.
  DaemonImages& images() const { return own_images_ != nullptr ? *own_images_ : *images_; }
  // Record of the save in progress.
  SaveRecord& present() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return *records_.Find(*under_way_); }
  absl::Status CheckNoneUnderWay(absl::string_view operation) const ABSL_SHARED_LOCKS_REQUIRED(mu_);
  // Returns true if the save in progress has timed out and not ended: the thread waits for a disk that does not answer.
  bool IsStuck() const ABSL_SHARED_LOCKS_REQUIRED(mu_);
  SaveRecord Shown(const SaveRecord& record) const ABSL_SHARED_LOCKS_REQUIRED(mu_);
  void Finish(const Publisher::Result& result) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Takes over the publisher's leftovers(), and logs them if they have changed.
  void NoteLeftovers();
  bool IsSaved(const StateNumbers& numbers) const ABSL_SHARED_LOCKS_REQUIRED(mu_);
  bool AwaitOver(SteadyTime deadline) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // Called by the thread.
  void Run();
  std::optional<Work> Take();
  void Save(const Work& work);
  // Allocates the memory of a save of this daemon alone; frees it for a save of all daemons.
  absl::Status TakeImages(bool alone);
  Publisher::Result Write(const Work& work);
  absl::StatusOr<std::vector<PartReport>> WriteAll(const Work& work);
  // Waits for the parts of all other daemons.
  absl::StatusOr<std::vector<PartReport>> AwaitParts(const Work& work);
  absl::Status LateParts(const absl::Status& status) const;
  absl::Status CheckGoesOn(const Work& work) const;
  void Retain();

  // Constant after Create.
  Model& model_;
  const Options options_;
  const SteadyTime opened_at_;
  std::unique_ptr<DaemonImages> images_;  // the thread's, but for its counters

  // Used by the thread; by Create and Stop while there is no thread. Null while the folder cannot be opened.
  std::unique_ptr<Publisher> publisher_;
  std::atomic<int64_t> image_bytes_ = 0;
  std::atomic<bool> stopping_ = false;
  std::atomic<bool> part_failed_ = false;  // of the save in progress, at another daemon

  mutable absl::Mutex mu_;
  mutable SteadyCondVar changed_;
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
  std::optional<int64_t> under_way_ ABSL_GUARDED_BY(mu_);  // number of the save in progress
  bool waiting_ ABSL_GUARDED_BY(mu_) = false;              // it holds no state yet
  std::optional<Work> work_ ABSL_GUARDED_BY(mu_);          // until the thread takes it
  // Images of a save of this daemon alone, kept until the next save of all daemons. Used by the thread, except for the
  // pointer itself and the counters.
  std::unique_ptr<DaemonImages> own_images_;
  SteadyTime begun_ ABSL_GUARDED_BY(mu_);                      // of the save in progress
  SteadyTime last_due_ ABSL_GUARDED_BY(mu_);                   // by time
  std::optional<absl::uint128> ordered_ ABSL_GUARDED_BY(mu_);  // the id of the save in progress, which others know
  std::map<int, SavePart> parts_ ABSL_GUARDED_BY(mu_);         // of it, by node
  SaveRecords records_ ABSL_GUARDED_BY(mu_);
  std::optional<StateNumbers> saved_ ABSL_GUARDED_BY(mu_);  // of the last checkpoint that is known
  absl::Status leftovers_ ABSL_GUARDED_BY(mu_);
  absl::Status folder_ ABSL_GUARDED_BY(mu_);  // why it is not open
  std::thread thread_ ABSL_GUARDED_BY(mu_);
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
