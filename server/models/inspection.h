// Looking at a model's state: hashes, errors of planes against masters, ranges and norms.
#ifndef PARAMSHARD_SERVER_MODELS_INSPECTION_H_
#define PARAMSHARD_SERVER_MODELS_INSPECTION_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kernels/optim/moment_kind.h"
#include "server/models/model.h"
#include "server/state/plane_statistics.h"
#include "server/state/published_planes.h"

namespace paramshard::server {

struct ModelSummary {
  std::string name = {};
  int64_t parameter_count = 0;
  int64_t element_count = 0;
  int shard_size = 0;
  int world_size = 0;
  StateNumbers numbers = {};
  Lineage lineage = {};
  ValueOrigin origin = ValueOrigin::kInitial;
  int64_t skipped_commits = 0;
  int64_t epoch = 0;
  bool running = false;
  int attached_ranks = 0;  // of this daemon
  std::string last_end = {};
  std::string engine = {};
  double imbalance = 0;
  std::string unusable = {};  // why
  std::optional<RestoreProgress> restore = {};
  std::optional<Rollback> rollback = {};
  std::vector<int> active_nodes = {};  // of the running epoch, where others are left out
};

ModelSummary Summarize(const Model& model);
// Summarizes a model that is only held for readers, without numbers.
ModelSummary Summarize(const PublishedPlanes& planes);

// An extent and where it lies. Pointers are into the model.
struct ShardListing {
  const ParameterSpec* parameter = nullptr;
  const UnitSpec* unit = nullptr;
  int rank = 0;  // of the world
  std::string device = {};
  RowRange rows = {};
  int64_t plane_bytes = 0;
  int64_t optimizer_bytes = 0;  // master, moments and gradient accumulator
  bool small = false;
};

// Shards from the `skip`th on, at most `limit`, in (parameter, rank) order.
std::vector<ShardListing> ListShards(const Model& model, int64_t skip, int64_t limit);

// The norm and the range of the finite ones among some values.
struct ValueRange {
  double norm = 0, min = 0, max = 0;
};

struct ExtentDescription {
  int rank = 0;  // of the world
  std::string device = {};
  RowRange rows = {};
  PlaneStatistics planes = {};  // the row-wise one
  PerMoment<ValueRange> moments = {};
};

// `parameter` and `unit`, into the model, are null when other daemons own all of it.
struct ParameterDescription {
  const ParameterSpec* parameter = nullptr;
  const UnitSpec* unit = nullptr;
  int64_t version = 0;
  int64_t step = 0;
  // Numbers besides the rows themselves with which the planes were encoded, where the format has any.
  std::optional<double> amax = {};
  std::optional<double> scale = {};
  std::vector<ExtentDescription> extents = {};
};

// Describes one state. NOT_FOUND for an unknown parameter; ABORTED when commits or an import kept changing the state;
// errors of ModelState::Look.
absl::StatusOr<ParameterDescription> DescribeParameter(const Model& model, absl::string_view parameter);

// How one parameter's planes on this daemon stand for their masters. Pointers are into the model.
struct ParameterStats {
  const ParameterSpec* parameter = nullptr;
  const UnitSpec* unit = nullptr;
  PlaneStatistics planes = {};
};

struct RankedStats {
  std::vector<ParameterStats> parameters = {};
  int64_t parameter_count = 0;  // without the limit
};

// Returns the parameters of which this daemon owns rows, at most `limit`, the ones whose planes are farthest from their
// masters first. CANCELLED when `is_cancelled`, which is asked before every extent, returns true.
absl::StatusOr<RankedStats> ListParameterStats(const Model& model, int64_t limit,
                                               absl::FunctionRef<bool()> is_cancelled);

// Hashes are XXH3-128 of the stored bytes, in hexadecimal.
struct ExtentVerification {
  std::string parameter = {};
  int rank = 0;  // of the world
  RowRange rows = {};
  bool planes_match = false;  // the served bytes are the master's encoding
  std::string master_hash = {};
  PerMoment<std::string> moment_hashes = {};
  std::string planes_hash = {};
};

struct VerifySummary {
  StateNumbers numbers = {};
  int64_t extent_count = 0;
  int64_t mismatch_count = 0;
  std::string state_hash = {};  // of all hashes of masters and moments, in order
};

// Calls `sink` for every extent in (parameter, rank) order; stops when it fails. ABORTED when a commit is applied
// or an import begins meanwhile; errors of ModelState::Look.
absl::StatusOr<VerifySummary> VerifyModel(const Model& model,
                                          absl::FunctionRef<absl::Status(const ExtentVerification&)> sink);

struct BrokenDevice {
  std::string device = {};
  std::string reason = {};
};

// Lists them in the order of ranks.
std::vector<BrokenDevice> ListBrokenDevices(const World& world);

// Bytes of one model on one device; `device` is empty for host memory that all devices share.
struct MemoryUse {
  std::string device = {};
  std::string memory_class = {};
  int64_t size_bytes = 0;
};

// Classes that take nothing are left out.
std::vector<MemoryUse> CountMemory(const Model& model);

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_MODELS_INSPECTION_H_
