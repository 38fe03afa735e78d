// The part of a model's state that is not in tensors, as one daemon sends it to another that lost its state.
#ifndef PARAMSHARD_SERVER_STATE_REPLICA_STATE_H_
#define PARAMSHARD_SERVER_STATE_REPLICA_STATE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/state/scaling_book.h"
#include "server/terms/commit_log.h"
#include "server/terms/history.h"

namespace paramshard::server {

struct ReplicaState {
  History history;
  int64_t history_begin = 0;   // the commit number with which the history began
  CommitLog::State commits;    // client states of the receiver's ranks
  std::vector<int64_t> steps;  // of every parameter, units in order
  std::vector<ScalingBook::Record> scaling = {};
};

// Returns the client states of a node's ranks as a serialized v1::ClientStates, which another node keeps.
std::string SerializeClientStates(const std::vector<std::string>& states);
// Does the inverse. INTERNAL if the number of states is not `ranks`, or a state is longer than clients may send.
absl::StatusOr<std::vector<std::string>> ParseClientStates(absl::string_view bytes, int ranks);

// Returns a serialized v1::ReplicaState.
std::string SerializeReplicaState(const ReplicaState& state);
// Does the inverse. DATA_LOSS if the bytes do not fit a model of `parameters` and a daemon of `ranks`, or contradict
// themselves.
absl::StatusOr<ReplicaState> ParseReplicaState(absl::string_view bytes, int64_t parameters, int ranks);

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_STATE_REPLICA_STATE_H_
