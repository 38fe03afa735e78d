// Messages between the coordinator and the nodes of a world, besides votes and values. A new one is a message of
// proto/paramshard/v1/cluster.proto, a struct with its Fields here, and a case in Coordinator::Step or in the switch of
// the node (ModelStore::Hear).
#ifndef PARAMSHARD_SERVER_TERMS_NODE_MESSAGES_H_
#define PARAMSHARD_SERVER_TERMS_NODE_MESSAGES_H_

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/numeric/int128.h"
#include "absl/status/status.h"
#include "server/terms/restore_message.h"
#include "server/terms/save_message.h"
#include "server/terms/wire_fields.h"

namespace paramshard::server {

// --- From a node ---

// One daemon's part of a model.
struct ModelReport {
  std::string model;
  uint64_t spec_fingerprint = 0;
  int64_t commit_number = 0;
  int64_t version = 0;
  std::string lineage;              // origin of the state that the numbers count from; equal on nodes that began alike
  std::string history_id;           // of this beginning
  bool untouched = false;           // there was no commit since
  bool fresh = false;               // it has its initial values, unchanged since the creation
  int64_t last_epoch = 0;           // of the model on this node, in any process: the next epoch's number is greater
  int shard_size = 0;               // ranks of one shard group; sums of the first group make the norm
  std::vector<int> attached_ranks;  // of the world, served by this daemon, with a trainer that waits for an epoch
  // True if daemons hold replicas and the node has another node's client states of this commit number.
  bool keeps_previous = false;
  // The other node: PreviousNode (healing_plan.h) in the commit's epoch. Unset: any, because no rank has sent a state.
  std::optional<int> previous = {};
  // True if no epoch may have fewer replicas, because gradients of all of them are summed, not averaged.
  bool needs_every_node = false;
  // Why this node has lost its state. If set, only the spec, the attached ranks and the last epoch are meaningful.
  absl::Status lost = {};
};
void Fields(ConstOr<ModelReport> auto& m, const auto& f) {
  f("model", m.model)("spec_fingerprint", m.spec_fingerprint)("commit_number", m.commit_number)("version", m.version)(
      "lineage", m.lineage)("history_id", m.history_id)("untouched", m.untouched)("fresh", m.fresh)(
      "last_epoch", m.last_epoch)("shard_size", m.shard_size)("attached_ranks", m.attached_ranks)(
      "keeps_previous", m.keeps_previous)("previous_node", m.previous)("needs_every_node", m.needs_every_node)("lost",
                                                                                                               m.lost);
}

// The model is deleted on this node.
struct ModelDeleted {
  std::string model = {};
};
void Fields(ConstOr<ModelDeleted> auto& m, const auto& f) { f("model", m.model); }

// A failed connection of this daemon to another one, although both reach node 0.
struct BadLink {
  int peer = 0;                   // the other node
  std::string address = {};       // of this daemon, in the data network
  std::string peer_address = {};  // of the other node
};
void Fields(ConstOr<BadLink> auto& m, const auto& f) {
  f("peer", m.peer)("address", m.address)("peer_address", m.peer_address);
}

// A local event ends the epoch. With bad links, each of which was tried, the coordinator waits a moment for the reports
// of others, and then leaves out some of their nodes if it may (Cluster::Send).
struct EndEpoch {
  std::string model = {};
  int64_t epoch = 0;
  absl::Status why = {};
  std::vector<BadLink> bad_links = {};
};
void Fields(ConstOr<EndEpoch> auto& m, const auto& f) {
  f("model", m.model)("epoch", m.epoch)("why", m.why)("bad_links", m.bad_links);
}

// All commands of an epoch up to `number`, which every rank of a node has sent. Equal if the commands are the same,
// apart from client states.
struct CommandsThrough {
  int64_t number = 0;  // of the last one; 0: none
  absl::uint128 hash = 0;

  friend bool operator==(const CommandsThrough& a, const CommandsThrough& b) {
    return a.number == b.number && a.hash == b.hash;
  }
};
void Fields(ConstOr<CommandsThrough> auto& m, const auto& f) { f("number", m.number)("hash", m.hash); }

// One command in words. Texts are equal if commands are, apart from the client state.
struct CommandInWords {
  int64_t number = 0;
  int rank = 0;  // of the world, the first sender
  std::string text = {};
};
void Fields(ConstOr<CommandInWords> auto& m, const auto& f) { f("number", m.number)("rank", m.rank)("text", m.text); }

// Answer to CommandsWanted: the latest commands that all ranks of the node have sent, in order.
struct CommandReports {
  std::string model = {};
  int64_t epoch = 0;
  std::vector<CommandInWords> commands = {};
};
void Fields(ConstOr<CommandReports> auto& m, const auto& f) {
  f("model", m.model)("epoch", m.epoch)("commands", m.commands);
}

// A rank of this node sends no command after its `command_count`-th, and nothing needs its trainer any more. In a world
// of one daemon commands count here that end a step: commits and discards.
struct RankDetached {
  std::string model = {};
  int64_t epoch = 0;
  int rank = 0;  // of the world
  int64_t command_count = 0;
  absl::Status why = {};
};
void Fields(ConstOr<RankDetached> auto& m, const auto& f) {
  f("model", m.model)("epoch", m.epoch)("rank", m.rank)("command_count", m.command_count)("why", m.why);
}

// The node has carried out and answered all commands up to this one. Sent again when `more` changes.
struct CommandsCarriedOut {
  std::string model = {};
  int64_t epoch = 0;
  int64_t command = 0;
  bool more = false;  // a rank of the node has sent a later one
};
void Fields(ConstOr<CommandsCarriedOut> auto& m, const auto& f) {
  f("model", m.model)("epoch", m.epoch)("command", m.command)("more", m.more);
}

// The node has timed out waiting for others, and asks which are missing. The answer is Welcome.
struct WorldQuestion {};
void Fields(ConstOr<WorldQuestion> auto&, const auto&) {}

using FromNode = std::variant<ModelReport, ModelDeleted, EndEpoch, CommandReports, RankDetached, CommandsCarriedOut,
                              SaveMessage, RestoreMessage, WorldQuestion>;

template <>
inline constexpr CaseNames<FromNode> kCaseNames<FromNode> = {
    "report", "deletion", "departure", "commands", "detached", "carried_out", "save", "restore", "world_question"};

// --- To a node ---

// The node has joined a world of `nodes`. Comes again when the last node has joined, with the devices of every node;
// only in an answer to WorldQuestion these may be 0, for nodes that have not joined.
struct Welcome {
  int nodes = 0;
  std::vector<int> device_counts = {};
};
void Fields(ConstOr<Welcome> auto& m, const auto& f) { f("nodes", m.nodes)("device_counts", m.device_counts); }

// Transfer of a state at the start of an epoch, from a node that holds a replica to one that needs it.
struct Healing {
  // State of the receiver that it gives up, from which the others have not gone on.
  struct GivenUp {
    std::string history_id = {};
    int64_t commit_number = 0;
    friend bool operator==(const GivenUp&, const GivenUp&) = default;
  };

