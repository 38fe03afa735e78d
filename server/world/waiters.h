// Calls that wait for an answer of the coordinator without a thread of their own.
#ifndef PARAMSHARD_SERVER_WORLD_WAITERS_H_
#define PARAMSHARD_SERVER_WORLD_WAITERS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "server/base/steady_cond_var.h"
#include "server/base/steady_time.h"

namespace paramshard::server {

// All calls that wait for one answer. The call that brings it takes them, and calls them without a lock. Not
// thread-safe.
template <typename Answer>
class Waiters {
 public:
  using Answered = std::function<void(const Answer& answer)>;

  // `waiter` identifies the call for Remove. Numbers ascend and are unique.
  void Add(int64_t waiter, Answered answered) { waiting_.emplace(waiter, std::move(answered)); }
  // Returns true if the call was still waiting.
  bool Remove(int64_t waiter) { return waiting_.erase(waiter) > 0; }

  std::vector<Answered> TakeAll() {
    std::vector<Answered> taken;
    for (auto& [waiter, answered] : std::exchange(waiting_, {})) taken.push_back(std::move(answered));
    return taken;
  }

  bool empty() const { return waiting_.empty(); }

 private:
  std::map<int64_t, Answered> waiting_;  // in the order of Add
};

// Calls to make when no lock is held.
using PendingAnswers = std::vector<std::function<void()>>;

template <typename Answer>
void AnswerAll(Waiters<Answer>& waiters, const Answer& answer, PendingAnswers& answers) {
  for (auto& answered : waiters.TakeAll()) {
    answers.push_back([answered = std::move(answered), answer] { answered(answer); });
  }
}

// The answer to a thread that waits for it. Thread-safe.
template <typename Answer>
class AwaitedAnswer {
 public:
  // Called once.
  void Set(const Answer& answer) {
    absl::MutexLock lock(&mu_);
    answer_ = answer;
    changed_.SignalAll();
  }

  // Returns nothing if the answer has not come by the deadline.
  std::optional<Answer> AwaitUntil(SteadyTime deadline) {
    absl::MutexLock lock(&mu_);
    while (!answer_.has_value() && !changed_.WaitUntil(&mu_, deadline)) {
    }
    return answer_;
  }

  Answer Await() {
    absl::MutexLock lock(&mu_);
    while (!answer_.has_value()) changed_.Wait(&mu_);
    return *answer_;
  }

 private:
  absl::Mutex mu_;
  SteadyCondVar changed_;
  std::optional<Answer> answer_ ABSL_GUARDED_BY(mu_);
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_WORLD_WAITERS_H_
