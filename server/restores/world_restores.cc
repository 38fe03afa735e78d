#include "server/restores/world_restores.h"

#include <algorithm>
#include <variant>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "proto/model/names.h"
#include "server/base/thread.h"

namespace paramshard::server {
namespace {

// That node 0 remembers of others, and they of node 0. What comes beyond is refused.
constexpr size_t kMostWishes = 1024;
constexpr size_t kMostOrders = 1024;
// How often a creation that waits for node 0 looks whether its caller is still there.
constexpr absl::Duration kLookAfter = absl::Milliseconds(200);

absl::Status DrainError() { return absl::UnavailableError("restore: the daemon drains; try again later"); }

}  // namespace

// --- From start to end ---

WorldRestores::WorldRestores(Options options) : options_(std::move(options)) {
  options_.store->SetRestoreListener(this);
}

WorldRestores::~WorldRestores() {
  options_.store->SetRestoreListener(nullptr);
  BeginDrain();
  {
    absl::MutexLock lock(&mu_);
    while (!works_.empty()) changed_.Wait(&mu_);
  }
  JoinFinished();
}

void WorldRestores::BeginDrain() {
  absl::MutexLock lock(&mu_);
  draining_ = true;
  for (const auto& [model, restore] : leading_) restore->Cancel();
  for (const auto& [model, ordered] : ordered_) {
    if (ordered.taken != nullptr) ordered.taken->Cancel();
  }
  changed_.SignalAll();
}

void WorldRestores::JoinFinished() {
  std::vector<std::thread> finished;
  {
    absl::MutexLock lock(&mu_);
    finished = std::exchange(finished_, {});
  }
  for (std::thread& thread : finished) thread.join();
}

absl::Status WorldRestores::CheckLeads(absl::string_view model) const {
  if (leads()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("restore ", DisplayName(model),
                   ": a call to node 0 expected, which leads the restores of its world, got one to node ", node()));
}

// --- What is said ---

void WorldRestores::OnRestoreNews(const RestoreNews& news) {
  if (const auto* const order = std::get_if<RestoreOrder>(&news.what); order != nullptr) {
    return TakeOrder(news.model, *order);
  }
  absl::MutexLock lock(&mu_);
  if (const auto* const go = std::get_if<RestoreGo>(&news.what); go != nullptr) TakeGo(news.model, go->id);
  if (const auto* const end = std::get_if<RestoreEnd>(&news.what); end != nullptr) TakeEnd(news.model, *end);
  if (const auto* const word = std::get_if<RestoreAnswer>(&news.what); word != nullptr) TakeAnswer(news.model, *word);
  if (const auto* const loss = std::get_if<RestoreLeaderLost>(&news.what); loss != nullptr) TakeLoss(loss->why);
  if (const auto* const wish = std::get_if<RestoreWish>(&news.what); wish != nullptr) TakeWish(news.model, *wish);
  if (const auto* const lost = std::get_if<RestoreFollowerLost>(&news.what); lost != nullptr) DropWishesOf(lost->node);
  const auto leading = leading_.find(news.model);
  if (leading == leading_.end()) return;
  if (const auto* const sums = std::get_if<RestoreSums>(&news.what); sums != nullptr) leading->second->OnSums(*sums);
  if (const auto* const report = std::get_if<RestoreReport>(&news.what); report != nullptr) {
    leading->second->OnReport(*report);
  }
}

// --- Node 0 ---

absl::StatusOr<std::unique_ptr<RestorePeers>> WorldRestores::LeadRestore(const Model& model,
                                                                         const CheckpointChoice& choice,
                                                                         const ModelRestore& restore,
                                                                         const Lead& lead) {
  if (cluster().nodes() == 1) return nullptr;
  const std::string& name = model.spec().name;
  auto leading = std::make_unique<LeadingRestore>(
      LeadingRestore::Options{.cluster = &cluster(),
                              .model = name,
                              .order = {.id = options_.draw_id().value,
                                        .folder = lead.by_path ? choice.path : choice.id.folder,
                                        .save_id = choice.id.save_id,
                                        .convert_moments = lead.convert_moments,
                                        .spec_fingerprint = model.fingerprint(),
                                        .creates = lead.creates},
                              .saved = restore.manifest().tensors,
                              .replicas = restore.replicas(),
                              .deadline = After(options_.clock->Now(), options_.timeout),
                              .clock = options_.clock,
                              .before_go = [this] { options_.at(Point::kGo); },
                              .before_end = [this] { options_.at(Point::kEnd); },
                              .on_destroyed =
                                  [this, name](const LeadingRestore& ended) {
                                    absl::MutexLock lock(&mu_);
                                    // The next one may be there already.
                                    const auto found = leading_.find(name);
                                    if (found != leading_.end() && found->second == &ended) leading_.erase(found);
                                  }});
  absl::MutexLock lock(&mu_);
  // Whoever has prepared a restore has the model's turn: there is no other one that goes on.
  leading_[name] = leading.get();
  // The order is an answer.
  if (lead.creates) std::erase_if(wishes_, [&](const auto& wish) { return wish.first.first == name; });
  if (draining_) leading->Cancel();
  return leading;
}

void WorldRestores::TakeWish(const std::string& model, const RestoreWish& wish) {
  const Wish known(model, wish.node);
  if (wish.withdrawn) {
    // A later one of that node stays.
    if (const auto found = wishes_.find(known); found != wishes_.end() && found->second == wish.id) {
      wishes_.erase(found);
    }
    return;
  }
  if (wishes_.size() >= kMostWishes && !wishes_.contains(known)) {
    return Answer(model, wish.id, absl::ResourceExhaustedError("node 0 knows of too many creations that wait"));
  }
  const std::optional<absl::Status> answer = AnswerFor(model);
  if (answer.has_value()) return Answer(model, wish.id, *answer);
  wishes_[known] = wish.id;
}

std::optional<absl::Status> WorldRestores::AnswerFor(const std::string& name) const {
  const auto model = options_.store->Find(name);
  if (!model.ok()) return std::nullopt;
  const absl::StatusOr<Model::State> state = (*model)->Look("restore");
  // Whoever changes it orders the same everywhere.
  if (absl::IsUnavailable(state.status())) return std::nullopt;
  if (!state.ok()) return state.status();
  const bool is_fresh = (*model)->untouched() && state->numbers.commit_number == 0 &&
                        state->lineage.value == LineageOfCreation((*model)->fingerprint()).value;
  if (is_fresh) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("create model ", DisplayName(name),
                                                    ": a model that node 0 creates too expected, got one that is at "
                                                    "commit ",
                                                    state->numbers.commit_number,
                                                    " there: delete it at all daemons and create it again, or "
                                                    "create it without a restore, and restore it at node 0 then"));
}