  int receiver = 0;
  int donor = 0;
  // Set if a person has ordered it (OrderHealing). A receiver that has another state by now ends the epoch.
  std::optional<GivenUp> gives_up = {};
  friend bool operator==(const Healing&, const Healing&) = default;
};
void Fields(ConstOr<Healing::GivenUp> auto& m, const auto& f) {
  f("history_id", m.history_id)("commit_number", m.commit_number);
}
void Fields(ConstOr<Healing> auto& m, const auto& f) {
  f("receiver", m.receiver)("donor", m.donor)("gives_up", m.gives_up);
}

// The state from which a history goes on that begins with an epoch.
struct HistoryFork {
  std::string history_id = {};
  std::string lineage = {};
  int64_t commit_number = 0;
};
void Fields(ConstOr<HistoryFork> auto& m, const auto& f) {
  f("history_id", m.history_id)("lineage", m.lineage)("commit_number", m.commit_number);
}

// Start of an epoch, the same for all nodes. A node that was untouched takes over the history id.
struct EpochStart {
  std::string model = {};
  int64_t epoch = 0;
  std::string lineage = {};
  std::string history_id = {};
  std::vector<int> active = {};        // the nodes that take part, ascending
  std::vector<Healing> healings = {};  // made first; no donor is a receiver
  // Set if the history begins with this epoch, from the state of the nodes that are not healed. Its lineage is its id.
  std::optional<HistoryFork> fork = {};
};
void Fields(ConstOr<EpochStart> auto& m, const auto& f) {
  f("model", m.model)("epoch", m.epoch)("lineage", m.lineage)("history_id", m.history_id)("active_nodes", m.active)(
      "healings", m.healings)("fork", m.fork);
}

// Some rank of the world sends no command after this one. Comes again if an earlier one becomes the last. The node
// answers with CommandsCarriedOut.
struct LastCommand {
  std::string model = {};
  int64_t epoch = 0;
  int64_t command = 0;
};
void Fields(ConstOr<LastCommand> auto& m, const auto& f) {
  f("model", m.model)("epoch", m.epoch)("command", m.command);
}

// Nodes may have sent different commands. The node answers with CommandReports; if `unless` has a number, only if it
// has sent that command too with another hash.
struct CommandsWanted {
  std::string model = {};
  int64_t epoch = 0;
  CommandsThrough unless = {};
};
void Fields(ConstOr<CommandsWanted> auto& m, const auto& f) {
  f("model", m.model)("epoch", m.epoch)("unless", m.unless);
}

struct EpochEnded {
  std::string model = {};
  int64_t epoch = 0;
  absl::Status why = {};
};
void Fields(ConstOr<EpochEnded> auto& m, const auto& f) { f("model", m.model)("epoch", m.epoch)("why", m.why); }

// No epoch starts although all ranks are attached: nodes hold different specs or states.
struct EpochRefused {
  std::string model = {};
  absl::Status why = {};
};
void Fields(ConstOr<EpochRefused> auto& m, const auto& f) { f("model", m.model)("why", m.why); }

// The last message on this connection: the node hears the rest on another one.
struct Moved {
  int64_t connection = 0;
};
void Fields(ConstOr<Moved> auto& m, const auto& f) { f("connection", m.connection); }

// Asks the process whether it lives, because another one claims its node number.
struct Probe {};
void Fields(ConstOr<Probe> auto&, const auto&) {}

using ToNode = std::variant<Welcome, EpochStart, LastCommand, CommandsWanted, EpochEnded, EpochRefused, SaveMessage,
                            RestoreMessage, Moved, Probe>;

template <>
inline constexpr CaseNames<ToNode> kCaseNames<ToNode> = {
    "welcome", "start", "last_command", "commands_wanted", "end", "refusal", "save", "restore", "moved", "probe"};

// Makes one overloaded function of lambdas: std::visit refuses a message that none of them takes.
template <typename... Cases>
struct Overloaded : Cases... {
  using Cases::operator()...;
};
template <typename... Cases>
Overloaded(Cases...) -> Overloaded<Cases...>;

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_TERMS_NODE_MESSAGES_H_
