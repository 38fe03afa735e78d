#include "server/world/coordinator.h"

#include <algorithm>
#include <memory>
#include <set>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "common/model/names.h"
#include "kernels/base/status_macros.h"

namespace paramshard::server {
namespace {

// Largest epoch number accepted from a node, so that larger numbers remain.
constexpr int64_t kLastEpoch = int64_t{1} << 62;

absl::Status LastEpochError(const ModelReport& report) {
  return absl::InvalidArgumentError(absl::StrCat("report of ", report.model, ": want a last epoch in [0, ", kLastEpoch,
                                                 "], got ", report.last_epoch));
}

// Largest number of models and longest reason that a node may report, since the coordinator keeps its reports.
constexpr int64_t kMostModels = 1000;
constexpr size_t kMostReasonBytes = 64 << 10;

// INVALID_ARGUMENT a report is larger than a daemon's can be.
absl::Status CheckReport(const ModelReport& report, int devices) {
  if (const absl::Status name = CheckName(report.model); !name.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("report of a model: invalid name: ", name.message()));
  }
  const bool is_short = report.history_id.size() <= kMaxNameBytes && report.lineage.size() <= kMaxNameBytes &&
                        report.lost.message().size() <= kMostReasonBytes;
  if (is_short && static_cast<int>(report.attached_ranks.size()) <= devices) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("report of ", report.model, ": want ids of at most ", kMaxNameBytes,
                                                 " bytes, a reason of at most ", kMostReasonBytes, ", and at most ",
                                                 devices, " attached ranks, got more"));
}

absl::Status TooManyModelsError(const std::string& model, int node) {
  return absl::ResourceExhaustedError(
      absl::StrCat("report of ", model, ": want at most ", kMostModels, " models of node ", node, ", got more"));
}

EpochRefused Refusal(const ModelReport& report, absl::Status why) {
  return {.model = report.model.substr(0, kMaxNameBytes), .why = std::move(why)};
}

absl::Status NoRoomError(absl::string_view model, absl::string_view key, int node) {
  return absl::ResourceExhaustedError(absl::StrCat("put ", key, " of ", model, ": want at most ",
                                                   RendezvousStore::kMostBytes, " bytes of node ", node,
                                                   " in an epoch, got more"));
}

// Returns the key under which a node's value is stored.
std::string KeyOf(int node, absl::string_view key) { return absl::StrCat(node, "/", key); }

absl::Status LateError() { return absl::DeadlineExceededError("timed out waiting for an answer"); }

// Waits for an answer for at most `wait`, then returns `late`. `ask` starts the call with its callback, and returns its
// Coordinator::Wait.
template <typename Answer, typename Ask>
Answer AwaitAnswer(Coordinator& coordinator, absl::Duration wait, Ask ask, absl::Status late) {
  const SteadyTime deadline = SteadyDeadline(wait);
  const auto awaited = std::make_shared<AwaitedAnswer<Answer>>();
  const Coordinator::Wait waiting = ask([awaited](const Answer& answer) { awaited->Set(answer); });
  if (std::optional<Answer> answer = awaited->AwaitUntil(deadline); answer.has_value()) return *std::move(answer);
  if (coordinator.GiveUp(waiting)) return late;
  return awaited->Await();
}

}  // namespace

Coordinator::Coordinator(const Options& options)
    : nodes_(options.nodes),
      terms_(options.terms),
      world_(&mu_, options.nodes, terms_, options.quorum, options.log),
      addresses_(options.nodes) {
  if (!options.device_counts.empty()) world_.members.SetDeviceCounts(options.device_counts);
  for (const ClosedEpoch& before : options.closed) {
    models_.try_emplace(before.model, before.model, &world_).first->second.AddBefore(before);
  }
}

// --- Membership ---

absl::Status Coordinator::Join(int node, int device_count, NodeSink* sink) {
  const WorldContext::Lock lock(&mu_, &world_);
  if (world_.stopped) return WorldContext::StoppedError();
  const bool was_sized = world_.members.sized();
  RETURN_IF_ERROR(world_.members.Join(node, device_count));
  world_.sinks[node] = sink;
  sink->Tell(Welcome{.nodes = nodes_});
  const Welcome sized{.nodes = nodes_, .device_counts = world_.members.device_counts()};
  if (was_sized) {
    sink->Tell(sized);
  } else if (world_.members.sized()) {
    world_.TellAll(sized);
  }
  for (auto& [name, model] : models_) model.TryStart();
  world_.changed.SignalAll();
  return absl::OkStatus();
}