void WorldRestores::Answer(const std::string& model, absl::uint128 wish, const absl::Status& status) {
  cluster().TellRestore({.model = model, .what = RestoreAnswer{.id = wish, .status = status}}).IgnoreError();
}

void WorldRestores::DropWishesOf(int node) {
  std::erase_if(wishes_, [node](const auto& wish) { return wish.first.second == node; });
}

void WorldRestores::OnCreatedFresh(const std::string& model) {
  return leads() ? AnswerWishes(model) : CarryOutUntaken(model);
}

void WorldRestores::AnswerWishes(const std::string& model) {
  absl::MutexLock lock(&mu_);
  for (auto wish = wishes_.begin(); wish != wishes_.end();) {
    if (wish->first.first != model) {
      ++wish;
      continue;
    }
    Answer(model, wish->second, absl::OkStatus());
    wish = wishes_.erase(wish);
  }
}

// --- Other nodes ---

WorldRestores::Ordered* WorldRestores::FindOrder(absl::string_view model) {
  const auto found = ordered_.find(model);
  return found == ordered_.end() ? nullptr : &found->second;
}

const WorldRestores::Ordered* WorldRestores::FindUntaken(absl::string_view model) const {
  const auto found = ordered_.find(model);
  if (found == ordered_.end() || found->second.taken != nullptr) return nullptr;
  return options_.clock->Now() < found->second.deadline ? &found->second : nullptr;
}

void WorldRestores::Refuse(const std::string& model, absl::uint128 id, const absl::Status& why) {
  cluster().TellRestore({.model = model, .what = RestoreReport{.id = id, .status = why}}).IgnoreError();
}

