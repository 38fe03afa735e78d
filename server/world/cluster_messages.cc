#include "server/world/cluster_messages.h"

#include <variant>

#include "absl/numeric/int128.h"
#include "common/rpc/durations.h"
#include "common/rpc/status.h"
#include "server/base/version.h"

namespace paramshard::server {
namespace {

v1::SaveNumber IdMessage(absl::uint128 id) {
  v1::SaveNumber message;
  message.set_high(absl::Uint128High64(id));
  message.set_low(absl::Uint128Low64(id));
  return message;
}

absl::uint128 IdOf(const v1::SaveNumber& message) { return absl::MakeUint128(message.high(), message.low()); }

v1::CommandsThrough CommandsThroughMessage(const CommandsThrough& commands) {
  v1::CommandsThrough message;
  message.set_number(commands.number);
  *message.mutable_hash() = IdMessage(commands.hash);
  return message;
}

// Numbers of the wire begin with the unspecified value.
v1::SaveReason ReasonMessage(SaveReason reason) { return static_cast<v1::SaveReason>(static_cast<int>(reason) + 1); }
static_assert(static_cast<int>(SaveReason::kCommits) + 1 == v1::SAVE_REASON_COMMITS);
static_assert(static_cast<int>(SaveReason::kDrain) + 1 == v1::SAVE_REASON_DRAIN);

SaveReason ReasonOf(v1::SaveReason message) {
  if (message < v1::SAVE_REASON_COMMITS || message > v1::SAVE_REASON_DRAIN) return SaveReason::kCall;
  return static_cast<SaveReason>(static_cast<int>(message) - 1);
}

// Requires a save that has ended.
v1::SaveState StateMessage(SaveState state) {
  if (state == SaveState::kPublished) return v1::SAVE_STATE_PUBLISHED;
  if (state == SaveState::kAlreadySaved) return v1::SAVE_STATE_ALREADY_SAVED;
  return state == SaveState::kUnknown ? v1::SAVE_STATE_UNKNOWN : v1::SAVE_STATE_ABANDONED;
}

SaveState StateOf(v1::SaveState message) {
  if (message == v1::SAVE_STATE_PUBLISHED) return SaveState::kPublished;
  if (message == v1::SAVE_STATE_ALREADY_SAVED) return SaveState::kAlreadySaved;
  return message == v1::SAVE_STATE_UNKNOWN ? SaveState::kUnknown : SaveState::kAbandoned;
}

v1::SaveOrder OrderMessage(const SaveOrder& order) {
  v1::SaveOrder message;
  *message.mutable_id() = IdMessage(order.id);
  message.set_commit_number(order.step);
  message.set_version(order.version);
  message.set_lineage(order.lineage);
  message.set_history_id(order.history_id);
  message.set_spec_fingerprint(order.spec_fingerprint);
  message.set_reason(ReasonMessage(order.reason));
  *message.mutable_timeout() = DurationToProto(order.timeout);
  return message;
}

SaveOrder OrderOf(const v1::SaveOrder& message) {
  return {.id = IdOf(message.id()),
          .step = message.commit_number(),
          .version = message.version(),
          .lineage = message.lineage(),
          .history_id = message.history_id(),
          .spec_fingerprint = message.spec_fingerprint(),
          .reason = ReasonOf(message.reason()),
          .timeout = DurationFromProto(message.timeout())};
}

// Puts each kind of news into its message.
struct SaveWriter {
  v1::SaveNews& message;

