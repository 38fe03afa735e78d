// A trainer in the test's own process: it attaches to a Model, maps what it is given, and speaks through its words
// page. It does not map the tensors of GPUs: there it says what is gathered and pushed without looking.
#ifndef PARAMSHARD_TESTS_SERVER_MODELS_FAKE_TRAINER_H_
#define PARAMSHARD_TESTS_SERVER_MODELS_FAKE_TRAINER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/shared_memory/ring.h"
#include "common/shared_memory/words.h"
#include "server/models/model.h"

namespace paramshard::server {

// For one epoch; the next one is another trainer's. One thread drives it. Waits end after half a minute.
class FakeTrainer {
 public:
  // `model` outlives the trainer.
  FakeTrainer(Model* model, int rank);
  // Leaves unless it has heard of the end, and waits for it.
  ~FakeTrainer();
  FakeTrainer(const FakeTrainer&) = delete;
  FakeTrainer& operator=(const FakeTrainer&) = delete;

  // Runs `then` in the call that tells the end.
  void WhenEnded(std::function<void()> then) {
    absl::MutexLock lock(&mu_);
    when_ended_ = std::move(then);
  }
  // From now on it cannot be reached: memory that is sent to it does not arrive, with this answer.
  void RefuseMemory(
      absl::Status why = absl::AbortedError("companion: the trainer has closed its companion connection")) {
    refusal_ = std::move(why);
  }
  absl::Status Attach();
  bool AwaitStarted();
  // Null unless it came in time.
  const EpochEndInfo* AwaitEnded();
  // It goes in order, after the commands that it has sent.
  absl::Status Detach() { return model_->trainers().Detach(session_, sent_); }
  // Its process is gone.
  void Leave(const absl::Status& why = absl::AbortedError("the trainer has gone"));

  // Valid after AwaitStarted.
  const EpochStartInfo& started() const { return started_; }
  const wire::Words& words() const { return words_; }
  uint8_t* slot(int index) const;
  uint8_t* gradient_slot(int index) const;
  int64_t session() const { return session_; }
  int rank() const { return rank_; }
  // Returns true if a forward gather's bytes of other ranks equal the bytes of their planes.
  bool HoldsPlanes(int unit, int slot, Phase phase = Phase::kForward) const;

  // Commands; they return the command's number. They are sent through the ring.
  int64_t Gather(int unit, int slot, v1::Phase phase = v1::PHASE_FORWARD);
  // Says that the slot is filled, then sends the push.
  int64_t Push(int unit, int slot, std::vector<int> absent = {});
  int64_t SendPush(int unit, int slot);
  int64_t Commit(int64_t commit_number, std::string client_state = "");
  int64_t Discard();
  int64_t Send(const v1::Command& command);
  int64_t next_command() const { return sent_ + 1; }
  // A record as it is.
  void SendRecord(const std::string& record);

  void Fill(int slot, int64_t number);
  void Release(int slot, int64_t number);
  // Fills the whole gradient slot with one float, in the gradient type of the unit's first parameter.
  void FillGradients(int slot, int unit, float value);
  // One gradient for each element of the unit's only parameter, in its gradient type.
  void FillGradients(int slot, int unit, const std::vector<float>& values);

  // Waits until the pieces of all other ranks have come.
  bool AwaitReady(int slot, int64_t number) const;
  bool AwaitDrained(int slot, int64_t number) const;
  // Waits until the daemon's thread for this rank has taken all commands and sleeps on the doorbell.
  bool AwaitDaemonAsleep() const;
  // The answer; nothing when the epoch ended first, or it did not come in time.
  std::optional<wire::CommitRecord> AwaitCommitted(int64_t commit_number) const;

 private:
  class Mapping;

  Trainer MakeTrainer();
  absl::Status TakeMemory(const wire::CompanionMemory& message, absl::Span<const int> fds);

  Model* const model_;
  const int rank_;
  const int64_t session_;
  absl::Status refusal_;
  int64_t sent_ = 0;

  // Set before `is_started_`, constant from then on.
  std::unique_ptr<Mapping> planes_, slots_, words_page_;
  wire::Words words_;
  std::optional<wire::RingWriter> ring_;
  EpochStartInfo started_;

  absl::Mutex mu_;
  std::function<void()> when_ended_ ABSL_GUARDED_BY(mu_);
  bool attached_ ABSL_GUARDED_BY(mu_) = false;
  bool is_started_ ABSL_GUARDED_BY(mu_) = false;
  bool is_ended_ ABSL_GUARDED_BY(mu_) = false;
  EpochEndInfo ended_;  // set before `is_ended_`
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_TESTS_SERVER_MODELS_FAKE_TRAINER_H_