void WorldRestores::TakeOrder(const std::string& model, const RestoreOrder& order) {
  JoinFinished();
  const absl::StatusOr<std::shared_ptr<Model>> found = options_.store->Find(model);
  if (!found.ok() && !order.creates) return Refuse(model, order.id, found.status());
  if (const auto request = ParseCheckpointRequest(order.folder); !request.ok()) {
    return Refuse(model, order.id, request.status());
  }
  std::unique_ptr<FollowingRestore> restore;
  {
    absl::MutexLock lock(&mu_);
    if (draining_) return Refuse(model, order.id, DrainError());
    if (Ordered* const other = FindOrder(model); other != nullptr && other->taken != nullptr) {
      other->next = order;
      return;
    }
    DropLateOrders();
    if (ordered_.size() >= kMostOrders) {
      return Refuse(model, order.id, absl::ResourceExhaustedError("too many orders wait for their models there"));
    }
    Ordered& ordered = ordered_[model];
    ordered = {.order = order, .deadline = After(options_.clock->Now(), order.timeout)};
    if (found.ok()) restore = Take(model, ordered);
    changed_.SignalAll();
  }
  if (restore != nullptr) CarryOut(*found, std::move(restore));
}

void WorldRestores::DropLateOrders() {
  const SteadyTime now = options_.clock->Now();
  std::erase_if(ordered_,
                [&](const auto& entry) { return entry.second.taken == nullptr && entry.second.deadline <= now; });
}

void WorldRestores::CarryOutUntaken(const std::string& model) {
  const absl::StatusOr<std::shared_ptr<Model>> found = options_.store->Find(model);
  std::unique_ptr<FollowingRestore> restore;
  {
    absl::MutexLock lock(&mu_);
    if (found.ok() && FindUntaken(model) != nullptr) restore = Take(model, *FindOrder(model));
    changed_.SignalAll();
  }
  if (restore != nullptr) CarryOut(*found, std::move(restore));
}

std::unique_ptr<FollowingRestore> WorldRestores::Take(const std::string& model, Ordered& ordered) {
  auto restore = std::make_unique<FollowingRestore>(
      FollowingRestore::Options{.cluster = &cluster(),
                                .model = model,
                                .order = ordered.order,
                                .deadline = ordered.deadline,
                                .clock = options_.clock,
                                .before_ready = [this] { options_.at(Point::kReady); },
                                .before_written = [this] { options_.at(Point::kWritten); },
                                .on_destroyed = [this, model, id = ordered.order.id] { Forget(model, id); }});
  ordered.taken = restore.get();
  return restore;
}

void WorldRestores::Forget(const std::string& model, absl::uint128 id) {
  std::optional<RestoreOrder> next;
  {
    absl::MutexLock lock(&mu_);
    if (const Ordered* const ordered = FindOrder(model); ordered != nullptr && ordered->order.id == id) {
      next = ordered->next;
      ordered_.erase(model);
    }
    changed_.SignalAll();
  }
  if (next.has_value()) TakeOrder(model, *next);
}

void WorldRestores::CarryOut(std::shared_ptr<Model> model, std::unique_ptr<FollowingRestore> restore) {
  Worker worker{.model = std::move(model), .restore = std::move(restore), .thread = {}};
  if (const absl::Status started = StartWork(worker); !started.ok()) worker.restore->Finish(started);
}

absl::Status WorldRestores::StartWork(Worker& worker) {
  absl::MutexLock lock(&mu_);
  const int64_t number = ++last_work_;
  ASSIGN_OR_RETURN(worker.thread, StartThread(absl::StrCat("a restore of ", DisplayName(worker.model->spec().name)),
                                              [this, number] { Work(number); }));
  works_.emplace(number, std::move(worker));
  return absl::OkStatus();
}

// Gives the model's turn back.
void WorldRestores::RunOrdered(const std::shared_ptr<Model>& model, FollowingRestore& restore) {
  const absl::StatusOr<OrderedRestore> ordered = PrepareOrdered(model, restore.order());
  if (!ordered.ok()) return restore.Finish(ordered.status());
  ordered->restore->Run([] { return absl::OkStatus(); }, &restore).IgnoreError();
}

void WorldRestores::Work(int64_t number) {
  std::shared_ptr<Model> model;
  std::unique_ptr<FollowingRestore> restore;
  {
    absl::MutexLock lock(&mu_);
    model = std::move(works_[number].model);
    restore = std::move(works_[number].restore);
  }
  RunOrdered(model, *restore);
  restore.reset();
  absl::MutexLock lock(&mu_);
  finished_.push_back(std::move(works_[number].thread));
  works_.erase(number);
  changed_.SignalAll();
}

void WorldRestores::TakeGo(absl::string_view model, absl::uint128 id) {
  Ordered* const ordered = FindOrder(model);
  if (ordered != nullptr && ordered->order.id == id && ordered->taken != nullptr) ordered->taken->OnGo();
}

