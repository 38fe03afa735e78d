// Saves of one model at a daemon that is not node 0: its part of each save that node 0 orders.
#ifndef PARAMSHARD_SERVER_CHECKPOINTS_FOLLOWING_SAVER_H_
#define PARAMSHARD_SERVER_CHECKPOINTS_FOLLOWING_SAVER_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
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
#include "absl/time/time.h"
#include "server/base/clock.h"
#include "server/base/disk_calls.h"
#include "server/base/steady_cond_var.h"
#include "server/checkpoints/daemon_images.h"
#include "server/checkpoints/save_records.h"
#include "server/models/model.h"
#include "server/models/model_saver.h"
#include "server/terms/save_news.h"

namespace paramshard::server {

// Follows the Saver of node 0, on a thread of its own:
//
//   order: the state is held as soon as its commit is answered here -> ranks are copied, steps may go on -> permission:
//   files are written -> part -> end
//
// Locks, publishes, deletes and cleans nothing. The part reports every failure here. When node 0 gives up the save,
// is lost, or sends nothing until the deadline, this daemon stops and forgets the save.
class FollowingSaver final : public ModelSaver {
 public:
  struct Options {
    std::string root;  // of checkpoints: node 0's too
    bool saves_on_drain = true;
    DiskCalls* calls = nullptr;  // these two outlive the saver
    const Clock* clock = &Clock::Steady();
    std::function<absl::Time()> now = absl::Now;
    std::function<void(int rank)> before_copy = [](int) {};
  };

  // `model` outlives the saver. Errors of DaemonImages::Create; RESOURCE_EXHAUSTED for no thread.
  static absl::StatusOr<std::unique_ptr<FollowingSaver>> Create(Model& model, const Options& options);
  ~FollowingSaver() override;

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
  int64_t image_bytes() const override { return images_->memory_bytes(); }

 private:
  // A save, until node 0 has sent its result.
  struct UnderWay {
    SaveOrder order;
    int64_t number = 0;  // of its record
    SteadyTime begun;
    SteadyTime deadline;
    bool is_held = false;             // the state is, or was until it was copied
    bool is_permitted = false;        // to be written
    std::optional<SaveEnd> end = {};  // that came before the thread was done
  };
  // A state for the thread to copy.
  struct Work {
    SaveOrder order;
    SteadyTime deadline;
    Model::HeldState state;
  };

  FollowingSaver(Model& model, const Options& options)
      : model_(model), options_(options), records_(model.spec().name, *model.world().metrics) {}
  absl::Status Open();

  void TakeOrder(const SaveOrder& order) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool IsNewOrder(absl::uint128 id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void TakePermission(absl::uint128 id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void TakeEnd(const SaveEnd& end) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void TakeLoss(const absl::Status& why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Holds the ordered state as soon as it exists; `settled`: no commit is to come.
  void Hold(bool settled) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // FAILED_PRECONDITION if `state` is not the state that node 0 holds.
  absl::Status CheckIsOrdered(const Model::HeldState& state) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Sends the part to node 0, which ends the save.
  void Report(absl::uint128 id, const absl::StatusOr<PartReport>& report) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // `save` is one of the two below.
  void Finish(std::optional<UnderWay>& save, const SaveEnd& end) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Ends the reported save: node 0 sends nothing more about it, because of `why`.
  void FinishReported(const absl::Status& why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool Waits() const ABSL_SHARED_LOCKS_REQUIRED(mu_) { return under_way_.has_value() && !under_way_->is_held; }
  bool IsUnderWay(absl::uint128 id) const ABSL_SHARED_LOCKS_REQUIRED(mu_) {
    return under_way_.has_value() && under_way_->order.id == id;
  }
  SaveRecord& present() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return *records_.Find(under_way_->number); }
  SaveRecord Shown(const SaveRecord& record) const ABSL_SHARED_LOCKS_REQUIRED(mu_);
  // Returns true if the save is known and has no end yet.
  bool IsOpen(int64_t number) const ABSL_SHARED_LOCKS_REQUIRED(mu_);
  bool IsIdle() const ABSL_SHARED_LOCKS_REQUIRED(mu_) { return !under_way_.has_value() && !reported_.has_value(); }
  // Ends saves that have waited too long for their commit, or for node 0's answer.
  void CheckDeadlines() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  SteadyTime NextDeadline() const ABSL_SHARED_LOCKS_REQUIRED(mu_);
  void WaitUntil(SteadyTime deadline) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // Called by the thread.
  void Run();
  std::optional<Work> Take();
  void Save(const Work& work);
  absl::StatusOr<PartReport> MakePart(const Work& work);
  absl::Status AwaitPermission(const Work& work);
  absl::Status CheckGoesOn(const Work& work) const;
  static absl::Status LateError();

  // Constant after Create.
  Model& model_;
  const Options options_;
  std::unique_ptr<DaemonImages> images_;  // the thread's, but for its counters

  std::atomic<bool> stopping_ = false;
  std::atomic<bool> given_up_ = false;  // the save in progress, by node 0 or with it

  mutable absl::Mutex mu_;
  mutable SteadyCondVar changed_;
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
  bool wish_open_ ABSL_GUARDED_BY(mu_) = false;
  std::deque<absl::uint128> taken_orders_ ABSL_GUARDED_BY(mu_);  // ids of the newest ones: each comes by two ways
  std::optional<UnderWay> under_way_ ABSL_GUARDED_BY(mu_);
  // The save whose part is reported. The next order may come with a decision before this save's end on the stream.
  std::optional<UnderWay> reported_ ABSL_GUARDED_BY(mu_);
  absl::Status reported_status_ ABSL_GUARDED_BY(mu_);  // how its part is
  std::optional<Work> work_ ABSL_GUARDED_BY(mu_);      // until the thread takes it
  SaveRecords records_ ABSL_GUARDED_BY(mu_);
  std::thread thread_ ABSL_GUARDED_BY(mu_);
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_CHECKPOINTS_FOLLOWING_SAVER_H_