absl::Status Coordinator::Move(int node, int64_t connection, NodeSink* sink) {
  const WorldContext::Lock lock(&mu_, &world_);
  if (world_.stopped) return WorldContext::StoppedError();
  world_.Tell(node, Moved{.connection = connection});
  world_.sinks[node] = sink;
  sink->Tell(Welcome{.nodes = nodes_});
  return absl::OkStatus();
}

void Coordinator::Leave(int node) {
  const WorldContext::Lock lock(&mu_, &world_);
  if (!world_.members.present(node)) return;
  world_.members.Leave(node);
  world_.links.Forget(node);
  world_.sinks[node] = nullptr;
  saves_.Lose(node);
  restores_.Lose(node);
  for (auto& [name, model] : models_) model.Lose(node);
  // Forget models that only this node has reported and that were never trained.
  std::erase_if(models_, [](const auto& entry) {
    const ModelFacts& model = entry.second.facts();
    return model.last_epoch == model.epoch_floor && model.before.empty() && !model.IsReported();
  });
  world_.changed.SignalAll();
}

std::vector<int> Coordinator::device_counts() const {
  absl::MutexLock lock(&mu_);
  return world_.members.device_counts();
}

void Coordinator::SetAddress(int node, absl::string_view address) {
  absl::MutexLock lock(&mu_);
  // No address of a daemon is longer.
  addresses_[node] = std::string(address.substr(0, kMaxNameBytes));
}

std::vector<std::string> Coordinator::addresses() const {
  absl::MutexLock lock(&mu_);
  return addresses_;
}

absl::Status Coordinator::AwaitWorld(absl::Duration timeout) {
  const SteadyTime deadline = SteadyDeadline(timeout);
  absl::MutexLock lock(&mu_);
  while (!world_.stopped && !world_.members.sized() && !world_.changed.WaitUntil(&mu_, deadline)) {
  }
  if (world_.stopped) return WorldContext::StoppedError();
  if (world_.members.sized()) return absl::OkStatus();
  return MissingNodesError(world_.members.device_counts(), timeout);
}

WorldView Coordinator::ViewWorld() {
  absl::MutexLock lock(&mu_);
  const Membership& members = world_.members;
  const SteadyTime now = SteadyNow();
  world_.links.TryAgain(now);
  WorldView view{.cut_links = world_.links.Texts()};
  std::set<int> left_out;
  for (const auto& [name, model] : models_) {
    for (const int node : model.LeftOut(now)) left_out.insert(node);
  }
  view.left_out.assign(left_out.begin(), left_out.end());
  for (int node = 0; node < nodes_; ++node) {
    if (const absl::Duration held_for = HeldBack(node, now); held_for > absl::ZeroDuration()) {
      view.held_back.push_back({.node = node, .held_for = held_for, .losses = members.losses(node)});
    }
    if (members.present(node)) continue;
    view.absent.push_back(
        {.node = node, .absent_for = absl::FromChrono(now - members.changed_at(node)), .losses = members.losses(node)});
  }
  return view;
}

absl::Duration Coordinator::HeldBack(int node, SteadyTime now) const {
  const bool waits = std::any_of(models_.begin(), models_.end(), [node](const auto& entry) {
    return entry.second.WaitsOutside(node) && !IsOrderedDonor(entry.second.facts(), node);
  });
  const bool is_held = waits && world_.members.present(node);
  return is_held ? HeldBackFor(world_.members, node, world_.policy, now) : absl::ZeroDuration();
}

void Coordinator::ServeAbsences() {
  while (true) {
    const WorldContext::Lock lock(&mu_, &world_);
    if (world_.stopped) return;
    const SteadyTime now = SteadyNow();
    world_.links.TryAgain(now);
    for (auto& [name, model] : models_) model.Look();
    const std::optional<SteadyTime> next = NextLook(now);
    next.has_value() ? static_cast<void>(world_.changed.WaitUntil(&mu_, *next)) : world_.changed.Wait(&mu_);
  }
}

// May return a time before `now`: then epochs are looked at again at once.
std::optional<SteadyTime> Coordinator::NextLook(SteadyTime now) const {
  std::optional<SteadyTime> next = NextGivenUp(world_.members, world_.policy, now);
  const auto add = [&next](std::optional<SteadyTime> at) {
    if (at.has_value()) next = std::min(*at, next.value_or(*at));
  };
  add(world_.links.NextTry());
  for (const auto& [name, model] : models_) add(model.NextLook());
  return next;
}

