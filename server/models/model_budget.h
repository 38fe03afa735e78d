// Counts what a model takes of the memory of this daemon's devices.
#ifndef PARAMSHARD_SERVER_MODELS_MODEL_BUDGET_H_
#define PARAMSHARD_SERVER_MODELS_MODEL_BUDGET_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/model/layout.h"
#include "common/model/model_spec.h"
#include "server/data_plane/topology.h"
#include "server/device/compute_device.h"
#include "server/state/shard_placement.h"

namespace paramshard::server {

// Constant once it is made; thread-safe. Ranks are the daemon's own, from 0, as the devices are.
class ModelBudget {
 public:
  struct Options {
    const ModelSpec* spec = nullptr;  // these three outlive the budget
    const Layout* layout = nullptr;
    const Topology* topology = nullptr;
    std::vector<ComputeDevice*> devices;  // of the daemon
    int64_t available_bytes = 0;          // that the daemon may still take
    // Host memory for copies of each rank, beside what it has on its device; empty where nothing is saved.
    std::vector<int64_t> image_bytes = {};
    MovePolicy moves = {};  // of the steps
  };

  // Decides when gradients are summed, where the spec leaves that open.
  explicit ModelBudget(Options options);

  // RESOURCE_EXHAUSTED with needed and free bytes by class: all ranks against what is available, and each one against
  // its device; images and copies of planes of GPUs against the host.
  absl::Status Check() const;

  // Returns true if gradients are summed at the commit.
  bool sums_at_commit() const { return sums_at_commit_; }
  // Counts the slots memory of each rank's trainer, with the landing area where sums wait for the commit.
  std::vector<int64_t> SlotsBytesByRank() const;
  // Counts what the engine of each rank holds while an epoch runs, beside shards and slots.
  std::vector<int64_t> ScratchBytesByRank() const;

 private:
  struct Bytes {
    ShardBytes shards;
    int64_t slots = 0;
    int64_t scratch = 0;  // of engines
    int64_t muon = 0;
    // These two of cpu devices; those of GPUs lie elsewhere.
    int64_t image = 0;
    int64_t plane_copy = 0;
    int64_t Total() const { return shards.Total() + slots + scratch + muon + image + plane_copy; }
  };

  int ranks() const { return static_cast<int>(options_.devices.size()); }
  // Counts what a rank needs.
  Bytes Of(int rank, bool sums_at_commit) const;
  std::vector<int64_t> CountMuon() const;
  bool ChooseSumsAtCommit() const;
  bool on_cpu() const { return options_.devices.front()->id().kind == DeviceKind::kCpu; }
  absl::Status CheckCopiesFit() const;
  absl::Status CheckFits(const Bytes& needed, int64_t available, absl::string_view where) const;

  const Options options_;
  const std::vector<int64_t> muon_bytes_;  // by rank
  const bool sums_at_commit_;
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_MODELS_MODEL_BUDGET_H_
