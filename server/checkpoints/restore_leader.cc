#include "server/checkpoints/restore_leader.h"

#include <variant>

#include "absl/strings/str_cat.h"
#include "common/model/names.h"
#include "kernels/base/status_macros.h"

namespace paramshard::server {
namespace {

// Largest number of wishes that are remembered. Further ones are refused.
constexpr size_t kMostWishes = 1024;

absl::Status HasTrainedError(const std::string& model, int64_t commit_number) {
  return absl::FailedPreconditionError(absl::StrCat("create model ", DisplayName(model),
                                                    ": already exists at node 0, trained to "
                                                    "commit ",
                                                    commit_number,
                                                    "; delete it at all daemons and create it again, or "
                                                    "create it without a restore, and then restore it at node 0"));
}

bool IsPassing(const absl::Status& why) { return absl::IsUnavailable(why) || absl::IsCancelled(why); }

}  // namespace

void RestoreLeader::BeginDrain() {
  absl::MutexLock lock(&mu_);
  draining_ = true;
  for (const auto& [model, restore] : leading_) restore->Cancel();
}

void RestoreLeader::OnNews(const RestoreNews& news) {
  absl::MutexLock lock(&mu_);
  if (const auto* const wish = std::get_if<RestoreWish>(&news.what); wish != nullptr) TakeWish(news.model, *wish);
  if (const auto* const lost = std::get_if<RestoreFollowerLost>(&news.what); lost != nullptr) DropWishesOf(lost->node);
  const auto leading = leading_.find(news.model);
  if (leading == leading_.end()) return;
  if (const auto* const sums = std::get_if<RestoreSums>(&news.what); sums != nullptr) leading->second->OnSums(*sums);
  if (const auto* const report = std::get_if<RestoreReport>(&news.what); report != nullptr) {
    leading->second->OnReport(*report);
  }
  if (const auto* const part = std::get_if<RestorePartProgress>(&news.what); part != nullptr) {
    leading->second->OnProgress(*part);
  }
}

// --- Restores ---

LeadingRestore::Options RestoreLeader::OptionsFor(const Model& model, const CheckpointChoice& choice,
                                                  const ModelRestore& restore, const Terms& terms) const {
  return {.cluster = &cluster(),
          .model = model.spec().name,
          .order = {.id = options_.draw_id().value,
                    .folder = terms.by_path ? choice.path : choice.id.folder,
                    .save_id = choice.id.save_id,
                    .convert_moments = terms.convert_moments,
                    .spec_fingerprint = model.fingerprint(),
                    .creates = terms.creates,
                    .rollback_why = terms.rollback_why,
                    .step = restore.manifest().step,
                    .was_asked_for = terms.was_asked_for},
          .saved = restore.manifest().tensors,
          .replicas = restore.replicas(),
          .deadline = After(options_.clock->Now(), options_.timeout),
          .clock = options_.clock,
          .is_abandoned = terms.is_abandoned,
          .before_go = options_.before_go,
          .before_rows = options_.before_rows,
          .before_written = options_.before_written,
          .before_end = options_.before_end};
}

absl::Status RestoreLeader::Register(const std::string& model, LeadingRestore* restore) {
  absl::MutexLock lock(&mu_);
  // A prepared restore has the model's turn: there is no other restore of this model. But the model may have been
  // deleted since, and another model may have its name.
  if (!leading_.try_emplace(model, restore).second) {
    return absl::UnavailableError(
        absl::StrCat("restore ", DisplayName(model), ": another restore of this name is in progress; try again"));
  }
  if (draining_) restore->Cancel();
  return absl::OkStatus();
}

absl::StatusOr<History> RestoreLeader::Run(const Model& model, const CheckpointChoice& choice, ModelRestore& restore,
                                           const Terms& terms, absl::FunctionRef<absl::Status()> begun) {
  if (cluster().nodes() == 1) return restore.Run(begun);
  LeadingRestore leading(OptionsFor(model, choice, restore, terms));
  RETURN_IF_ERROR(Register(model.spec().name, &leading));
  absl::StatusOr<History> history = restore.Run(begun, leading);
  leading.Finish(history.status());
  absl::MutexLock lock(&mu_);
  leading_.erase(model.spec().name);
  if (history.ok()) broken_.erase(model.spec().name);
  if (!history.ok() && leading.has_gone()) {
    broken_[model.spec().name] = {
        .path = choice.path, .convert_moments = terms.convert_moments, .passes = IsPassing(leading.broken())};
  }
  return history;
}

std::optional<RestoreLeader::Broken> RestoreLeader::broken(const std::string& model) const {
  absl::MutexLock lock(&mu_);
  const auto found = broken_.find(model);
  return found == broken_.end() ? std::nullopt : std::optional(found->second);
}

// --- Creations at other nodes ---

void RestoreLeader::TakeWish(const std::string& model, const RestoreWish& wish) {
  const Wish known(model, wish.node);
  if (wish.withdrawn) {
    // A later wish of that node stays.
    if (const auto found = wishes_.find(known); found != wishes_.end() && found->second == wish.id) {
      wishes_.erase(found);
    }
    return;
  }
  if (wishes_.size() >= kMostWishes && !wishes_.contains(known)) {
    return Answer(model, wish.id, {.status = absl::ResourceExhaustedError("node 0: too many creations are waiting")});
  }
  const std::optional<RestoreAnswer> answer = AnswerFor(model);
  if (answer.has_value()) return Answer(model, wish.id, *answer);
  wishes_[known] = wish.id;
}

void RestoreLeader::DropWishesOf(int node) {
  std::erase_if(wishes_, [node](const auto& wish) { return wish.first.second == node; });
}

std::optional<RestoreAnswer> RestoreLeader::AnswerFor(const std::string& name) const {
  const auto model = options_.store->Find(name);
  if (!model.ok()) return std::nullopt;
  const absl::StatusOr<Model::State> state = (*model)->Look("restore");
  // A restore in progress orders its checkpoint everywhere; after any other change the wish comes again.
  if (absl::IsUnavailable(state.status())) return std::nullopt;
  if (state.ok() && (*model)->fresh()) return RestoreAnswer();
  // The model has trained, and the waiting node has lost its part. A replica heals it; else an order or a refusal
  // follows.
  if (state.ok() && (*model)->topology().has_replicas()) return RestoreAnswer{.heals = true};
  options_.roll_back(name, state.ok() ? HasTrainedError(name, state->numbers.commit_number) : state.status());
  return std::nullopt;
}

void RestoreLeader::Answer(const std::string& model, absl::uint128 wish, RestoreAnswer answer) {
  answer.id = wish;
  cluster().TellRestore({.model = model, .what = std::move(answer)}).IgnoreError();
}

void RestoreLeader::AnswerAll(const std::string& model, const absl::Status& status) {
  for (auto wish = wishes_.begin(); wish != wishes_.end();) {
    if (wish->first.first != model) {
      ++wish;
      continue;
    }
    Answer(model, wish->second, {.status = status});
    wish = wishes_.erase(wish);
  }
}

void RestoreLeader::OnCreatedFresh(const std::string& model) {
  absl::MutexLock lock(&mu_);
  broken_.erase(model);
  AnswerAll(model, absl::OkStatus());
}

void RestoreLeader::Refuse(const std::string& model, const absl::Status& why) {
  absl::MutexLock lock(&mu_);
  AnswerAll(model, why);
}

void RestoreLeader::EndRollback(const std::string& model, const absl::Status& status) {
  cluster().TellRestore({.model = model, .what = RollbackEnd{.status = status}}).IgnoreError();
}

}  // namespace paramshard::server
