// A world of daemons in one process, for tests of engines: memory, gradients and engines of every
// rank.
#ifndef PARAMSHARD_TESTS_SERVER_DATA_PLANE_ENGINE_WORLD_H_
#define PARAMSHARD_TESTS_SERVER_DATA_PLANE_ENGINE_WORLD_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "server/base/steady_cond_var.h"
#include "server/data_plane/engines.h"
#include "tests/support/environment.h"

namespace paramshard::server {

// Values of one epoch, shared by all daemons of the process.
class SharedRendezvous {
 public:
  explicit SharedRendezvous(int nodes) : nodes_(nodes) {}

  // Returns the rendezvous of one daemon. This object outlives it.
  std::unique_ptr<Rendezvous> Of(int node);

  absl::Status Put(absl::string_view key, absl::string_view value);
  absl::StatusOr<std::string> Get(absl::string_view key, absl::Duration timeout);
  absl::Status PutParts(int node, absl::string_view key, const std::vector<std::string>& parts);
  absl::StatusOr<std::vector<std::string>> GetParts(int node, absl::string_view key, absl::Duration timeout);
  // Waits until the node has put its parts.
  absl::Status AwaitParts(int node, absl::string_view key, absl::Duration timeout);

 private:
  static std::string Name(int from, int to, absl::string_view key);

  const int nodes_;
  absl::Mutex mu_;
  SteadyCondVar changed_;
  std::map<std::string, std::string> values_ ABSL_GUARDED_BY(mu_);
};

struct WorldShape {
  const char* name;
  std::vector<int> device_counts;
  int shard_size;
  std::string devices = test::TestDevices();  // the kind
  bool mesh_inside = false;                   // see EngineSettings
  bool sums_at_commit = false;                // see EngineSpec
  std::optional<int> most_sum_sources = {};   // likewise

  int nodes() const { return static_cast<int>(device_counts.size()); }
  int ranks() const;
  // The shard group spans daemons.
  bool spans_daemons() const { return nodes() > 1 && shard_size == ranks(); }
};

// Timeout that a test waits for. Engines connect within it on a busy machine, too.
inline constexpr absl::Duration kShortTimeout = absl::Seconds(2);

// Units with parameters cut evenly, unevenly and not at all; one unit that only one rank owns; one
// resident unit.
ModelSpec TestModel();

// Parameters of a unit without a gradient in a push, by rank of the world; empty if there are none.
using AbsentByRank = std::vector<std::set<int>>;

// One rank's accumulators of a unit, whatever type they are stored in; empty vectors where the rank owns nothing.
using Accumulators = std::vector<std::vector<float>>;

class EngineWorld {
 public:
  explicit EngineWorld(const WorldShape& shape, absl::Duration timeout = absl::Minutes(1));

  const WorldShape& shape() const { return shape_; }
  const ModelSpec& model() const { return model_; }
  const Layout& layout() const { return layout_; }
  int ranks() const { return shape_.ranks(); }
  int node(int rank) const;
  // Returns the topology as the daemon of that node sees it.
  Topology TopologyOf(int node) const;
  int group_rank(int rank) const { return rank % layout_.ranks(); }
  int group_start(int rank) const { return rank - group_rank(rank); }

  // Allocates the ranks' memory, as the first part of connecting. FAILED_PRECONDITION there are too few GPUs.
  absl::Status Allocate();
  // Connects all daemons at the same time. Returns the first error; FAILED_PRECONDITION there are too few GPUs.
  absl::Status Connect();
  absl::StatusOr<std::vector<std::unique_ptr<Collectives>>> ConnectNode(int node, ConnectAbort* abort = nullptr);
  SharedRendezvous& rendezvous() { return rendezvous_; }
  RankMemory memory(int rank) const;
  Collectives& engine(int rank) { return *engines_[rank]; }
  void SetEngine(int rank, std::unique_ptr<Collectives> engine) { engines_[rank] = std::move(engine); }
  void DestroyEngine(int rank) { engines_[rank].reset(); }

  // Runs `call` for every rank on a thread of its own, or on the ranks named only.
  std::vector<absl::Status> OnAllRanks(const std::function<absl::Status(int rank)>& call);

