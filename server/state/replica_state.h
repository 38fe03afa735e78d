// All of a model's state that is not in tensors, as one daemon gives it to another that has lost its own.
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
  int64_t history_begin = 0;   // the commit number that it began with
  CommitLog::State commits;    // client states of the receiver's ranks
  std::vector<int64_t> steps;  // of every parameter, units in order
  std::vector<ScalingBook::Record> scaling = {};
};

// Client states of a node's ranks, as another node keeps them: the bytes of a v1::ClientStates.
std::string SerializeClientStates(const std::vector<std::string>& states);
// Does the inverse. INTERNAL unless they are of so many ranks, and no longer than clients may send.
absl::StatusOr<std::vector<std::string>> ParseClientStates(absl::string_view bytes, int ranks);

// The bytes of a v1::ReplicaState.
std::string SerializeReplicaState(const ReplicaState& state);
// Does the inverse. DATA_LOSS unless the bytes are of a model with so many parameters, in a daemon with so many ranks,
// and their numbers fit together.
absl::StatusOr<ReplicaState> ParseReplicaState(absl::string_view bytes, int64_t parameters, int ranks);

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_STATE_REPLICA_STATE_H_
