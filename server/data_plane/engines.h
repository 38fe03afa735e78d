// Choice and connection of an epoch's engines.
#ifndef PARAMSHARD_SERVER_DATA_PLANE_ENGINES_H_
#define PARAMSHARD_SERVER_DATA_PLANE_ENGINES_H_

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/model/layout.h"
#include "common/model/model_spec.h"
#include "server/data_plane/collectives.h"
#include "server/data_plane/connect_abort.h"
#include "server/data_plane/link_check.h"
#include "server/data_plane/topology.h"
#include "server/device/device.h"
#include "server/observe/metric_registry.h"
#include "server/terms/cluster.h"

namespace paramshard::server {

// The part of the daemon's configuration that concerns engines.
struct EngineSettings {
  // Bytes move by Gloo or NCCL inside a daemon too, as they do between daemons.
  bool mesh_inside = false;
  std::string nccl_library = {};           // path, for meshes of GPUs; empty: found by the dynamic linker
  std::string nccl_psk_file = {};          // path; empty: NCCL does not encrypt
  std::string data_address = "127.0.0.1";  // IP of this host, for connections between daemons
  // Listens at data_address; null: daemons do not check their links.
  std::shared_ptr<const LinkListener> link_listener = nullptr;
};

struct EngineSpec {
  const ModelSpec* model = nullptr;  // outlives the engines
  const Layout* layout = nullptr;    // outlives the engines
  const Topology* topology = nullptr;
  std::vector<RankMemory> memory;    // of this daemon's ranks, in device order
  Rendezvous* rendezvous = nullptr;  // may be null in a world of one daemon without meshes inside
  std::string epoch = {};            // name of the epoch, unique over all models and daemons
  absl::Duration timeout;            // of connecting, and of a rank's wait for another one inside a call
  EngineSettings settings;
  ConnectAbort* abort = nullptr;  // ends connecting from outside, within a second; may be null
  Links* links = nullptr;         // to other daemons, checked while connecting; may be null
  // Sums of gradients wait for the commit, if the group lies inside the only daemon; each rank's slots memory then ends
  // with the layout's landing area. Other engines sum at the push.
  bool sums_at_commit = false;
  MetricRegistry* metrics = &MetricRegistry::Unread();  // outlives the engines
  // Largest number of sources that the devices add at a time; unset: the topology's.
  std::optional<int> most_sum_sources = {};
};

// Loads the machine's library that a daemon's engines need: NCCL, if GPUs exchange bytes between daemons, or, with
// mesh_inside, within one. Returns the library, as "NCCL 2.27.3"; empty: none is needed. FAILED_PRECONDITION it is
// missing or too old (says what to do), or there is no key in nccl_psk_file; UNIMPLEMENTED a build without CUDA.
absl::StatusOr<std::string> LoadEngineLibraries(absl::Span<const Device> devices, int nodes,
                                                const EngineSettings& settings);

// Connects one Collectives for each rank of this daemon. If the shard group lies in the daemon: memcpy (on GPUs: copy
// engines), unless the settings ask for meshes, and Gloo (NCCL) over the replicas of several daemons. If the group
// spans daemons: Gloo (NCCL). UNAVAILABLE naming a node that timed out, or all nodes that were not reached over the
// data network (see `links`); FAILED_PRECONDITION no NCCL for GPUs of several daemons; RESOURCE_EXHAUSTED no memory for
// an engine; ABORTED the epoch has ended; the abort's status. Does not return before its threads have ended.
absl::StatusOr<std::vector<std::unique_ptr<Collectives>>> ConnectEngines(const EngineSpec& spec);

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_DATA_PLANE_ENGINES_H_