  // A gather of one rank, to its end.
  absl::Status Gather(int rank, const GatherCall& call, Delivered delivered);

  // Memory.
  void FillArenas(uint32_t seed);
  // Gradients of all kinds of magnitudes, so that the order of additions shows; or of these bits, of which BF16 takes
  // the upper half.
  void FillGradients(int unit, int slot, uint32_t seed);
  void FillGradients(int unit, int slot, uint32_t seed, uint32_t (*bits)(std::mt19937& random));
  void ClearSlots();
  std::vector<uint8_t> slots(int rank) const;
  std::vector<std::vector<uint8_t>> AllSlots() const;

  // Returns the content of a rank's slots memory after ClearSlots and this gather.
  std::vector<uint8_t> ExpectedSlots(int rank, const GatherCall& call, bool own_pieces) const;

  // How accumulators are stored on the devices from now on.
  void set_accumulator_type(GradientType type) { accumulator_type_ = type; }
  // Starting values of a rank's accumulators.
  Accumulators MakeAccumulators(int unit, int rank, uint32_t seed) const;
  // `accumulators` after a reduction of the gradients in `slot`, by the letter of the contract.
  void ReduceByTheLetter(int unit, int slot, int rank, bool overwrite, const AbsentByRank& absent,
                         Accumulators& accumulators) const;
  // Returns the parameters that are absent on all ranks, as every engine must.
  std::vector<int32_t> AbsentEverywhere(int unit, const AbsentByRank& absent) const;
  // The trainer's part of a push where sums wait for the commit: the rank's own gradients of `slot`, landed.
  void LandOwnGradients(int unit, int slot, int rank, const AbsentByRank& absent);
  // Makes the sums that the rank's engine has left.
  absl::Status SumLeft(int rank);
  // The same by the engine: pushed, and summed at once or by a commit.
  absl::Status Reduce(int64_t number, int unit, int slot, int rank, bool overwrite, const AbsentByRank& absent,
                      Accumulators& accumulators);
  // A push alone, on accumulators that lie on the rank's device. INTERNAL the engine returns other parameters than
  // AbsentEverywhere.
  absl::Status Push(int64_t number, int unit, int slot, int rank, bool overwrite, const AbsentByRank& absent,
                    bool landed, absl::Span<const Memory> accumulators);
  // Lets the rank's engine copy the rows that it owns out of the slot of a rank of its group.
  absl::Status Land(int64_t number, int unit, int slot, int rank, int source, const AbsentByRank& absent, bool landed);
  absl::StatusOr<std::vector<Memory>> Upload(int rank, const Accumulators& accumulators);
  absl::Status Download(int rank, const std::vector<Memory>& memories, Accumulators& accumulators);

 private:
  // Returns a value as an accumulator stores it.
  float Stored(float value) const;
  float Gradient(int rank, int unit, int parameter, int slot, int64_t element) const;
  // Returns the sum over the ranks of a group that have a gradient; nothing if none has.
  std::optional<float> GroupSum(int start, int unit, int parameter, int slot, int64_t element,
                                const AbsentByRank& absent) const;

  const WorldShape shape_;
  const absl::Duration timeout_;
  const ModelSpec model_;
  const Layout layout_;
  GradientType accumulator_type_ = GradientType::kFP32;
  // One rank's memory on its device.
  struct RankBuffers {
    Memory arena, slots, words;
    std::unique_ptr<Memory::Owner> open_words;
  };
  void Upload(int rank);

  std::vector<std::unique_ptr<ComputeDevice>> devices_;  // by rank
  std::vector<RankBuffers> buffers_;                     // by rank
  SharedRendezvous rendezvous_;
  std::vector<std::unique_ptr<Rendezvous>> rendezvous_of_node_;
  const std::shared_ptr<const LinkListener> link_listener_ = *LinkListener::Start("127.0.0.1");  // of all
  std::vector<std::vector<uint8_t>> arenas_, slots_;   // by rank: what was put into the buffers
  std::vector<std::unique_ptr<Collectives>> engines_;  // after the memory: destroyed first
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_TESTS_SERVER_DATA_PLANE_ENGINE_WORLD_H_