// --- Messages of nodes ---

absl::Status Coordinator::Step(int node, const FromNode& message) {
  if (std::holds_alternative<WorldQuestion>(message)) {
    absl::MutexLock lock(&mu_);
    world_.Tell(node, Welcome{.nodes = nodes_, .device_counts = world_.members.device_counts()});
    return absl::OkStatus();
  }
  const WorldContext::Lock lock(&mu_, &world_);
  absl::Status status;
  const Overloaded take = {
      [&](const ModelReport& report) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { TakeReport(node, report); },
      [&](const ModelDeleted& deleted) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
        if (ModelEpochs* const model = Find(models_, deleted.model); model != nullptr) model->Step(node, deleted);
        EraseIfForgotten(deleted.model);
      },
      [&](const SaveMessage& message) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { status = saves_.Step(node, message); },
      [&](const RestoreMessage& message) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { status = restores_.Step(node, message); },
      [](const WorldQuestion&) {},
      [&](const auto& of_epoch) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
        ModelEpochs* const model = FindRunning(models_, of_epoch.model, of_epoch.epoch);
        if (model != nullptr) model->Step(node, of_epoch);
      },
  };
  std::visit(take, message);
  return status;
}

void Coordinator::TakeReport(int node, const ModelReport& report) {
  if (world_.stopped || !world_.members.present(node)) return;
  if (const absl::Status sound = CheckReport(report, world_.members.device_counts()[node]); !sound.ok()) {
    return world_.Tell(node, Refusal(report, sound));
  }
  const ModelEpochs* const known = Find(models_, report.model);
  // An epoch of this coordinator may have a higher number.
  const int64_t last_epoch = known == nullptr ? 0 : known->facts().last_epoch;
  if (report.last_epoch < 0 || report.last_epoch > std::max(kLastEpoch, last_epoch)) {
    return world_.Tell(node, Refusal(report, LastEpochError(report)));
  }
  if (known == nullptr && ModelsOf(node) >= kMostModels) {
    return world_.Tell(node, Refusal(report, TooManyModelsError(report.model, node)));
  }
  auto [it, added] = models_.try_emplace(report.model, report.model, &world_);
  if (added) it->second.SkipEpochs(forgotten_epoch_);
  it->second.Step(node, report);
}

int64_t Coordinator::ModelsOf(int node) const {
  return std::count_if(models_.begin(), models_.end(),
                       [node](const auto& model) { return model.second.facts().reports[node].has_value(); });
}

void Coordinator::EraseIfForgotten(absl::string_view name) {
  const auto it = models_.find(name);
  if (it == models_.end() || it->second.facts().IsReported()) return;
  const ModelFacts& model = it->second.facts();
  forgotten_epoch_ = std::max(forgotten_epoch_, model.last_epoch);
  // Nodes may still ask about an epoch that another coordinator began.
  if (world_.log != nullptr && model.last_epoch > model.epoch_floor) {
    const auto forget = [log = world_.log, name] {
      log->Forget(name);
      return absl::OkStatus();
    };
    world_.WriteInLog(forget).IgnoreError();
  }
  models_.erase(it);
}

std::vector<int> Coordinator::restored_nodes(absl::string_view model, absl::uint128 id) const {
  absl::MutexLock lock(&mu_);
  return restores_.nodes_of(model, id);
}

// --- Epochs ---

std::map<std::string, std::string> Coordinator::WaitingModels() {
  absl::MutexLock lock(&mu_);
  std::map<std::string, std::string> waiting;
  for (const auto& [name, model] : models_) {
    if (std::optional<std::string> why = model.WhyNoEpoch(); why.has_value()) waiting.emplace(name, *std::move(why));
  }
  return waiting;
}

std::optional<int> Coordinator::healing_donor(absl::string_view name) {
  absl::MutexLock lock(&mu_);
  const ModelEpochs* const model = Find(models_, name);
  if (model == nullptr || !model->facts().order.has_value()) return std::nullopt;
  return model->facts().order->donor();
}

