// Cost of a commit's records: one commit after the other is prepared, decided, marked and answered in a journal without
// readers. Nothing else runs, so the journal stays in a cache as far as it fits; in a daemon it does not.
//
// `bytes` is what one commit stores.

#include <sys/mman.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "benchmark/benchmark.h"
#include "kernels/base/check.h"
#include "server/journal/journal.h"
#include "server/journal/recovery.h"

namespace paramshard::server {
namespace {

constexpr int kBands = 64;

struct Size {
  const char* name;
  int ranks;
  int parameters;
  int64_t history_length;  // 0: no parameter has one
  int64_t client_state_bytes;
};

constexpr Size kSizes[] = {
    {"300 parameters", 8, 300, 0, 1024},
    {"300 parameters, histories of 1024", 8, 300, 1024, 1024},
    {"10000 parameters", 8, 10'000, 0, 1024},
    {"10000 parameters, histories of 1024", 8, 10'000, 1024, 1024},
    {"300 parameters, client states of 64 KiB", 8, 300, 0, 64 * 1024},
};

JournalIdentity IdentityOf(const Size& size) {
  JournalIdentity identity{.spec = std::string(200 * size.parameters, 's'),
                           .device_counts = {size.ranks},
                           .shard_size = size.ranks,
                           .parameters = size.parameters,
                           .groups = 2,
                           .client_state_bytes = 64 * 1024,
                           .book = {},
                           .ranks = {}};
  for (int i = 0; size.history_length > 0 && i < size.parameters; ++i)
    identity.book.push_back({0, i, size.history_length});
  for (int r = 0; r < size.ranks; ++r) {
    JournalRank& rank = identity.ranks.emplace_back(JournalRank{.rank = r, .pieces = {}, .extents = {}, .bands = {}});
    for (int i = 0; i < size.parameters; ++i) {
      rank.extents.push_back({.unit = 0, .parameter = i, .first_row = 0, .end_row = kBands});
    }
    for (int band = 0; band < kBands; ++band) rank.bands.push_back({.unit = 0, .parameter = 0, .row = band});
    rank.trainable_count = size.parameters;
    rank.distance = 512;
  }
  return identity;
}

// Counts, and lets everything happen.
class StoreCounter final : public StoreLimit {
 public:
  int64_t Allow(int64_t size_bytes) override {
    bytes += size_bytes;
    return size_bytes;
  }
  int64_t bytes = 0;
};

class Model {
 public:
  Model(const Size& size, StoreLimit* limit) : identity_(IdentityOf(size)) {
    const int64_t size_bytes = *Journal::SizeOf(identity_);
    void* const memory =
        mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    PARAMSHARD_CHECK(memory != MAP_FAILED);
    memory_ = absl::Span<uint8_t>(static_cast<uint8_t*>(memory), size_bytes);
    journal_ = *Journal::Create(memory_, identity_, limit);
    JournalNumbers numbers;
    numbers.client_states.resize(size.ranks);
    numbers.positions.resize(size.ranks);
    numbers.steps.resize(size.parameters);
    numbers.scalings.resize(identity_.book.size());
    for (JournalScaling& scaling : numbers.scalings) {
      scaling.history = {.scale = 1.0f, .amaxes = std::vector<float>(size.history_length)};
    }
    PARAMSHARD_CHECK(journal_->SetUsable({}, numbers).ok());
    PARAMSHARD_CHECK(journal_->BeginEpoch(1, {}).ok());
    prepared_ = {.commit_number = 0,
                 .groups = std::vector<Hyperparameters>(2),
                 .has_gradient = std::vector<bool>(size.parameters, true),
                 .client_states = std::vector<std::string>(size.ranks, std::string(size.client_state_bytes, 'c'))};
    steps_.resize(size.parameters);
    positions_.resize(size.ranks);
    scalings_.assign(identity_.book.size(), {.amax = 1.5f, .history = ScalingChange::History::kAppended});
  }
  ~Model() { munmap(memory_.data(), memory_.size()); }

  void Commit() {
    const int64_t number = ++prepared_.commit_number;
    bool ok = journal_->Prepare(prepared_).ok();
    ok = ok && journal_->Decide({.commit_number = number, .apply = true}).ok();
    for (size_t rank = 0; rank < positions_.size(); ++rank) Apply(static_cast<int>(rank));
    for (int64_t& step : steps_) step = number;
    ok = ok && journal_
                   ->Answer({.answer = {.commit_number = number, .version = number},
                             .skipped = 0,
                             .steps = steps_,
                             .positions = positions_,
                             .scalings = scalings_})
                   .ok();
    PARAMSHARD_CHECK(ok);
  }
  int64_t size_bytes() const { return static_cast<int64_t>(memory_.size()); }
  absl::Span<const uint8_t> memory() const { return memory_; }

 private:
  void Apply(int rank) {
    for (int band = 0; band < kBands; ++band) {
      journal_->MarkBegun(rank, band % kBandLanes, band / kBandLanes + 1);
      journal_->MarkDone(rank, band % kBandLanes, band / kBandLanes + 1);
    }
  }

  const JournalIdentity identity_;
  absl::Span<uint8_t> memory_;
  std::unique_ptr<Journal> journal_;
  PreparedCommit prepared_;
  std::vector<int64_t> steps_;
  std::vector<int64_t> positions_;
  std::vector<ScalingChange> scalings_;
};

void CommitRecords(benchmark::State& state, const Size& size) {
  StoreCounter counter;
  {
    Model counted(size, &counter);
    counter.bytes = 0;
    counted.Commit();
  }
  Model model(size, nullptr);
  for (auto _ : state) model.Commit();
  state.counters["bytes"] = static_cast<double>(counter.bytes);
  state.counters["journal_bytes"] = static_cast<double>(model.size_bytes());
}

void Recover(benchmark::State& state, const Size& size) {
  Model model(size, nullptr);
  model.Commit();
  for (auto _ : state) {
    const absl::StatusOr<RecoveryPlan> plan = PlanRecovery(model.memory());
    PARAMSHARD_CHECK(plan.ok() && plan->action == RecoveryAction::kServe);
  }
}

int RegisterAll() {
  for (const Size& size : kSizes) {
    benchmark::RegisterBenchmark(absl::StrCat("commit/", size.name).c_str(), CommitRecords, size)
        ->Unit(benchmark::kMicrosecond);
    benchmark::RegisterBenchmark(absl::StrCat("recover/", size.name).c_str(), Recover, size)
        ->Unit(benchmark::kMillisecond);
  }
  return 0;
}

const int kRegistered = RegisterAll();

}  // namespace
}  // namespace paramshard::server
