// The state of a model on this daemon: all that commits change, and the gates at which they wait for copies of it and
// for readers.
#ifndef PARAMSHARD_SERVER_STATE_COMMITTED_STATE_H_
#define PARAMSHARD_SERVER_STATE_COMMITTED_STATE_H_

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/model/model_spec.h"
#include "server/base/clock.h"
#include "server/state/copy_gate.h"
#include "server/state/publication.h"
#include "server/state/scaling_book.h"
#include "server/state/shard.h"
#include "server/terms/commit_log.h"

namespace paramshard::server {

// Each part says itself how it is shared between threads. Shards are added while the model is opened, and stay.
struct CommittedState {
  CommittedState(const ModelSpec& spec, int ranks, const Clock* clock, std::shared_ptr<Publication> publication)
      : publication(std::move(publication)), book(spec), commits(ranks), copies(ranks, clock) {}

  // Encodes the planes of new masters. What other daemons hold is learnt when an epoch starts. Amaxes in `scaling` take
  // precedence over measured ones. `check_cancelled`: see ShardArithmetic.
  absl::Status Encode(absl::Span<const ScalingBook::Record> scaling,
                      Shard::CancelCheck check_cancelled = ShardArithmetic::NeverCancelled);
  // Encodes the planes of an adopted state, with what the book says.
  absl::Status EncodeAdopted() const;
  // Returns the steps that parameters have taken, by their place in the model.
  std::vector<int64_t> Steps(int64_t parameters) const;
  // Returns the host memory of Shard::KeepPlanes.
  int64_t plane_copy_bytes() const;

  const std::shared_ptr<Publication> publication;  // of the shards' planes
  std::vector<std::unique_ptr<Shard>> shards;      // of the daemon's ranks, in order
  ScalingBook book;
  CommitLog commits;
  CopyGate copies;
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_STATE_COMMITTED_STATE_H_