absl::StatusOr<HealingAnswer> Coordinator::OrderHealing(absl::string_view name, int donor) {
  const WorldContext::Lock lock(&mu_, &world_);
  if (world_.stopped) return WorldContext::StoppedError();
  if (donor < 0 || donor >= nodes_) {
    return absl::InvalidArgumentError(absl::StrCat("heal ", name, ": want a node in [0, ", nodes_, "), got ", donor));
  }
  ModelEpochs* const model = Find(models_, name);
  if (model != nullptr) return model->OrderHealing(donor);
  return absl::NotFoundError(absl::StrCat(
      "heal ", name, ": model not found, no trainer has attached to it: ", "let trainers come, and ask again"));
}

// --- Commits ---

Coordinator::Wait Coordinator::Vote(int node, const CommitVote& vote, VoteAnswered answered) {
  std::optional<CommitVotes::Answer> answer;
  {
    const WorldContext::Lock lock(&mu_, &world_);
    ModelEpochs* const model = Find(models_, vote.model);
    answer = model == nullptr
                 ? InDoubtError({.model = vote.model, .epoch = vote.epoch, .commit_number = vote.commit_number})
                 : model->Vote(node, vote);
    if (!answer.has_value()) {
      model->votes().Await(node, ++last_waiter_, std::move(answered));
      return {.model = vote.model, .node = node, .waiter = last_waiter_};
    }
  }
  answered(*answer);
  return {};
}

absl::StatusOr<CommitDecision> Coordinator::Vote(int node, const CommitVote& vote, absl::Duration wait) {
  const auto ask = [&](VoteAnswered answered) { return Vote(node, vote, std::move(answered)); };
  return AwaitAnswer<absl::StatusOr<CommitDecision>>(
      *this, wait, ask,
      absl::DeadlineExceededError(
          absl::StrCat("vote ", vote.model, " commit ", vote.commit_number, ": other nodes have not voted yet")));
}

bool Coordinator::GiveUp(const Wait& wait) {
  const WorldContext::Lock lock(&mu_, &world_);
  ModelEpochs* const model = Find(models_, wait.model);
  if (model == nullptr) return false;
  return wait.key.has_value() ? model->rendezvous().GiveUp(*wait.key, wait.node, wait.waiter)
                              : model->votes().GiveUp(*wait.node, wait.waiter);
}

absl::StatusOr<CommitDecision> Coordinator::QueryCommit(int node, const CommitQuery& query) {
  const WorldContext::Lock lock(&mu_, &world_);
  ModelEpochs* const model = Find(models_, query.model);
  return model == nullptr ? InDoubtError(query) : model->QueryCommit(node, query);
}

// --- Rendezvous ---

absl::StatusOr<RendezvousStore*> Coordinator::FindRendezvous(absl::string_view name, int64_t epoch, int node) {
  if (world_.stopped) return WorldContext::StoppedError();
  ModelEpochs* const model = FindRunning(models_, name, epoch);
  if (model == nullptr) return EpochOverError(name, epoch);
  if (!model->facts().IsActive(node)) return TakesNoPartError(node, name, epoch);
  return &model->rendezvous();
}

absl::Status Coordinator::Put(int node, absl::string_view name, int64_t epoch, absl::string_view key,
                              absl::string_view value) {
  const WorldContext::Lock lock(&mu_, &world_);
  ASSIGN_OR_RETURN(RendezvousStore* const store, FindRendezvous(name, epoch, node));
  if (!store->TakeRoom(node, static_cast<int64_t>(key.size() + value.size()))) return NoRoomError(name, key, node);
  if (store->Put(KeyOf(node, key), value, world_.answers)) return absl::OkStatus();
  return absl::AlreadyExistsError(absl::StrCat("put ", key, " of ", name,
                                               ": another value already exists in this epoch: give each daemon a "
                                               "--node of its own"));
}

Coordinator::Wait Coordinator::Get(int node, absl::string_view name, int64_t epoch, absl::string_view key,
                                   ValueAnswered answered) {
  absl::StatusOr<std::string> answer;
  {
    const WorldContext::Lock lock(&mu_, &world_);
    const absl::StatusOr<RendezvousStore*> store = FindRendezvous(name, epoch, node);
    const std::string whose = KeyOf(node, key);
    const std::optional<std::string> value = store.ok() ? (*store)->Find(whose) : std::nullopt;
    if (store.ok() && !value.has_value()) {
      (*store)->Await(whose, ++last_waiter_, std::move(answered));
      return {.model = std::string(name), .key = whose, .waiter = last_waiter_};
    }
    answer = store.ok() ? absl::StatusOr<std::string>(*value) : store.status();
  }
  answered(answer);
  return {};
}

