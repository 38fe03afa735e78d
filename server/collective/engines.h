// Chooses and connects the engines of an epoch.
#ifndef PARAMSHARD_SERVER_COLLECTIVE_ENGINES_H_
#define PARAMSHARD_SERVER_COLLECTIVE_ENGINES_H_

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "proto/model/layout.h"
#include "proto/model/model_spec.h"
#include "server/collective/collectives.h"
#include "server/collective/connect_abort.h"
#include "server/collective/link_check.h"
#include "server/collective/topology.h"
#include "server/device/device.h"
#include "server/metrics/metric_registry.h"
#include "server/terms/cluster.h"

namespace paramshard::server {

// The part of the daemon's configuration that concerns engines.
struct EngineSettings {
  // Inside a daemon too bytes move as they do between daemons, by Gloo or NCCL.
  bool mesh_inside = false;
  std::string nccl_library = {};           // path; empty: where the dynamic linker finds it. For meshes of GPUs
  std::string nccl_psk_file = {};          // path; empty: what NCCL sends is not encrypted
  std::string data_address = "127.0.0.1";  // IP of this host, for connections between daemons
  // At that address; null: daemons do not try whether they reach each other.
  std::shared_ptr<const LinkListener> link_listener = nullptr;
};

struct EngineSpec {
  const ModelSpec* model = nullptr;  // outlives the engines
  const Layout* layout = nullptr;    // outlives the engines
  const Topology* topology = nullptr;
  std::vector<RankMemory> memory;    // of this daemon's ranks, in device order
  Rendezvous* rendezvous = nullptr;  // may be null in a world of one daemon without meshes inside
  std::string epoch = {};            // of the model, in words that no other epoch of any daemon has
  absl::Duration timeout;            // to connect, and for one rank to wait for another inside a call
  EngineSettings settings;
  ConnectAbort* abort = nullptr;  // ends the connecting from outside, within a second; may be null
  Links* links = nullptr;         // to other daemons, which connecting tries; may be null
  // Where a group lies inside the only daemon: sums of gradients wait for the commit, and each rank's slots memory ends
  // with the layout's landing area. Other engines sum at the push.
  bool sums_at_commit = false;
  MetricRegistry* metrics = &MetricRegistry::Unread();  // outlives the engines
  // That the devices add at a time; unset: the topology's.
  std::optional<int> most_sum_sources = {};
};

// Loads what the engines of a daemon take from the machine: NCCL, where GPUs of several daemons, or by mesh_inside
// those of one, exchange bytes. Returns which that is, as "NCCL 2.27.3"; empty: nothing. FAILED_PRECONDITION it is
// missing or too old (says what to do), or there is no key in nccl_psk_file; UNIMPLEMENTED a build without CUDA.
absl::StatusOr<std::string> LoadEngineLibraries(absl::Span<const Device> devices, int nodes,
                                                const EngineSettings& settings);

// Connects one Collectives for each rank of this daemon: memcpy (on GPUs: copy engines) where the shard group lies in
// the daemon, unless the settings ask for meshes, with Gloo (NCCL) over the replicas when there are several daemons;
// Gloo (NCCL) where the group spans daemons. UNAVAILABLE naming the node that did not come within the timeout, or
// all that were not reached over the data network (see `links`);
// FAILED_PRECONDITION no NCCL for GPUs of several daemons; RESOURCE_EXHAUSTED no memory for an engine; ABORTED the
// epoch is over; what the abort says. Does not return before its threads have ended.
absl::StatusOr<std::vector<std::unique_ptr<Collectives>>> ConnectEngines(const EngineSpec& spec);

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_COLLECTIVE_ENGINES_H_