  void operator()(const SaveOrder& order) const { *message.mutable_order() = OrderMessage(order); }
  void operator()(const SavePermission& permission) const {
    *message.mutable_permission()->mutable_id() = IdMessage(permission.id);
  }
  void operator()(const SavePart& part) const {
    v1::SavePart& saved = *message.mutable_part();
    *saved.mutable_id() = IdMessage(part.id);
    *saved.mutable_hash() = IdMessage(part.hash);
    if (!part.status.ok()) *saved.mutable_error() = StatusToProto(part.status);
  }
  void operator()(const SaveEnd& end) const {
    v1::SaveEnd& ended = *message.mutable_end();
    *ended.mutable_id() = IdMessage(end.id);
    ended.set_state(StateMessage(end.state));
    ended.set_path(end.path);
    ended.set_size_bytes(end.size_bytes);
    if (!end.why.ok()) *ended.mutable_error() = StatusToProto(end.why);
  }
  void operator()(const SaveWish&) const { message.mutable_wish(); }
  void operator()(const SaveLeaderLost&) const {}
};

v1::RestoreOrder OrderMessage(const RestoreOrder& order) {
  v1::RestoreOrder message;
  *message.mutable_id() = IdMessage(order.id);
  message.set_folder(order.folder);
  *message.mutable_save_id() = IdMessage(order.save_id);
  message.set_convert_moments(order.convert_moments);
  message.set_spec_fingerprint(order.spec_fingerprint);
  message.set_creates(order.creates);
  *message.mutable_timeout() = DurationToProto(order.timeout);
  message.set_rollback_why(order.rollback_why);
  message.set_was_asked_for(order.was_asked_for);
  return message;
}

RestoreOrder OrderOf(const v1::RestoreOrder& message) {
  return {.id = IdOf(message.id()),
          .folder = message.folder(),
          .save_id = IdOf(message.save_id()),
          .convert_moments = message.convert_moments(),
          .spec_fingerprint = message.spec_fingerprint(),
          .creates = message.creates(),
          .timeout = DurationFromProto(message.timeout()),
          .rollback_why = message.rollback_why(),
          .was_asked_for = message.was_asked_for()};
}

v1::RestoreSums SumsMessage(const RestoreSums& sums) {
  v1::RestoreSums message;
  *message.mutable_id() = IdMessage(sums.id);
  for (const RestoreSums::Tensor& tensor : sums.tensors) {
    v1::TensorSum& sum = *message.add_tensors();
    sum.set_key(tensor.key);
    *sum.mutable_sum() = IdMessage(tensor.sum);
    sum.set_rows(tensor.rows);
  }
  return message;
}

RestoreSums SumsOf(const v1::RestoreSums& message) {
  RestoreSums sums{.id = IdOf(message.id())};
  for (const v1::TensorSum& sum : message.tensors()) {
    sums.tensors.push_back({.key = sum.key(), .sum = IdOf(sum.sum()), .rows = sum.rows()});
  }
  return sums;
}

// Numbers of the wire begin with the unspecified value.
v1::RestorePhase PhaseMessage(RestorePhase phase) { return static_cast<v1::RestorePhase>(static_cast<int>(phase) + 1); }
static_assert(static_cast<int>(RestorePhase::kReady) + 1 == v1::RESTORE_PHASE_READY);
static_assert(static_cast<int>(RestorePhase::kDone) + 1 == v1::RESTORE_PHASE_DONE);

// Returns nothing for a phase that no node reports.
std::optional<RestorePhase> PhaseOf(v1::RestorePhase message) {
  if (message < v1::RESTORE_PHASE_READY || message > v1::RESTORE_PHASE_DONE) return std::nullopt;
  return static_cast<RestorePhase>(static_cast<int>(message) - 1);
}

std::optional<RestoreReport> ReportOf(const v1::RestoreReport& message) {
  const std::optional<RestorePhase> phase = PhaseOf(message.phase());
  if (!phase.has_value()) return std::nullopt;
  RestoreReport report{.id = IdOf(message.id()), .phase = *phase};
  if (message.has_error()) report.status = ReasonFromProto(message.error());
  return report;
}

// Puts each kind of news into its message.
struct RestoreWriter {
  v1::RestoreNews& message;

