// gRPC service for readers: passes a model's planes to processes that read them.
#ifndef PARAMSHARD_SERVER_EDGE_READER_SERVICE_H_
#define PARAMSHARD_SERVER_EDGE_READER_SERVICE_H_

#include <sys/types.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "paramshard/v1/reader.pb.h"
#include "server/data_plane/topology.h"
#include "server/edge/guarded_service.h"
#include "server/mirrors/mirror.h"
#include "server/models/model_store.h"

namespace paramshard::server {

// FAILED_PRECONDITION this daemon has not a whole shard group, so that nobody can read all planes from it.
absl::Status CheckIsWhole(absl::string_view model, const Topology& topology);

// Returns OK if a process of the user may map planes. FAILED_PRECONDITION they are in memory of GPUs, which every process
// that maps it can write, and the user neither has the daemon's rights nor is trusted.
absl::Status CheckMayMap(absl::string_view model, bool on_gpus, uid_t user, bool trusts_gpu_readers);

// Thread-safe; the arguments outlive the server that the service is registered with.
class ReaderService final : public GuardedService {
 public:
  // `mirror`: has the models instead of the store; null: this daemon is none. `trusts_gpu_readers`: see CheckMayMap.
  ReaderService(ModelStore* store, const Mirror* mirror, Callers* callers, CallWorkers* workers,
                bool trusts_gpu_readers);

 private:
  absl::StatusOr<v1::OpenReaderResponse> OpenReader(const Call& call, const v1::OpenReaderRequest& request);
  absl::StatusOr<PublishedPlanes> Find(absl::string_view model) const;

  ModelStore* const store_;
  const Mirror* const mirror_;
  Callers* const callers_;
  const bool trusts_gpu_readers_;
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_EDGE_READER_SERVICE_H_
