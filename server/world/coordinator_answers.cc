// Calls of nodes that wait for an answer of the coordinator: votes on commits, and values of other nodes.

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "server/world/coordinator.h"

namespace paramshard::server {
namespace {

CommitQuery QueryOf(const CommitVote& vote) {
  return {.model = vote.model, .history_id = vote.history_id, .epoch = vote.epoch, .commit_number = vote.commit_number};
}

// The epoch belongs to an earlier coordinator or a deleted model, whose decisions are gone.
absl::Status InDoubtError(const CommitQuery& query) {
  return absl::DataLossError(absl::StrCat("vote ", query.model, " commit ", query.commit_number, ": epoch ",
                                          query.epoch,
                                          " is unknown to node 0, which was restarted or has deleted the model"));
}

absl::Status ForgottenError(const CommitQuery& query) {
  return absl::DataLossError(
      absl::StrCat("vote ", query.model, " commit ", query.commit_number,
                   ": forgotten: node 0 has decided later commits or goes on from another state, and ",
                   "remembers the last ", kKeptDecisions, " decisions"));
}

absl::Status UndecidedError(const CommitQuery& query, const absl::Status& why) {
  return absl::AbortedError(absl::StrCat("vote ", query.model, " commit ", query.commit_number, ": epoch ", query.epoch,
                                         " ended before the decision: ", why.message()));
}

// Answers for an epoch that this coordinator has not started. An earlier coordinator with the same history wrote each
// decision before it told any node, so the commit after the last written one is undecided.
absl::StatusOr<CommitDecision> AnswerFromBefore(const std::vector<ClosedEpoch>& closed, const CommitQuery& query) {
  const auto before = std::find_if(closed.begin(), closed.end(),
                                   [&](const ClosedEpoch& epoch) { return epoch.history_id == query.history_id; });
  if (before == closed.end()) return InDoubtError(query);
  const std::optional<ClosedEpoch::Decided>& last = before->last_decision;
  if (last.has_value() && last->epoch == query.epoch && last->commit_number == query.commit_number) {
    return last->decision;
  }
  const bool is_known = before->may_be_old ? query.epoch == before->epoch : query.epoch >= before->epoch;
  if (!is_known || query.commit_number != before->commit_number + 1) return InDoubtError(query);
  return UndecidedError(query, absl::UnavailableError("node 0 was restarted"));
}

absl::Status TakesNoPartError(int node, absl::string_view model, int64_t epoch) {
  return absl::FailedPreconditionError(
      absl::StrCat("epoch ", epoch, " of ", model, ": node ", node, " takes no part: attach its trainers again"));
}

absl::Status PartsForgottenError(const CommitVote& vote) {
  return absl::AbortedError(absl::StrCat("get parts of ", vote.model,
                                         ": parts are dropped at the epoch's first commit: commit ", vote.commit_number,
                                         " is decided"));
}

absl::Status NoRoomError(absl::string_view model, absl::string_view key, int node) {
  return absl::ResourceExhaustedError(absl::StrCat("put ", key, " of ", model, ": want at most ",
                                                   RendezvousBook::kMostBytes, " bytes of node ", node,
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

// --- Commits ---

Coordinator::Wait Coordinator::Vote(int node, const CommitVote& vote, VoteAnswered answered) {
  std::optional<absl::StatusOr<CommitDecision>> answer;
  {
    const Lock lock(this);
    answer = TakeVote(node, vote);
    if (!answer.has_value()) {
      Find(vote.model)->voters[node].Add(++last_waiter_, std::move(answered));
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
  const Lock lock(this);
  Model* const model = Find(wait.model);
  if (model == nullptr) return false;
  if (!wait.key.has_value()) return model->voters[*wait.node].Remove(wait.waiter);
  return model->rendezvous.GiveUp(*wait.key, wait.node, wait.waiter);
}

std::optional<absl::StatusOr<CommitDecision>> Coordinator::TakeVote(int node, const CommitVote& vote) {
  const CommitQuery query = QueryOf(vote);
  std::optional<absl::StatusOr<CommitDecision>> answer = Answer(query);
  if (!answer.has_value()) {
    if (absl::Status cast = CastVote(node, vote); !cast.ok()) return cast;
    answer = Answer(query);
  }
  if (answer.has_value() && answer->ok()) AddPrevious(node, query, **answer);
  return answer;
}

absl::Status Coordinator::CastVote(int node, const CommitVote& vote) {
  Model& model = *Find(vote.model);
  if (!Has(model.active, node)) return TakesNoPartError(node, vote.model, vote.epoch);
  const CommitBook::Cast cast =
      model.book.Add(members_, node, node == 0 && options_.log != nullptr ? WithLog(vote) : vote);
  switch (cast.result) {
    case CommitBook::Cast::Result::kCounted:
      if (model.book.last_commit_number() != vote.commit_number) return absl::OkStatus();
      AnswerVoters(vote.model, model, vote.commit_number);
      model.awaited = model.active;
      EndOrderBehindCommit(vote.model, model);
      // Every voter has read the parts.
      if (model.rendezvous.has_parts()) model.rendezvous.DropParts(PartsForgottenError(vote), answers_);
      // Links that were reported as cut meanwhile did not work: this commit was summed before.
      if (!model.gathering.has_value()) links_.Worked(model.active, SteadyNow());
      EndForReturners(vote.model, model);
      return absl::OkStatus();
    case CommitBook::Cast::Result::kRepeated:
      if (model.book.IsFirstVoter(node)) AskTheLate(vote.model, model);
      return absl::OkStatus();
    case CommitBook::Cast::Result::kDiffers:
      DemandCommands(vote.model, model, node);
      DemandCommands(vote.model, model, *model.book.VoterBeside(node));
      return absl::OkStatus();
    case CommitBook::Cast::Result::kRefused:
      return cast.why;
    case CommitBook::Cast::Result::kDisagrees:
      End(vote.model, model, cast.why, /*by_votes=*/true);
      return cast.why;
    case CommitBook::Cast::Result::kUnwritten:
      End(vote.model, model, cast.why);
      return absl::OkStatus();  // the end answers all votes
  }
  return absl::OkStatus();
}

// The log is written before node 0's journal: a decision that a restarted server finds there has to be on the disk too.
CommitVote Coordinator::WithLog(const CommitVote& vote) {
  CommitVote logged = vote;
  logged.write_down = [this, model = vote.model, commit_number = vote.commit_number, client_states = vote.client_states,
                       write_down = vote.write_down](const CommitDecision& decision) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    return WriteInLog([&]() -> absl::Status {
      RETURN_IF_ERROR(options_.log->Decide(model, commit_number, decision, client_states));
      return write_down == nullptr ? absl::OkStatus() : write_down(decision);
    });
  };
  return logged;
}

void Coordinator::DemandCommands(const std::string& name, Model& model, int node) {
  if (!model.commands.Demand(node) || sinks_[node] == nullptr) return;
  sinks_[node]->OnCommandsWanted(name, model.last_epoch, {});
}

// A node is late if it is at another command than a voter, and waits for it.
void Coordinator::AskTheLate(const std::string& name, Model& model) {
  for (const int node : model.active) {
    if (model.book.HasVoted(node) || sinks_[node] == nullptr) continue;
    model.commands.Ask(node);
    sinks_[node]->OnCommandsWanted(name, model.last_epoch, model.book.commands());
  }
}

absl::StatusOr<CommitDecision> Coordinator::QueryCommit(int node, const CommitQuery& query) {
  const Lock lock(this);
  if (Model* const model = FindRunning(query.model, query.epoch); model != nullptr) {
    const bool is_of_it = query.history_id.empty() || query.history_id == model->history_id;
    if (!Has(model->active, node) || !is_of_it) return InDoubtError(query);
    End(query.model, *model,
        absl::UnavailableError(absl::StrCat(NodeName(members_, node), " was restarted, and asks what became of commit ",
                                            query.commit_number)));
  }
  absl::StatusOr<CommitDecision> answer = *Answer(query);  // no decision is open in an ended epoch
  // Votes that disagreed have decided nothing.
  if (absl::IsFailedPrecondition(answer.status())) return UndecidedError(query, answer.status());
  return answer;
}

std::optional<absl::StatusOr<CommitDecision>> Coordinator::Answer(const CommitQuery& query) {
  const Model* const model = Find(query.model);
  if (model == nullptr || model->book.IsOfAnother(query)) return InDoubtError(query);
  if (std::optional<CommitDecision> decision = model->book.Find(query.epoch, query.commit_number)) {
    return WithOrder(query.model, query.commit_number, *std::move(decision));
  }
  if (query.epoch <= model->epoch_floor || query.epoch > model->last_epoch) {
    return AnswerFromBefore(model->before, query);
  }
  if (model->running && model->last_epoch == query.epoch) {
    // Nothing is decided any more. The node gets this answer instead of staying in doubt.
    if (stopped_) return UndecidedError(query, StoppedError());
    return std::nullopt;
  }
  if (model->book.HasForgotten(query.epoch, query.commit_number)) return ForgottenError(query);
  if (model->last_end.epoch != query.epoch) return EpochOverError(query.model, query.epoch);
  return model->last_end.by_votes ? model->last_end.why : UndecidedError(query, model->last_end.why);
}

void Coordinator::AddPrevious(int node, const CommitQuery& query, CommitDecision& decision) {
  const Model& model = *Find(query.model);
  if (!Has(model.active, node)) return;
  decision.previous_client_states =
      model.book.ClientStates(query.epoch, query.commit_number, PreviousNode(node, model.active));
  if (!decision.previous_client_states.has_value() && options_.log != nullptr) {
    decision.previous_client_states = options_.log->SentByNode0(query, node);
  }
}

void Coordinator::AnswerVoters(const std::string& name, Model& model, int64_t commit_number) {
  const CommitQuery query{.model = name, .epoch = model.last_epoch, .commit_number = commit_number};
  for (auto& [node, voters] : model.voters) {
    if (voters.empty()) continue;
    absl::StatusOr<CommitDecision> answer = *Answer(query);
    if (answer.ok()) AddPrevious(node, query, *answer);
    AnswerAll(voters, answer, answers_);
  }
}

// --- Rendezvous ---

absl::StatusOr<RendezvousBook*> Coordinator::FindRendezvous(absl::string_view name, int64_t epoch, int node) {
  if (stopped_) return StoppedError();
  Model* const model = FindRunning(name, epoch);
  if (model == nullptr) return EpochOverError(name, epoch);
  if (!Has(model->active, node)) return TakesNoPartError(node, name, epoch);
  return &model->rendezvous;
}

absl::Status Coordinator::Put(int node, absl::string_view name, int64_t epoch, absl::string_view key,
                              absl::string_view value) {
  const Lock lock(this);
  ASSIGN_OR_RETURN(RendezvousBook* const book, FindRendezvous(name, epoch, node));
  if (!book->TakeRoom(node, static_cast<int64_t>(key.size() + value.size()))) return NoRoomError(name, key, node);
  if (book->Put(KeyOf(node, key), value, answers_)) return absl::OkStatus();
  return absl::AlreadyExistsError(absl::StrCat("put ", key, " of ", name,
                                               ": another value already exists in this epoch: give each daemon a "
                                               "--node of its own"));
}

Coordinator::Wait Coordinator::Get(int node, absl::string_view name, int64_t epoch, absl::string_view key,
                                   ValueAnswered answered) {
  absl::StatusOr<std::string> answer;
  {
    const Lock lock(this);
    const absl::StatusOr<RendezvousBook*> book = FindRendezvous(name, epoch, node);
    const std::string whose = KeyOf(node, key);
    const std::optional<std::string> value = book.ok() ? (*book)->Find(whose) : std::nullopt;
    if (book.ok() && !value.has_value()) {
      (*book)->Await(whose, ++last_waiter_, std::move(answered));
      return {.model = std::string(name), .key = whose, .waiter = last_waiter_};
    }
    answer = book.ok() ? absl::StatusOr<std::string>(*value) : book.status();
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
  const Lock lock(this);
  ASSIGN_OR_RETURN(RendezvousBook* const book, FindRendezvous(name, epoch, node));
  int64_t size_bytes = static_cast<int64_t>(key.size());
  for (const std::string& part : parts) size_bytes += static_cast<int64_t>(part.size());
  if (!book->TakeRoom(node, size_bytes)) return NoRoomError(name, key, node);
  book->PutParts(node, key, std::move(parts), answers_);
  return absl::OkStatus();
}

Coordinator::Wait Coordinator::GetParts(int node, absl::string_view name, int64_t epoch, absl::string_view key,
                                        PartsAnswered answered) {
  absl::StatusOr<Parts> answer = absl::InvalidArgumentError(
      absl::StrCat("get ", key, " of ", name, ": want a node below ", nodes(), ", got ", node));
  if (node >= 0 && node < nodes()) {
    const Lock lock(this);
    const absl::StatusOr<RendezvousBook*> book = FindRendezvous(name, epoch, node);
    std::optional<Parts> parts = book.ok() ? (*book)->FindParts(node, key) : std::nullopt;
    if (book.ok() && !parts.has_value()) {
      (*book)->AwaitParts(node, key, ++last_waiter_, std::move(answered));
      return {.model = std::string(name), .key = std::string(key), .node = node, .waiter = last_waiter_};
    }
    answer = book.ok() ? absl::StatusOr<Parts>(*std::move(parts)) : book.status();
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
  if (const Model* const model = Find(name); model != nullptr) {
    const std::optional<int> first = model->rendezvous.FirstWithoutParts(key);
    if (first.has_value()) missing = NodeName(members_, *first);
  }
  return absl::DeadlineExceededError(absl::StrCat("get ", key, " of ", name, ": timed out after ",
                                                  absl::FormatDuration(timeout), ", got no part of ", missing));
}

}  // namespace paramshard::server