  void operator()(const RestoreOrder& order) const { *message.mutable_order() = OrderMessage(order); }
  void operator()(const RestoreGo& go) const { *message.mutable_go()->mutable_id() = IdMessage(go.id); }
  void operator()(const RestorePartProgress& progress) const {
    v1::RestorePartProgress& told = *message.mutable_progress();
    *told.mutable_id() = IdMessage(progress.id);
    told.set_done_bytes(progress.done_bytes);
    told.set_all_bytes(progress.all_bytes);
  }
  void operator()(const RestoreSums& sums) const { *message.mutable_sums() = SumsMessage(sums); }
  void operator()(const RestoreReport& report) const {
    v1::RestoreReport& told = *message.mutable_report();
    *told.mutable_id() = IdMessage(report.id);
    told.set_phase(PhaseMessage(report.phase));
    if (!report.status.ok()) *told.mutable_error() = StatusToProto(report.status);
  }
  void operator()(const RestoreEnd& end) const {
    v1::RestoreEnd& ended = *message.mutable_end();
    *ended.mutable_id() = IdMessage(end.id);
    if (!end.status.ok()) *ended.mutable_error() = StatusToProto(end.status);
  }
  void operator()(const RestoreWish& wish) const {
    v1::RestoreWish& told = *message.mutable_wish();
    *told.mutable_id() = IdMessage(wish.id);
    told.set_withdrawn(wish.withdrawn);
  }
  void operator()(const RestoreAnswer& answer) const {
    v1::RestoreAnswer& answered = *message.mutable_answer();
    *answered.mutable_id() = IdMessage(answer.id);
    if (!answer.status.ok()) *answered.mutable_error() = StatusToProto(answer.status);
    answered.set_heals(answer.heals);
  }
  void operator()(const RestoreLeaderLost&) const {}
  void operator()(const RestoreFollowerLost&) const {}
  void operator()(const RollbackNeed&) const {}
  void operator()(const RollbackEnd&) const {}
};

}  // namespace

v1::JoinRequest HelloMessage(int node, int nodes, int device_count, const WorldTerms& terms) {
  v1::JoinRequest request;
  v1::Hello& hello = *request.mutable_hello();
  hello.set_protocol_version(kClusterProtocolVersion);
  hello.set_node(node);
  hello.set_nodes(nodes);
  hello.set_device_count(device_count);
  hello.set_world(terms.world);
  hello.set_save_dir(terms.save_dir);
  hello.set_engine_library(terms.engine_library);
  hello.set_build(kVersion);
  return request;
}

void SetConnection(v1::JoinRequest& hello, absl::uint128 incarnation, int64_t connection, bool goes_on) {
  *hello.mutable_hello()->mutable_incarnation() = IdMessage(incarnation);
  hello.mutable_hello()->set_connection(connection);
  hello.mutable_hello()->set_goes_on(goes_on);
}

absl::uint128 IncarnationOf(const v1::Hello& hello) { return IdOf(hello.incarnation()); }

v1::JoinRequest NodeMovedMessage(int64_t connection) {
  v1::JoinRequest request;
  request.mutable_moved()->set_connection(connection);
  return request;
}

v1::JoinResponse MovedMessage(int64_t connection) {
  v1::JoinResponse response;
  response.mutable_moved()->set_connection(connection);
  return response;
}

v1::JoinResponse ProbeMessage() {
  v1::JoinResponse response;
  response.mutable_probe();
  return response;
}

v1::JoinRequest ProbeAnswerMessage() {
  v1::JoinRequest request;
  request.mutable_probe_answer();
  return request;
}

v1::JoinRequest ReportMessage(const ModelReport& report) {
  v1::JoinRequest request;
  v1::ModelReport& message = *request.mutable_report();
  message.set_model(report.model);
  message.set_spec_fingerprint(report.spec_fingerprint);
  message.set_commit_number(report.commit_number);
  message.set_version(report.version);
  message.set_shard_size(report.shard_size);
  message.set_history_id(report.history_id);
  message.set_lineage(report.lineage);
  message.set_untouched(report.untouched);
  message.set_fresh(report.fresh);
  message.set_keeps_previous(report.keeps_previous);
  if (report.previous.has_value()) message.set_previous_node(*report.previous);
  message.set_needs_every_node(report.needs_every_node);
  message.set_last_epoch(report.last_epoch);
  for (int rank : report.attached_ranks) message.add_attached_ranks(rank);
  if (!report.lost.ok()) *message.mutable_lost() = StatusToProto(report.lost);
  return request;
}

v1::JoinRequest DepartureMessage(absl::string_view model, int64_t epoch, const absl::Status& why,
                                 const std::vector<BadLink>& links) {
  v1::JoinRequest request;
  v1::Departure& departure = *request.mutable_departure();
  departure.set_model(std::string(model));
  departure.set_epoch(epoch);
  *departure.mutable_why() = StatusToProto(why);
  for (const BadLink& link : links) {
    v1::BadLink& bad = *departure.add_bad_links();
    bad.set_peer(link.peer);
    bad.set_address(link.address);
    bad.set_peer_address(link.peer_address);
  }
  return request;
}

std::vector<BadLink> BadLinksOf(const v1::Departure& departure) {
  std::vector<BadLink> links;
  for (const v1::BadLink& bad : departure.bad_links()) {
    links.push_back({.peer = bad.peer(), .address = bad.address(), .peer_address = bad.peer_address()});
  }
  return links;
}

v1::JoinRequest DeletionMessage(absl::string_view model) {
  v1::JoinRequest request;
  request.mutable_deletion()->set_model(std::string(model));
  return request;
}

v1::JoinRequest CommandsMessage(absl::string_view model, int64_t epoch, const std::vector<CommandInWords>& commands) {
  v1::JoinRequest request;
  v1::CommandReports& reports = *request.mutable_commands();
  reports.set_model(std::string(model));
  reports.set_epoch(epoch);
  for (const CommandInWords& command : commands) {
    v1::CommandInWords& message = *reports.add_commands();
    message.set_number(command.number);
    message.set_rank(command.rank);
    message.set_text(command.text);
  }
  return request;
}

v1::JoinRequest DetachedMessage(absl::string_view model, int64_t epoch, int rank, int64_t command_count,
                                const absl::Status& why) {
  v1::JoinRequest request;
  v1::RankDetached& detached = *request.mutable_detached();
  detached.set_model(std::string(model));
  detached.set_epoch(epoch);
  detached.set_rank(rank);
  detached.set_command_count(command_count);
  *detached.mutable_why() = StatusToProto(why);
  return request;
}

v1::JoinRequest CarriedOutMessage(absl::string_view model, int64_t epoch, int64_t command, bool more) {
  v1::JoinRequest request;
  v1::CommandsCarriedOut& done = *request.mutable_carried_out();
  done.set_model(std::string(model));
  done.set_epoch(epoch);
  done.set_command(command);
  done.set_more(more);
  return request;
}

v1::JoinRequest WorldQuestionMessage() {
  v1::JoinRequest request;
  request.mutable_world_question();
  return request;
}

v1::JoinResponse WelcomeMessage(int nodes, const std::vector<int>& device_counts) {
  v1::JoinResponse response;
  v1::Welcome& welcome = *response.mutable_welcome();
  welcome.set_nodes(nodes);
  for (int count : device_counts) welcome.add_device_counts(count);
  return response;
}

v1::JoinResponse EpochStartMessage(const std::string& model, const EpochStart& start) {
  v1::JoinResponse response;
  v1::EpochStart& message = *response.mutable_start();
  message.set_model(model);
  message.set_epoch(start.epoch);
  message.set_lineage(start.lineage);
  message.set_history_id(start.history_id);
  for (const int node : start.active) message.add_active_nodes(node);
  for (const Healing& healing : start.healings) {
    v1::Healing& added = *message.add_healings();
    added.set_receiver(healing.receiver);
    added.set_donor(healing.donor);
    if (!healing.gives_up.has_value()) continue;
    added.mutable_gives_up()->set_history_id(healing.gives_up->history_id);
    added.mutable_gives_up()->set_commit_number(healing.gives_up->commit_number);
  }
  if (start.fork.has_value()) {
    message.mutable_fork()->set_history_id(start.fork->history_id);
    message.mutable_fork()->set_lineage(start.fork->lineage);
    message.mutable_fork()->set_commit_number(start.fork->commit_number);
  }
  return response;
}

v1::JoinResponse LastCommandMessage(const std::string& model, int64_t epoch, int64_t command) {
  v1::JoinResponse response;
  v1::LastCommand& last = *response.mutable_last_command();
  last.set_model(model);
  last.set_epoch(epoch);
  last.set_command(command);
  return response;
}

v1::JoinResponse CommandsWantedMessage(const std::string& model, int64_t epoch, const CommandsThrough& unless) {
  v1::JoinResponse response;
  v1::CommandsWanted& wanted = *response.mutable_commands_wanted();
  wanted.set_model(model);
  wanted.set_epoch(epoch);
  *wanted.mutable_unless() = CommandsThroughMessage(unless);
  return response;
}

v1::JoinResponse EpochEndMessage(const std::string& model, int64_t epoch, const absl::Status& why) {
  v1::JoinResponse response;
  v1::EpochEnd& end = *response.mutable_end();
  end.set_model(model);
  end.set_epoch(epoch);
  *end.mutable_why() = StatusToProto(why);
  return response;
}

v1::JoinResponse EpochRefusalMessage(const std::string& model, const absl::Status& why) {
  v1::JoinResponse response;
  v1::EpochRefusal& refusal = *response.mutable_refusal();
  refusal.set_model(model);
  *refusal.mutable_why() = StatusToProto(why);
  return response;
}

v1::SaveNews SaveMessage(const SaveNews& news) {
  v1::SaveNews message;
  message.set_model(news.model);
  std::visit(SaveWriter{message}, news.what);
  return message;
}

std::optional<SaveNews> SaveNewsOf(const v1::SaveNews& message) {
  SaveNews news{.model = message.model(), .what = SaveWish()};
  switch (message.what_case()) {
    case v1::SaveNews::kOrder:
      news.what = OrderOf(message.order());
      break;
    case v1::SaveNews::kPermission:
      news.what = SavePermission{.id = IdOf(message.permission().id())};
      break;
    case v1::SaveNews::kPart: {
      SavePart part{.id = IdOf(message.part().id()), .hash = IdOf(message.part().hash())};
      if (message.part().has_error()) part.status = ReasonFromProto(message.part().error());
      news.what = part;
      break;
    }
    case v1::SaveNews::kEnd: {
      const v1::SaveEnd& ended = message.end();
      SaveEnd end{.id = IdOf(ended.id()),
                  .state = StateOf(ended.state()),
                  .path = ended.path(),
                  .size_bytes = ended.size_bytes()};
      if (ended.has_error()) end.why = ReasonFromProto(ended.error());
      news.what = end;
      break;
    }
    case v1::SaveNews::kWish:
      break;
    case v1::SaveNews::WHAT_NOT_SET:
      return std::nullopt;
  }
  return news;
}

v1::RestoreNews RestoreMessage(const RestoreNews& news) {
  v1::RestoreNews message;
  message.set_model(news.model);
  std::visit(RestoreWriter{message}, news.what);
  return message;
}

std::optional<RestoreNews> RestoreNewsOf(const v1::RestoreNews& message) {
  RestoreNews news{.model = message.model(), .what = RestoreWish()};
  switch (message.what_case()) {
    case v1::RestoreNews::kOrder:
      news.what = OrderOf(message.order());
      break;
    case v1::RestoreNews::kGo:
      news.what = RestoreGo{.id = IdOf(message.go().id())};
      break;
    case v1::RestoreNews::kProgress:
      news.what = RestorePartProgress{.id = IdOf(message.progress().id()),
                                      .done_bytes = message.progress().done_bytes(),
                                      .all_bytes = message.progress().all_bytes()};
      break;
    case v1::RestoreNews::kSums:
      news.what = SumsOf(message.sums());
      break;
    case v1::RestoreNews::kReport: {
      const std::optional<RestoreReport> report = ReportOf(message.report());
      if (!report.has_value()) return std::nullopt;
      news.what = *report;
      break;
    }
    case v1::RestoreNews::kEnd: {
      RestoreEnd end{.id = IdOf(message.end().id())};
      if (message.end().has_error()) end.status = ReasonFromProto(message.end().error());
      news.what = end;
      break;
    }
    case v1::RestoreNews::kWish:
      news.what = RestoreWish{.id = IdOf(message.wish().id()), .withdrawn = message.wish().withdrawn()};
      break;
    case v1::RestoreNews::kAnswer: {
      RestoreAnswer answer{.id = IdOf(message.answer().id()), .heals = message.answer().heals()};
      if (message.answer().has_error()) answer.status = ReasonFromProto(message.answer().error());
      news.what = answer;
      break;
    }
    case v1::RestoreNews::WHAT_NOT_SET:
      return std::nullopt;
  }
  return news;
}

v1::VoteRequest VoteMessage(int node, const CommitVote& vote, absl::Duration timeout) {
  v1::VoteRequest request;
  request.set_model(vote.model);
  request.set_history_id(vote.history_id);
  request.set_epoch(vote.epoch);
  request.set_commit_number(vote.commit_number);
  request.set_node(node);
  *request.mutable_commands() = CommandsThroughMessage(vote.commands);
  for (const RankSum& sum : vote.sums) {
    v1::RankSum& message = *request.add_sums();
    message.set_rank(sum.rank);
    message.set_square_sum(sum.square_sum);
    message.set_non_finite_count(sum.non_finite_count);
  }
  request.mutable_client_states()->Assign(vote.client_states.begin(), vote.client_states.end());
  *request.mutable_timeout() = DurationToProto(timeout);
  return request;
}

v1::QueryCommitRequest QueryMessage(int node, const CommitQuery& query) {
  v1::QueryCommitRequest request;
  request.set_model(query.model);
  request.set_history_id(query.history_id);
  request.set_epoch(query.epoch);
  request.set_commit_number(query.commit_number);
  request.set_node(node);
  return request;
}

v1::CommitDecision DecisionMessage(const CommitDecision& decision) {
  v1::CommitDecision message;
  message.set_apply(decision.apply);
  message.set_square_sum(decision.square_sum);
  message.set_non_finite_count(decision.non_finite_count);
  if (decision.save.has_value()) *message.mutable_save() = OrderMessage(*decision.save);
  if (const auto& states = decision.previous_client_states; states.has_value()) {
    message.mutable_previous_client_states()->mutable_states()->Assign(states->begin(), states->end());
  }
  return message;
}

CommandsThrough CommandsThroughOf(const v1::CommandsThrough& message) {
  return {.number = message.number(), .hash = IdOf(message.hash())};
}

std::vector<CommandInWords> CommandsOf(const v1::CommandReports& message) {
  std::vector<CommandInWords> commands;
  for (const v1::CommandInWords& command : message.commands()) {
    commands.push_back({.number = command.number(), .rank = command.rank(), .text = command.text()});
  }
  return commands;
}

EpochStart EpochStartOf(const v1::EpochStart& message) {
  EpochStart start{.epoch = message.epoch(), .lineage = message.lineage(), .history_id = message.history_id()};
  start.active.assign(message.active_nodes().begin(), message.active_nodes().end());
  for (const v1::Healing& healing : message.healings()) {
    Healing& added = start.healings.emplace_back(Healing{.receiver = healing.receiver(), .donor = healing.donor()});
    if (!healing.has_gives_up()) continue;
    added.gives_up = {.history_id = healing.gives_up().history_id(),
                      .commit_number = healing.gives_up().commit_number()};
  }
  if (message.has_fork()) {
    start.fork = {.history_id = message.fork().history_id(),
                  .lineage = message.fork().lineage(),
                  .commit_number = message.fork().commit_number()};
  }
  return start;
}

ModelReport ReportOf(const v1::ModelReport& message) {
  ModelReport report;
  report.model = message.model();
  report.spec_fingerprint = message.spec_fingerprint();
  report.commit_number = message.commit_number();
  report.version = message.version();
  report.shard_size = message.shard_size();
  report.history_id = message.history_id();
  report.lineage = message.lineage();
  report.untouched = message.untouched();
  report.fresh = message.fresh();
  report.keeps_previous = message.keeps_previous();
  if (message.has_previous_node()) report.previous = message.previous_node();
  report.needs_every_node = message.needs_every_node();
  report.last_epoch = message.last_epoch();
  report.attached_ranks.assign(message.attached_ranks().begin(), message.attached_ranks().end());
  if (message.has_lost()) report.lost = ReasonFromProto(message.lost());
  return report;
}

CommitVote VoteOf(const v1::VoteRequest& message) {
  CommitVote vote;
  vote.model = message.model();
  vote.history_id = message.history_id();
  vote.epoch = message.epoch();
  vote.commit_number = message.commit_number();
  vote.commands = CommandsThroughOf(message.commands());
  for (const v1::RankSum& sum : message.sums()) {
    vote.sums.push_back({sum.rank(), sum.square_sum(), sum.non_finite_count()});
  }
  vote.client_states.assign(message.client_states().begin(), message.client_states().end());
  return vote;
}

CommitQuery QueryOf(const v1::QueryCommitRequest& message) {
  return {.model = message.model(),
          .history_id = message.history_id(),
          .epoch = message.epoch(),
          .commit_number = message.commit_number()};
}

CommitDecision DecisionOf(const v1::CommitDecision& message) {
  CommitDecision decision{message.apply(), message.square_sum(), message.non_finite_count()};
  if (message.has_save()) decision.save = OrderOf(message.save());
  if (message.has_previous_client_states()) {
    const auto& states = message.previous_client_states().states();
    decision.previous_client_states.emplace(states.begin(), states.end());
  }
  return decision;
}

grpc::Status ToGrpcStatus(const absl::Status& status) {
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), std::string(status.message()));
}

absl::Status FromGrpcStatus(const grpc::Status& status) {
  return status.ok() ? absl::OkStatus() : Reason(status.error_code(), status.error_message());
}

}  // namespace paramshard::server
