#include "server/checkpoints/restore_follower.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "common/model/names.h"
#include "kernels/base/status_macros.h"
#include "server/base/thread.h"
#include "server/checkpoints/checkpoint_choice.h"

namespace paramshard::server {
namespace {

// Largest number of orders that are remembered. Further ones are refused.
constexpr size_t kMostOrders = 1024;
// Interval in which a creation that waits for node 0 checks whether its caller is still there.
constexpr absl::Duration kLookAfter = absl::Milliseconds(200);
// Interval in which it tells node 0 again that it waits.
constexpr absl::Duration kTellAgainAfter = absl::Seconds(5);

// Checks an order before it is taken. `found` is OK if its model is here.
absl::Status CheckOrder(const RestoreOrder& order, const absl::Status& found) {
  if (!order.creates) RETURN_IF_ERROR(found);
  return ParseCheckpointRequest(order.folder).status();
}

absl::Status DrainError() { return absl::UnavailableError("restore: the daemon drains; try again later"); }

// Carries out an order on an existing model. Gives the model's turn back.
absl::Status RunOrdered(const std::shared_ptr<Model>& model, FollowingRestore& restore) {
  ASSIGN_OR_RETURN(const OrderedRestore ordered, PrepareOrdered(model, restore.order()));
  return ordered.restore->Run([] { return absl::OkStatus(); }, restore).status();
}

}  // namespace

// --- From start to end ---

RestoreFollower::RestoreFollower(Options options) : options_(std::move(options)) {}

RestoreFollower::~RestoreFollower() {
  BeginDrain();
  {
    absl::MutexLock lock(&mu_);
    while (!works_.empty()) changed_.Wait(&mu_);
  }
  JoinFinished();
}

void RestoreFollower::BeginDrain() {
  absl::MutexLock lock(&mu_);
  draining_ = true;
  for (const auto& [model, ordered] : ordered_) {
    if (ordered.taken != nullptr) ordered.taken->Cancel();
  }
  changed_.SignalAll();
}

void RestoreFollower::JoinFinished() {
  std::vector<std::thread> finished;
  {
    absl::MutexLock lock(&mu_);
    finished = std::exchange(finished_, {});
  }
  for (std::thread& thread : finished) thread.join();
}

// --- What node 0 says ---

void RestoreFollower::OnNews(const RestoreNews& news) {
  if (const auto* const order = std::get_if<RestoreOrder>(&news.what); order != nullptr) {
    JoinFinished();
    Due due;
    {
      absl::MutexLock lock(&mu_);
      due = TakeOrder(news.model, *order);
    }
    return CarryOut(due);
  }
  absl::MutexLock lock(&mu_);
  if (const auto* const go = std::get_if<RestoreGo>(&news.what); go != nullptr) TakeGo(news.model, go->id);
  if (const auto* const end = std::get_if<RestoreEnd>(&news.what); end != nullptr) TakeEnd(news.model, *end);
  if (const auto* const word = std::get_if<RestoreAnswer>(&news.what); word != nullptr) TakeAnswer(news.model, *word);
  if (const auto* const loss = std::get_if<RestoreLeaderLost>(&news.what); loss != nullptr) TakeLoss(loss->why);
}

// Asks the store under the lock: a creation of the model without a restore looks for an order after that.
RestoreFollower::Due RestoreFollower::TakeOrder(const std::string& model, const RestoreOrder& order) {
  if (draining_) {
    Refuse(model, order.id, DrainError());
    return {};
  }
  const absl::StatusOr<std::shared_ptr<Model>> found = options_.store->Find(model);
  if (const absl::Status status = CheckOrder(order, found.status()); !status.ok()) {
    Refuse(model, order.id, status);
    return {};
  }
  if (Ordered* const other = FindOrder(model); other != nullptr && other->taken != nullptr) {
    other->next = order;
    return {};
  }
  DropLateOrders();
  if (ordered_.size() >= kMostOrders) {
    Refuse(model, order.id, absl::ResourceExhaustedError("too many restores wait for their models"));
    return {};
  }
  Ordered& ordered = ordered_[model];
  ordered = {.order = order, .deadline = After(options_.clock->Now(), order.timeout)};
  changed_.SignalAll();
  return found.ok() ? Due{.model = *found, .restore = Take(model, ordered)} : Due{};
}

void RestoreFollower::DropLateOrders() {
  const SteadyTime now = options_.clock->Now();
  std::erase_if(ordered_,
                [&](const auto& entry) { return entry.second.taken == nullptr && entry.second.deadline <= now; });
}

void RestoreFollower::TakeGo(absl::string_view model, absl::uint128 id) {
  Ordered* const ordered = FindOrder(model);
  if (ordered != nullptr && ordered->order.id == id && ordered->taken != nullptr) ordered->taken->OnGo();
}

void RestoreFollower::TakeEnd(absl::string_view model, const RestoreEnd& end) {
  const auto ordered = ordered_.find(model);
  if (ordered == ordered_.end()) return;
  if (ordered->second.next.has_value() && ordered->second.next->id == end.id) ordered->second.next.reset();
  if (ordered->second.order.id != end.id) return;
  if (ordered->second.taken != nullptr) return ordered->second.taken->OnEnd(end.status);
  ordered_.erase(ordered);
}

void RestoreFollower::TakeAnswer(absl::string_view model, const RestoreAnswer& answer) {
  const auto waiting = waiting_.find(model);
  if (waiting == waiting_.end() || waiting->second.wish != answer.id) return;
  waiting->second.answer = answer;
  changed_.SignalAll();
}

void RestoreFollower::TakeLoss(const absl::Status& why) {
  for (auto ordered = ordered_.begin(); ordered != ordered_.end();) {
    if (ordered->second.taken == nullptr) {
      ordered = ordered_.erase(ordered);
    } else {
      ordered->second.next.reset();
      (ordered++)->second.taken->OnEnd(why);
    }
  }
  for (auto& [model, waiting] : waiting_) waiting.answer = RestoreAnswer{.status = why};
  changed_.SignalAll();
}

// --- Orders ---

RestoreFollower::Ordered* RestoreFollower::FindOrder(absl::string_view model) {
  const auto found = ordered_.find(model);
  return found == ordered_.end() ? nullptr : &found->second;
}

const RestoreFollower::Ordered* RestoreFollower::FindUntaken(absl::string_view model) const {
  const auto found = ordered_.find(model);
  if (found == ordered_.end() || found->second.taken != nullptr) return nullptr;
  return options_.clock->Now() < found->second.deadline ? &found->second : nullptr;
}

void RestoreFollower::Refuse(const std::string& model, absl::uint128 id, const absl::Status& why) {
  cluster().TellRestore({.model = model, .what = RestoreReport{.id = id, .status = why}}).IgnoreError();
}

FollowingRestore* RestoreFollower::Take(const std::string& model, Ordered& ordered) {
  ordered.taken =
      std::make_unique<FollowingRestore>(FollowingRestore::Options{.cluster = &cluster(),
                                                                   .model = model,
                                                                   .order = ordered.order,
                                                                   .deadline = ordered.deadline,
                                                                   .clock = options_.clock,
                                                                   .before_ready = options_.before_ready,
                                                                   .before_rows = options_.before_rows,
                                                                   .before_written = options_.before_written});
  return ordered.taken.get();
}

void RestoreFollower::End(const FollowingRestore& restore, const absl::Status& status) {
  const std::string& model = restore.model();
  std::unique_ptr<FollowingRestore> ended;
  Due due;
  {
    absl::MutexLock lock(&mu_);
    Ordered& ordered = *FindOrder(model);
    ended = std::move(ordered.taken);
    const std::optional<RestoreOrder> next = ordered.next;
    ordered_.erase(model);
    changed_.SignalAll();
    if (next.has_value()) due = TakeOrder(model, *next);
  }
  CarryOut(due);
  // Node 0 may order the next restore as soon as it has this report.
  ended->Finish(status);
}

void RestoreFollower::OnCreatedFresh(const std::string& model) {
  Due due;
  {
    absl::MutexLock lock(&mu_);
    const absl::StatusOr<std::shared_ptr<Model>> found = options_.store->Find(model);
    if (found.ok() && FindUntaken(model) != nullptr) due = {.model = *found, .restore = Take(model, *FindOrder(model))};
    changed_.SignalAll();
  }
  CarryOut(due);
}

void RestoreFollower::CarryOut(const Due& due) {
  if (due.restore == nullptr) return;
  if (const absl::Status started = StartWork(due); !started.ok()) End(*due.restore, started);
}

absl::Status RestoreFollower::StartWork(const Due& due) {
  absl::MutexLock lock(&mu_);
  const int64_t number = ++last_work_;
  ASSIGN_OR_RETURN(std::thread thread, StartThread(absl::StrCat("a restore of ", DisplayName(due.restore->model())),
                                                   [this, number, due] { Work(number, due); }));
  works_.emplace(number, std::move(thread));
  return absl::OkStatus();
}

void RestoreFollower::Work(int64_t number, const Due& due) {
  End(*due.restore, RunOrdered(due.model, *due.restore));
  absl::MutexLock lock(&mu_);
  finished_.push_back(std::move(works_[number]));
  works_.erase(number);
  changed_.SignalAll();
}

absl::StatusOr<FollowingRestore*> RestoreFollower::TakeOrdered(const std::string& model, absl::uint128 id) {
  absl::MutexLock lock(&mu_);
  const Ordered* const untaken = FindUntaken(model);
  if (draining_ || untaken == nullptr || untaken->order.id != id) {
    return absl::UnavailableError(
        absl::StrCat("create model ", DisplayName(model), ": node 0 gave up the restore; try again"));
  }
  return Take(model, *FindOrder(model));
}

void RestoreFollower::RefuseOrder(const std::string& model, absl::uint128 id, const absl::Status& why) {
  absl::MutexLock lock(&mu_);
  const Ordered* const untaken = FindUntaken(model);
  if (untaken == nullptr || untaken->order.id != id) return;
  ordered_.erase(model);
  Refuse(model, id, why);
}

// --- Creations that wait ---

bool RestoreFollower::HasOrder(absl::string_view model) const {
  absl::MutexLock lock(&mu_);
  return FindUntaken(model) != nullptr;
}

absl::StatusOr<RestoreFollower::Word> RestoreFollower::AwaitOrder(const std::string& model, IsGone is_gone) {
  absl::MutexLock lock(&mu_);
  Waiting& waiting = waiting_[model];
  if (waiting.callers++ == 0) waiting.wish = options_.draw_id().value;
  absl::StatusOr<Word> word = AwaitWord(model, waiting, is_gone);
  if (--waiting.callers == 0) {
    WithdrawWish(model, waiting);
    waiting_.erase(model);
  }
  return word;
}

absl::Status RestoreFollower::TellWish(const std::string& model, Waiting& waiting) {
  const SteadyTime now = options_.clock->Now();
  if (waiting.told.has_value() && now < After(*waiting.told, kTellAgainAfter)) return absl::OkStatus();
  waiting.told = now;
  return cluster().TellRestore({.model = model, .what = RestoreWish{.id = waiting.wish}});
}

void RestoreFollower::WithdrawWish(const std::string& model, const Waiting& waiting) {
  // Also after an answer, which may have crossed with a repeated wish.
  if (!waiting.told.has_value()) return;
  cluster().TellRestore({.model = model, .what = RestoreWish{.id = waiting.wish, .withdrawn = true}}).IgnoreError();
}

absl::StatusOr<RestoreFollower::Word> RestoreFollower::AwaitWord(const std::string& model, Waiting& waiting,
                                                                 IsGone is_gone) {
  const SteadyTime deadline = After(options_.clock->Now(), options_.timeout);
  while (true) {
    if (draining_) return DrainError();
    if (options_.store->Find(model).ok()) return Word{.is_here = true};
    if (const Ordered* const ordered = FindUntaken(model); ordered != nullptr) return Word{.order = ordered->order};
    if (waiting.answer.has_value()) {
      RETURN_IF_ERROR(waiting.answer->status);
      return Word{.heals = waiting.answer->heals};
    }
    // The answer may come before this call waits.
    RETURN_IF_ERROR(TellWish(model, waiting));
    if (is_gone()) {
      return absl::AbortedError(absl::StrCat("create model ", DisplayName(model), ": the caller has gone"));
    }
    const absl::Duration left = Until(deadline, options_.clock->Now());
    if (left <= absl::ZeroDuration()) {
      return absl::DeadlineExceededError(absl::StrCat(
          "create model ", DisplayName(model), ": timed out after ", absl::FormatDuration(options_.timeout),
          ": node 0 has not chosen a checkpoint, because its trainers have not created the model"));
    }
    changed_.WaitUntil(&mu_, After(SteadyNow(), std::min(left, kLookAfter)));
  }
}

}  // namespace paramshard::server