void WorldRestores::TakeEnd(absl::string_view model, const RestoreEnd& end) {
  const auto ordered = ordered_.find(model);
  if (ordered == ordered_.end()) return;
  if (ordered->second.next.has_value() && ordered->second.next->id == end.id) ordered->second.next.reset();
  if (ordered->second.order.id != end.id) return;
  if (ordered->second.taken != nullptr) return ordered->second.taken->OnEnd(end.status);
  ordered_.erase(ordered);
}

void WorldRestores::TakeLoss(const absl::Status& why) {
  for (auto ordered = ordered_.begin(); ordered != ordered_.end();) {
    if (ordered->second.taken == nullptr) {
      ordered = ordered_.erase(ordered);
    } else {
      ordered->second.next.reset();
      (ordered++)->second.taken->OnEnd(why);
    }
  }
  for (auto& [model, waiting] : waiting_) waiting.answer = why;
  changed_.SignalAll();
}

// --- Creations at other nodes ---

void WorldRestores::TakeAnswer(absl::string_view model, const RestoreAnswer& answer) {
  const auto waiting = waiting_.find(model);
  if (waiting == waiting_.end() || waiting->second.wish != answer.id) return;
  waiting->second.answer = answer.status;
  changed_.SignalAll();
}

bool WorldRestores::HasOrder(absl::string_view model) const {
  absl::MutexLock lock(&mu_);
  return FindUntaken(model) != nullptr;
}

absl::StatusOr<WorldRestores::Word> WorldRestores::AwaitOrder(const std::string& model, IsGone is_gone) {
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

absl::Status WorldRestores::TellWish(const std::string& model, Waiting& waiting) {
  waiting.is_told = true;
  return cluster().TellRestore({.model = model, .what = RestoreWish{.id = waiting.wish}});
}

void WorldRestores::WithdrawWish(const std::string& model, const Waiting& waiting) {
  // What node 0 has answered it has forgotten.
  if (!waiting.is_told || waiting.answer.has_value()) return;
  cluster().TellRestore({.model = model, .what = RestoreWish{.id = waiting.wish, .withdrawn = true}}).IgnoreError();
}

absl::StatusOr<WorldRestores::Word> WorldRestores::AwaitWord(const std::string& model, Waiting& waiting,
                                                             IsGone is_gone) {
  const SteadyTime deadline = After(options_.clock->Now(), options_.timeout);
  bool is_told = false;
  while (true) {
    if (draining_) return DrainError();
    if (options_.store->Find(model).ok()) return Word{.is_here = true};
    if (const Ordered* const ordered = FindUntaken(model); ordered != nullptr) return Word{.order = ordered->order};
    if (waiting.answer.has_value()) {
      RETURN_IF_ERROR(*waiting.answer);
      return Word();
    }
    // Its answer may be here before this call waits.
    if (!std::exchange(is_told, true)) RETURN_IF_ERROR(TellWish(model, waiting));
    if (is_gone()) {
      return absl::AbortedError(absl::StrCat("create model ", DisplayName(model), ": the caller has gone"));
    }
    const absl::Duration left = Until(deadline, options_.clock->Now());
    if (left <= absl::ZeroDuration()) {
      return absl::DeadlineExceededError(absl::StrCat(
          "create model ", DisplayName(model), ": node 0's word about the checkpoint within ",
          absl::FormatDuration(options_.timeout), " expected: the trainers of its daemon have not created the model"));
    }
    changed_.WaitUntil(&mu_, After(SteadyNow(), std::min(left, kLookAfter)));
  }
}

void WorldRestores::RefuseOrder(const std::string& model, absl::uint128 id, const absl::Status& why) {
  absl::MutexLock lock(&mu_);
  const Ordered* const untaken = FindUntaken(model);
  if (untaken == nullptr || untaken->order.id != id) return;
  ordered_.erase(model);
  Refuse(model, id, why);
}

absl::StatusOr<std::unique_ptr<FollowingRestore>> WorldRestores::Follow(const std::string& model, absl::uint128 id) {
  absl::MutexLock lock(&mu_);
  const Ordered* const untaken = FindUntaken(model);
  if (!draining_ && untaken != nullptr && untaken->order.id == id) return Take(model, *FindOrder(model));
  return absl::UnavailableError(absl::StrCat("create model ", DisplayName(model),
                                             ": a restore that goes on expected, node 0 has given it up; try again"));
}

}  // namespace paramshard::server
