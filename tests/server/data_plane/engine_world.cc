#include "tests/server/data_plane/engine_world.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/base/check.h"
#include "kernels/base/status_macros.h"

namespace paramshard::server {
namespace {

constexpr uint8_t kUntouched = 0xee;

ParameterSpec Parameter(std::string name, int64_t rows, int64_t columns, Format format,
                        GradientType gradient_type = GradientType::kFP32) {
  ParameterSpec spec;
  spec.name = std::move(name);
  spec.shape = {rows, columns};
  spec.encoding.format = format;
  spec.gradient_type = gradient_type;
  return spec;
}

ParameterSpec Owned(std::string name, std::vector<int64_t> shape, Format format) {
  ParameterSpec spec = Parameter(std::move(name), 1, 1, format, GradientType::kBF16);
  spec.shape = std::move(shape);
  spec.placement = Placement::kOwned;
  return spec;
}

UnitSpec Unit(std::string name, std::vector<ParameterSpec> parameters, bool reshard_after_forward = true) {
  UnitSpec spec;
  spec.name = std::move(name);
  spec.parameters = std::move(parameters);
  spec.reshard_after_forward = reshard_after_forward;
  return spec;
}

float FromBits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

// A value between 2^-21 and 2^20 of either sign. BF16 takes the upper half of its bits.
uint32_t GradientBits(std::mt19937& random) {
  const float mantissa = 1.0f + static_cast<float>(random() % 4096) / 4096.0f;
  const float value = std::ldexp(random() % 2 == 0 ? mantissa : -mantissa, static_cast<int>(random() % 41) - 21);
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

wire::WordsCounts CountsOf(const Layout& layout) {
  return {.slots = static_cast<int>(layout.slot_offsets().size()),
          .ranks = layout.ranks(),
          .gradient_slots = static_cast<int>(layout.gradient_slot_offsets().size())};
}

void FillRandom(std::vector<uint8_t>& bytes, uint32_t seed) {
  std::mt19937 random(seed);
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random());
}

}  // namespace

absl::Status SharedRendezvous::Put(absl::string_view key, absl::string_view value) {
  absl::MutexLock lock(&mu_);
  values_[std::string(key)] = std::string(value);
  changed_.SignalAll();
  return absl::OkStatus();
}

absl::StatusOr<std::string> SharedRendezvous::Get(absl::string_view key, absl::Duration timeout) {
  const SteadyTime deadline = SteadyDeadline(timeout);
  const std::string name(key);
  absl::MutexLock lock(&mu_);
  while (!values_.contains(name)) {
    if (changed_.WaitUntil(&mu_, deadline)) return absl::DeadlineExceededError(name);
  }
  return values_[name];
}

std::string SharedRendezvous::Name(int from, int to, absl::string_view key) {
  return absl::StrCat(key, " of node ", from, " for node ", to);
}

absl::Status SharedRendezvous::PutParts(int node, absl::string_view key, const std::vector<std::string>& parts) {
  if (static_cast<int>(parts.size()) != nodes_) return absl::InvalidArgumentError("want a part for each node");
  for (int to = 0; to < nodes_; ++to) RETURN_IF_ERROR(Put(Name(node, to, key), parts[to]));
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::string>> SharedRendezvous::GetParts(int node, absl::string_view key,
                                                                    absl::Duration timeout) {
  const SteadyTime deadline = SteadyDeadline(timeout);
  std::vector<std::string> parts;
  for (int from = 0; from < nodes_; ++from) {
    ASSIGN_OR_RETURN(parts.emplace_back(), Get(Name(from, node, key), TimeLeft(deadline)));
  }
  return parts;
}

absl::Status SharedRendezvous::AwaitParts(int node, absl::string_view key, absl::Duration timeout) {
  return Get(Name(node, nodes_ - 1, key), timeout).status();
}

std::unique_ptr<Rendezvous> SharedRendezvous::Of(int node) {
  class OfNode final : public Rendezvous {
   public:
    OfNode(SharedRendezvous* all, int node) : all_(all), node_(node) {}
    absl::Status Put(absl::string_view key, absl::string_view value) override {
      return all_->Put(absl::StrCat(node_, "/", key), value);
    }
    absl::StatusOr<std::string> Get(int node, absl::string_view key, absl::Duration timeout) override {
      return all_->Get(absl::StrCat(node, "/", key), timeout);
    }
    absl::Status PutParts(absl::string_view key, const std::vector<std::string>& parts) override {
      return all_->PutParts(node_, key, parts);
    }
    absl::StatusOr<std::vector<std::string>> GetParts(absl::string_view key, absl::Duration timeout) override {
      return all_->GetParts(node_, key, timeout);
    }

   private:
    SharedRendezvous* const all_;
    const int node_;
  };
  return std::make_unique<OfNode>(this, node);
}

int WorldShape::ranks() const { return std::accumulate(device_counts.begin(), device_counts.end(), 0); }

ModelSpec TestModel() {
  ModelSpec model;
  model.name = "test";
  model.small_parameter_bytes = 64;
  model.groups.resize(1);
  model.units = {
      Unit("mixed",
           {Parameter("mx", 100, 64, Format::kMXFP8, GradientType::kBF16),
            Parameter("five_rows", 5, 33, Format::kBF16, GradientType::kBF16), Parameter("bias", 1, 7, Format::kFP32),
            Parameter("norm", 1, 9, Format::kBF16, GradientType::kBF16)}),
      Unit("lonely", {Parameter("scalar", 1, 1, Format::kFP32)}),
      Unit("resident", {Parameter("w", 70, 32, Format::kMXFP8), Parameter("v", 9, 40, Format::kFP32)}, false),
      Unit("plain", {Parameter("p", 16, 24, Format::kFP32), Parameter("q", 3, 3, Format::kFP32)}),
      Unit("owned", {Owned("matrix", {96, 64}, Format::kMXFP8), Owned("experts", {5, 32, 24}, Format::kNVFP4_2D),
                     Owned("other", {7, 40}, Format::kBF16), Parameter("cut", 10, 24, Format::kFP32),
                     Owned("stack", {3, 16, 8}, Format::kFP8TensorCurrent), Parameter("bias", 1, 7, Format::kFP32)}),
  };
  return model;
}

EngineWorld::EngineWorld(const WorldShape& shape, absl::Duration timeout)
    : shape_(shape),
      timeout_(timeout),
      model_(TestModel()),
      layout_(model_, shape.shard_size),
      rendezvous_(shape.nodes()),
      engines_(shape.ranks()) {
  for (int node = 0; node < shape.nodes(); ++node) rendezvous_of_node_.push_back(rendezvous_.Of(node));
  for (int rank = 0; rank < shape.ranks(); ++rank) {
    arenas_.emplace_back(layout_.arena_bytes(group_rank(rank)));
    slots_.emplace_back(layout_.slots_bytes() + layout_.landing_bytes(group_rank(rank)), kUntouched);
  }
}

absl::Status EngineWorld::Allocate() {
  if (!buffers_.empty()) return absl::OkStatus();
  std::vector<Device> ids;
  for (int rank = 0; rank < ranks(); ++rank) {
    ids.push_back({shape_.devices == "cuda" ? DeviceKind::kCuda : DeviceKind::kCpu, rank});
  }
  ASSIGN_OR_RETURN(devices_, OpenDevices(ids));
  for (int rank = 0; rank < ranks(); ++rank) {
    ComputeDevice& device = *devices_[rank];
    RankBuffers& buffers = buffers_.emplace_back();
    ASSIGN_OR_RETURN(buffers.arena,
                     device.Allocate("arena", layout_.arena_bytes(group_rank(rank)), Sharing::kReadOnly));
    ASSIGN_OR_RETURN(buffers.slots, device.Allocate("slots", slots_[rank].size(), Sharing::kReadWrite));
    ASSIGN_OR_RETURN(buffers.words,
                     Memory::Allocate("words", wire::Words::SizeBytes(CountsOf(layout_)), Sharing::kReadWrite));
    ASSIGN_OR_RETURN(buffers.open_words, device.OpenHostMemory(buffers.words));
    Upload(rank);
  }
  return absl::OkStatus();
}

void EngineWorld::Upload(int rank) {
  PARAMSHARD_CHECK(devices_[rank]->Write(buffers_[rank].arena.data(), arenas_[rank]).ok());
  PARAMSHARD_CHECK(devices_[rank]->Write(buffers_[rank].slots.data(), slots_[rank]).ok());
}

std::vector<uint8_t> EngineWorld::slots(int rank) const {
  const Memory& slots = buffers_[rank].slots;
  const absl::StatusOr<HostView> view = devices_[rank]->Read(slots.data(), slots.size_bytes());
  PARAMSHARD_CHECK(view.ok());
  return {view->bytes().begin(), view->bytes().end()};
}

std::vector<std::vector<uint8_t>> EngineWorld::AllSlots() const {
  std::vector<std::vector<uint8_t>> all;
  for (int rank = 0; rank < ranks(); ++rank) all.push_back(slots(rank));
  return all;
}

Topology EngineWorld::TopologyOf(int node) const {
  absl::StatusOr<Topology> topology =
      Topology::Create({.device_counts = shape_.device_counts,
                        .node = node,
                        .device_kind = shape_.devices == "cuda" ? DeviceKind::kCuda : DeviceKind::kCpu,
                        .mesh_inside = shape_.mesh_inside},
                       shape_.shard_size);
  PARAMSHARD_CHECK(topology.ok());
  return *std::move(topology);
}

RankMemory EngineWorld::memory(int rank) const {
  const RankBuffers& buffers = buffers_[rank];
  return {.arena = buffers.arena.data(),
          .slots = buffers.slots.data(),
          .words = wire::Words(buffers.words.data(), CountsOf(layout_)),
          .device = devices_[rank].get()};
}

absl::StatusOr<std::vector<std::unique_ptr<Collectives>>> EngineWorld::ConnectNode(int node, ConnectAbort* abort) {
  RETURN_IF_ERROR(Allocate());
  const Topology topology = TopologyOf(node);
  EngineSpec spec;
  spec.model = &model_;
  spec.layout = &layout_;
  spec.topology = &topology;
  const int first = std::accumulate(shape_.device_counts.begin(), shape_.device_counts.begin() + node, 0);
  for (int rank = first; rank < first + shape_.device_counts[node]; ++rank) {
    spec.memory.push_back(memory(rank));
  }
  spec.rendezvous = topology.needs_rendezvous() ? rendezvous_of_node_[node].get() : nullptr;
  spec.timeout = timeout_;
  spec.settings.nccl_library = test::EnvironmentOr("PARAMSHARD_NCCL_LIBRARY", "");
  Links links(node, link_listener_);
  spec.links = &links;
  spec.abort = abort;
  spec.sums_at_commit = shape_.sums_at_commit;
  spec.most_sum_sources = shape_.most_sum_sources;
  return ConnectEngines(spec);
}

int EngineWorld::node(int rank) const {
  int node = 0;
  for (int first = shape_.device_counts[0]; rank >= first; first += shape_.device_counts[++node]) {
  }
  return node;
}

absl::Status EngineWorld::Connect() {
  RETURN_IF_ERROR(Allocate());
  std::vector<absl::StatusOr<std::vector<std::unique_ptr<Collectives>>>> engines(shape_.nodes());
  std::vector<std::thread> threads;
  for (int node = 0; node < shape_.nodes(); ++node) {
    threads.emplace_back([&, node] { engines[node] = ConnectNode(node); });
  }
  for (std::thread& thread : threads) thread.join();
  int rank = 0;
  for (auto& of_node : engines) {
    if (!of_node.ok()) return of_node.status();
    for (auto& engine : *of_node) engines_[rank++] = std::move(engine);
  }
  return absl::OkStatus();
}

std::vector<absl::Status> EngineWorld::OnAllRanks(const std::function<absl::Status(int rank)>& call) {
  std::vector<absl::Status> statuses(ranks());
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks(); ++rank) {
    threads.emplace_back([&, rank] { statuses[rank] = call(rank); });
  }
  for (std::thread& thread : threads) thread.join();
  return statuses;
}

void EngineWorld::FillArenas(uint32_t seed) {
  // Replicas hold the same bytes.
  for (int rank = 0; rank < ranks(); ++rank) {
    FillRandom(arenas_[rank], seed + group_rank(rank));
    Upload(rank);
  }
}

void EngineWorld::FillGradients(int unit, int slot, uint32_t seed) { FillGradients(unit, slot, seed, GradientBits); }

void EngineWorld::FillGradients(int unit, int slot, uint32_t seed, uint32_t (*bits_of)(std::mt19937& random)) {
  for (int rank = 0; rank < ranks(); ++rank) {
    std::mt19937 random(seed + rank);
    uint8_t* const gradients = slots_[rank].data() + layout_.gradient_slot_offsets()[slot];
    for (size_t i = 0; i < model_.units[unit].parameters.size(); ++i) {
      const ParameterSpec& parameter = model_.units[unit].parameters[i];
      uint8_t* out = gradients + layout_.units()[unit].parameters[i].gradient_offset;
      const bool bf16 = parameter.gradient_type == GradientType::kBF16;
      for (int64_t element = 0; element < parameter.rows() * parameter.columns(); ++element) {
        const uint32_t bits = bits_of(random) >> (bf16 ? 16 : 0);
        std::memcpy(out, &bits, bf16 ? 2 : 4);
        out += bf16 ? 2 : 4;
      }
    }
    Upload(rank);
  }
}

void EngineWorld::ClearSlots() {
  for (int rank = 0; rank < ranks(); ++rank) {
    slots_[rank].assign(slots_[rank].size(), kUntouched);
    Upload(rank);
  }
}

absl::Status EngineWorld::Gather(int rank, const GatherCall& call, Delivered delivered) {
  RETURN_IF_ERROR(engine(rank).Gather(call, delivered));
  while (true) {
    ASSIGN_OR_RETURN(const bool done, engine(rank).GatherDone(call, delivered));
    if (done) return absl::OkStatus();
    std::this_thread::yield();
  }
}

std::vector<uint8_t> EngineWorld::ExpectedSlots(int rank, const GatherCall& call, bool own_pieces) const {
  std::vector<uint8_t> expected(slots_[rank].size(), kUntouched);
  uint8_t* const slot = expected.data() + layout_.slot_offsets()[call.slot];
  for (int source = 0; source < layout_.ranks(); ++source) {
    if (source == group_rank(rank) && !own_pieces) continue;
    const uint8_t* const arena = arenas_[group_start(rank) + source].data();
    for (const PieceCopy& piece : layout_.Pieces(call.unit, call.phase, source)) {
      std::memcpy(slot + piece.target, arena + piece.source, piece.bytes);
    }
  }
  return expected;
}

Accumulators EngineWorld::MakeAccumulators(int unit, int rank, uint32_t seed) const {
  std::mt19937 random(seed + rank);
  Accumulators accumulators;
  for (size_t i = 0; i < model_.units[unit].parameters.size(); ++i) {
    const int64_t rows = layout_.Extent(unit, static_cast<int>(i), group_rank(rank)).size();
    std::vector<float>& values = accumulators.emplace_back(rows * model_.units[unit].parameters[i].columns());
    for (float& value : values) value = Stored(FromBits(GradientBits(random)));
  }
  return accumulators;
}

// To nearest, ties to even, on the bits.
float EngineWorld::Stored(float value) const {
  if (accumulator_type_ == GradientType::kFP32 || std::isnan(value)) return value;
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  const uint32_t half = 0x7fff + ((bits >> 16) & 1);
  return FromBits((bits + half) & 0xffff0000u);
}

float EngineWorld::Gradient(int rank, int unit, int parameter, int slot, int64_t element) const {
  const uint8_t* const gradients = slots_[rank].data() + layout_.gradient_slot_offsets()[slot] +
                                   layout_.units()[unit].parameters[parameter].gradient_offset;
  if (model_.units[unit].parameters[parameter].gradient_type == GradientType::kFP32) {
    uint32_t bits;
    std::memcpy(&bits, gradients + element * 4, 4);
    return FromBits(bits);
  }
  uint16_t bits;
  std::memcpy(&bits, gradients + element * 2, 2);
  return FromBits(static_cast<uint32_t>(bits) << 16);
}

std::optional<float> EngineWorld::GroupSum(int start, int unit, int parameter, int slot, int64_t element,
                                           const AbsentByRank& absent) const {
  std::optional<float> sum;
  for (int rank = start; rank < start + layout_.ranks(); ++rank) {
    if (!absent.empty() && absent[rank].contains(parameter)) continue;
    const float gradient = Gradient(rank, unit, parameter, slot, element);
    sum = sum.has_value() ? *sum + gradient : gradient;
  }
  return sum;
}

void EngineWorld::ReduceByTheLetter(int unit, int slot, int rank, bool overwrite, const AbsentByRank& absent,
                                    Accumulators& accumulators) const {
  for (size_t i = 0; i < accumulators.size(); ++i) {
    const int parameter = static_cast<int>(i);
    const int64_t first =
        layout_.Extent(unit, parameter, group_rank(rank)).begin * model_.units[unit].parameters[parameter].columns();
    for (size_t j = 0; j < accumulators[i].size(); ++j) {
      std::optional<float> sum;
      for (int start = 0; start < ranks(); start += layout_.ranks()) {
        const std::optional<float> group =
            GroupSum(start, unit, parameter, slot, first + static_cast<int64_t>(j), absent);
        if (group.has_value()) sum = sum.has_value() ? *sum + *group : *group;
      }
      if (sum.has_value()) accumulators[i][j] = Stored(overwrite ? *sum : accumulators[i][j] + *sum);
    }
  }
}

std::vector<int32_t> EngineWorld::AbsentEverywhere(int unit, const AbsentByRank& absent) const {
  std::vector<int32_t> everywhere;
  for (int i = 0; i < static_cast<int>(model_.units[unit].parameters.size()) && !absent.empty(); ++i) {
    if (std::all_of(absent.begin(), absent.end(), [&](const std::set<int>& of_rank) { return of_rank.contains(i); })) {
      everywhere.push_back(i);
    }
  }
  return everywhere;
}

void EngineWorld::LandOwnGradients(int unit, int slot, int rank, const AbsentByRank& absent) {
  for (const GradientSlice& slice : layout_.Slices(unit, group_rank(rank))) {
    if (!absent.empty() && absent[rank].contains(slice.parameter)) continue;
    const int64_t bytes = slice.elements * GradientBytes(model_.units[unit].parameters[slice.parameter].gradient_type);
    const int64_t own = layout_.gradient_slot_offsets()[slot] + slice.slot_offset;
    const int64_t landing = layout_.slots_bytes() + slice.landing_offset;
    std::copy_n(&slots_[rank][own], bytes, &slots_[rank][landing]);
    PARAMSHARD_CHECK(
        devices_[rank]
            ->Write(buffers_[rank].slots.data() + landing, absl::MakeConstSpan(slots_[rank]).subspan(landing, bytes))
            .ok());
  }
}

absl::StatusOr<std::vector<Memory>> EngineWorld::Upload(int rank, const Accumulators& accumulators) {
  std::vector<Memory> memories;
  for (const std::vector<float>& values : accumulators) {
    // The upper halves of floats that are BF16, or all of them.
    std::vector<uint8_t> bytes;
    for (float value : values) {
      const auto* const first = reinterpret_cast<const uint8_t*>(&value);
      bytes.insert(bytes.end(), first + (sizeof(float) - GradientBytes(accumulator_type_)), first + sizeof(float));
    }
    ASSIGN_OR_RETURN(memories.emplace_back(),
                     devices_[rank]->Allocate("accumulator", static_cast<int64_t>(bytes.size()), Sharing::kPrivate));
    RETURN_IF_ERROR(devices_[rank]->Write(memories.back().data(), bytes));
  }
  return memories;
}

absl::Status EngineWorld::Download(int rank, const std::vector<Memory>& memories, Accumulators& accumulators) {
  for (size_t i = 0; i < accumulators.size(); ++i) {
    ASSIGN_OR_RETURN(const HostView view, devices_[rank]->Read(memories[i].data(), memories[i].size_bytes()));
    const int64_t bytes = GradientBytes(accumulator_type_);
    for (size_t j = 0; j < accumulators[i].size(); ++j) {
      uint32_t bits = 0;
      std::memcpy(reinterpret_cast<uint8_t*>(&bits) + sizeof(bits) - bytes, view.data() + j * bytes, bytes);
      accumulators[i][j] = FromBits(bits);
    }
  }
  return absl::OkStatus();
}

absl::Status EngineWorld::Push(int64_t number, int unit, int slot, int rank, bool overwrite, const AbsentByRank& absent,
                               bool landed, absl::Span<const Memory> accumulators) {
  std::vector<MutableGradient> pointers;
  for (const Memory& memory : accumulators) {
    pointers.push_back(memory.size_bytes() == 0 ? MutableGradient()
                                                : MutableGradient(memory.data(), accumulator_type_));
  }
  const std::unique_ptr<bool[]> overwrites(new bool[accumulators.size()]);
  std::fill_n(overwrites.get(), accumulators.size(), overwrite);
  std::vector<std::vector<int32_t>> of_daemon;
  for (int other = 0; other < ranks() && !absent.empty(); ++other) {
    if (node(other) == node(rank)) of_daemon.emplace_back(absent[other].begin(), absent[other].end());
  }
  ReduceCall call;
  call.number = number;
  call.unit = unit;
  call.slot = slot;
  call.own_slices_landed = landed;
  call.absent = of_daemon;
  call.accumulators = pointers;
  call.overwrite = absl::MakeConstSpan(overwrites.get(), accumulators.size());
  call.push = number;
  ASSIGN_OR_RETURN(const std::vector<int32_t> everywhere, engine(rank).Reduce(call));
  if (everywhere == AbsentEverywhere(unit, absent)) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("rank ", rank, ": absent everywhere: got ", absl::StrJoin(everywhere, ", ")));
}