absl::StatusOr<std::string> Coordinator::Get(int node, absl::string_view name, int64_t epoch, absl::string_view key,
                                             absl::Duration timeout) {
  const auto ask = [&](ValueAnswered answered) { return Get(node, name, epoch, key, std::move(answered)); };
  return AwaitAnswer<absl::StatusOr<std::string>>(*this, timeout, ask, LateValueError(node, name, key, timeout));
}

absl::Status Coordinator::LateValueError(int node, absl::string_view model, absl::string_view key,
                                         absl::Duration timeout) {
  return absl::DeadlineExceededError(absl::StrCat("get ", key, " of ", model, ": timed out after ",
                                                  absl::FormatDuration(timeout), ", got no value of node ", node));
}

absl::Status Coordinator::PutParts(int node, absl::string_view name, int64_t epoch, absl::string_view key,
                                   Parts parts) {
  if (node < 0 || node >= nodes() || static_cast<int>(parts.size()) != nodes()) {
    return absl::InvalidArgumentError(absl::StrCat("put ", key, " of ", name, ": want a part for each of ", nodes(),
                                                   " nodes from one of them, got ", parts.size(), " from node ", node));
  }
  const WorldContext::Lock lock(&mu_, &world_);
  ASSIGN_OR_RETURN(RendezvousStore* const store, FindRendezvous(name, epoch, node));
  int64_t size_bytes = static_cast<int64_t>(key.size());
  for (const std::string& part : parts) size_bytes += static_cast<int64_t>(part.size());
  if (!store->TakeRoom(node, size_bytes)) return NoRoomError(name, key, node);
  store->PutParts(node, key, std::move(parts), world_.answers);
  return absl::OkStatus();
}

Coordinator::Wait Coordinator::GetParts(int node, absl::string_view name, int64_t epoch, absl::string_view key,
                                        PartsAnswered answered) {
  absl::StatusOr<Parts> answer = absl::InvalidArgumentError(
      absl::StrCat("get ", key, " of ", name, ": want a node below ", nodes(), ", got ", node));
  if (node >= 0 && node < nodes()) {
    const WorldContext::Lock lock(&mu_, &world_);
    const absl::StatusOr<RendezvousStore*> store = FindRendezvous(name, epoch, node);
    std::optional<Parts> parts = store.ok() ? (*store)->FindParts(node, key) : std::nullopt;
    if (store.ok() && !parts.has_value()) {
      (*store)->AwaitParts(node, key, ++last_waiter_, std::move(answered));
      return {.model = std::string(name), .key = std::string(key), .node = node, .waiter = last_waiter_};
    }
    answer = store.ok() ? absl::StatusOr<Parts>(*std::move(parts)) : store.status();
  }
  answered(answer);
  return {};
}

absl::StatusOr<Coordinator::Parts> Coordinator::GetParts(int node, absl::string_view name, int64_t epoch,
                                                         absl::string_view key, absl::Duration timeout) {
  const auto ask = [&](PartsAnswered answered) { return GetParts(node, name, epoch, key, std::move(answered)); };
  absl::StatusOr<Parts> parts = AwaitAnswer<absl::StatusOr<Parts>>(*this, timeout, ask, LateError());
  return absl::IsDeadlineExceeded(parts.status()) ? LatePartsError(name, key, timeout) : std::move(parts);
}

absl::Status Coordinator::LatePartsError(absl::string_view name, absl::string_view key, absl::Duration timeout) {
  absl::MutexLock lock(&mu_);
  std::string missing = "some node";
  if (ModelEpochs* const model = Find(models_, name); model != nullptr) {
    const std::optional<int> first = model->rendezvous().FirstWithoutParts(key);
    if (first.has_value()) missing = NodeName(world_.members, *first);
  }
  return absl::DeadlineExceededError(absl::StrCat("get ", key, " of ", name, ": timed out after ",
                                                  absl::FormatDuration(timeout), ", got no part of ", missing));
}

void Coordinator::Stop() {
  const WorldContext::Lock lock(&mu_, &world_);
  if (world_.stopped) return;
  world_.stopped = true;
  for (NodeSink* const sink : world_.sinks) {
    if (sink != nullptr) sink->OnStop();
  }
  for (auto& [name, model] : models_) model.Stop();
  world_.changed.SignalAll();
}

}  // namespace paramshard::server
