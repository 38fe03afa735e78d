// Engines of an epoch: their connection, the watch over their links, and their end.
#ifndef PARAMSHARD_SERVER_TRAINING_EPOCH_ENGINES_H_
#define PARAMSHARD_SERVER_TRAINING_EPOCH_ENGINES_H_

#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "server/data_plane/collectives.h"
#include "server/data_plane/link_check.h"
#include "server/data_plane/topology.h"
#include "server/terms/cluster.h"
#include "server/training/epoch_host.h"
#include "server/training/epoch_state.h"

namespace paramshard::server {

// Connect comes first, and Clear last; threads of the epoch use the engines in between. Only calls that say so are
// thread-safe.
class EpochEngines {
 public:
  // The references in `context`, `state` and `topology` outlive this.
  EpochEngines(const EpochContext& context, EpochState& state, const Topology& topology);

  // Connects one engine for each rank. From then on a bad link ends the epoch. Errors of ConnectEngines; the epoch's
  // end.
  absl::Status Connect(const EpochStart& start);
  // Aborts the engines' calls in progress. Thread-safe.
  void Abort(const absl::Status& why) ABSL_LOCKS_EXCLUDED(mu_);
  // Waits for the watch over the links, which ends with the epoch.
  void JoinWatch();
  // Destroys the engines, and waits for their streams.
  void Clear();

  Collectives& of(int rank) const { return *engines_[rank]; }
  absl::Span<const std::unique_ptr<Collectives>> all() const { return engines_; }
  // Null where no engine needs one.
  Rendezvous* rendezvous() const { return rendezvous_.get(); }
  // Shares the amaxes of the commit `command_number` with all daemons; 0 is the start.
  absl::Status ShareAmaxes(int64_t command_number);
  // Returns the links that were found bad.
  std::vector<BadLink> bad_links() const { return links_.bad(); }

  // Thread-safe. Empty and 0 without engines.
  std::string name() const ABSL_LOCKS_EXCLUDED(mu_);
  int64_t scratch_bytes(int rank) const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  // Probes the links to other daemons now and then until the epoch ends; ends it when a link is bad.
  void WatchLinks();

  const EpochContext context_;
  EpochState& state_;
  const Topology& topology_;
  std::unique_ptr<Rendezvous> rendezvous_;
  Links links_;
  std::thread watch_;  // from before engines connect until the epoch has ended; none without other daemons

  // Not held while an engine works; keeps a thread that ends the epoch from finding an engine that is being destroyed.
  mutable absl::Mutex mu_;
  std::vector<std::unique_ptr<Collectives>> engines_;  // changed under mu_ while no other thread runs
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_TRAINING_EPOCH_ENGINES_H_