absl::Status EngineWorld::Land(int64_t number, int unit, int slot, int rank, int source, const AbsentByRank& absent,
                               bool landed) {
  std::vector<int32_t> of_source;
  if (!absent.empty()) of_source.assign(absent[source].begin(), absent[source].end());
  return engine(rank).Land(
      {.push = number, .unit = unit, .source = source, .slot = slot, .own_slices_landed = landed, .absent = of_source});
}

absl::Status EngineWorld::SumLeft(int rank) {
  ASSIGN_OR_RETURN(const std::vector<SumTask> left, engine(rank).TakeSums());
  ASSIGN_OR_RETURN(const std::unique_ptr<DeviceQueue> queue, devices_[rank]->MakeQueue());
  return queue->Sum(left);
}

absl::Status EngineWorld::Reduce(int64_t number, int unit, int slot, int rank, bool overwrite,
                                 const AbsentByRank& absent, Accumulators& accumulators) {
  ASSIGN_OR_RETURN(const std::vector<Memory> memories, Upload(rank, accumulators));
  const bool lands = engine(rank).sums_at_commit();
  if (lands) LandOwnGradients(unit, slot, rank, absent);
  RETURN_IF_ERROR(Push(number, unit, slot, rank, overwrite, absent, lands, memories));
  RETURN_IF_ERROR(SumLeft(rank));
  return Download(rank, memories, accumulators);
}

}  // namespace paramshard::server
