// Sums of gradients over daemons that hold replicas, each with one `cpu` device, all of them threads of this process
// that are connected over loopback.
//
// Usage: replica_sum_bench [DAEMONS [ELEMENTS [TIMES]]]. A push lasts until the slowest daemon has its sum.

#include <algorithm>
#include <barrier>
#include <cstdint>
#include <future>
#include <iostream>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "kernels/base/status_macros.h"
#include "lab/bench/arguments.h"
#include "lab/bench/or_die.h"
#include "server/base/steady_time.h"
#include "server/data_plane/memcpy_collectives.h"
#include "server/data_plane/replicated_collectives.h"
#include "server/data_plane/tcp_mesh.h"
#include "tests/server/data_plane/counting_mesh.h"

namespace paramshard::server {
namespace {

constexpr absl::Duration kTimeout = absl::Minutes(1);

ModelSpec OneMatrix(int64_t elements) {
  ModelSpec model;
  model.name = "m";
  model.groups.resize(1);
  ParameterSpec parameter;
  parameter.name = "w";
  parameter.shape = {elements};
  parameter.encoding.format = Format::kFP32;
  UnitSpec unit;
  unit.name = "u";
  unit.parameters.push_back(std::move(parameter));
  model.units.push_back(std::move(unit));
  return model;
}

std::vector<std::unique_ptr<TcpMesh>> ConnectAll(int daemons) {
  const auto device = OrDie(MakeTcpDevice("127.0.0.1"), "listen");
  std::vector<MeshMember> members;
  for (int node = 0; node < daemons; ++node) members.push_back({node, node});
  std::vector<std::unique_ptr<TcpMesh>> meshes;
  for (int node = 0; node < daemons; ++node) {
    meshes.push_back(OrDie(TcpMesh::Create(device, members, node, kTimeout), "listen"));
  }
  std::vector<std::future<absl::Status>> connecting;
  for (const auto& mesh : meshes) {
    for (int peer = 0; peer < daemons; ++peer) {
      if (peer == mesh->self()) continue;
      connecting.push_back(std::async(std::launch::async, [&meshes, &mesh, peer] {
        return mesh->Connect(peer, meshes[peer]->AddressFor(mesh->self()));
      }));
    }
  }
  for (auto& connected : connecting) OrDie(connected.get(), "connect");
  return meshes;
}

// A daemon's device, its trainer's slots, its accumulator, and its engine.
struct Replica {
  std::unique_ptr<ComputeDevice> device;
  Memory arena, slots, words, accumulator;
  int64_t received = 0;
  std::unique_ptr<Collectives> engine;  // destroyed before the members that it uses
};

void MakeReplica(const ModelSpec& model, const Layout& layout, std::unique_ptr<Mesh> mesh, Replica& replica) {
  const wire::WordsCounts counts{.slots = static_cast<int>(layout.slot_offsets().size()),
                                 .ranks = 1,
                                 .gradient_slots = static_cast<int>(layout.gradient_slot_offsets().size())};
  replica.device = std::move(OrDie(OpenDevices({{DeviceKind::kCpu, mesh->self()}}), "open a device")[0]);
  ComputeDevice& device = *replica.device;
  replica.arena = OrDie(device.Allocate("arena", layout.arena_bytes(0), Sharing::kReadOnly), "allocate");
  replica.slots = OrDie(device.Allocate("slots", layout.slots_bytes(), Sharing::kReadWrite), "allocate");
  replica.words = OrDie(Memory::Allocate("words", wire::Words::SizeBytes(counts), Sharing::kReadWrite), "allocate");
  replica.accumulator =
      OrDie(device.Allocate("sums", model.units[0].parameters[0].shape[0] * 4, Sharing::kPrivate), "allocate");
  const RankMemory memory{.arena = replica.arena.data(),
                          .slots = replica.slots.data(),
                          .words = wire::Words(replica.words.data(), counts),
                          .device = &device};
  auto local = OrDie(MemcpyCollectives::Create({&model, &layout, {memory}}, 0, /*sums_at_commit=*/false), "an engine");
  replica.engine =
      OrDie(ReplicatedCollectives::Create({&model, &layout, 0, &device, kTimeout}, std::move(local),
                                          std::make_unique<CountingMesh>(std::move(mesh), &replica.received)),
            "an engine");
}

absl::Status Push(Replica& replica, int64_t number) {
  const MutableGradient accumulator(reinterpret_cast<float*>(replica.accumulator.data()));
  const bool overwrite = true;
  ReduceCall call;
  call.number = number;
  call.accumulators = absl::MakeConstSpan(&accumulator, 1);
  call.overwrite = absl::MakeConstSpan(&overwrite, 1);
  return replica.engine->Reduce(call).status();
}

void Measure(int daemons, int64_t elements, int times) {
  const ModelSpec model = OneMatrix(elements);
  const Layout layout(model, 1);
  auto meshes = ConnectAll(daemons);
  std::vector<Replica> replicas(daemons);
  for (int node = 0; node < daemons; ++node) MakeReplica(model, layout, std::move(meshes[node]), replicas[node]);
  std::vector<SteadyTime> begun(times);
  std::vector<std::vector<SteadyTime>> done(times, std::vector<SteadyTime>(daemons));
  std::barrier all(daemons);
  std::vector<std::thread> threads;
  for (int node = 0; node < daemons; ++node) {
    threads.emplace_back([&, node] {
      for (int i = 0; i < times; ++i) {
        all.arrive_and_wait();
        if (node == 0) begun[i] = SteadyNow();
        OrDie(Push(replicas[node], i + 1), "push");
        done[i][node] = SteadyNow();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::vector<double> took;
  for (int i = 0; i < times; ++i) {
    const SteadyTime last = *std::max_element(done[i].begin(), done[i].end());
    took.push_back(absl::ToDoubleMilliseconds(absl::FromChrono(last - begun[i])));
  }
  std::sort(took.begin(), took.end());
  int64_t received = 0;
  for (const Replica& replica : replicas) received = std::max(received, replica.received);
  const double bytes = static_cast<double>(elements) * 4;
  std::cout << absl::StrFormat(
      "%d daemons, %d elements: median %.2f ms, %.2f to %.2f ms of %d; received %.3f x, engine's memory %.3f x\n",
      daemons, elements, took[took.size() / 2], took.front(), took.back(), times,
      static_cast<double>(received) / times / bytes, static_cast<double>(replicas[0].engine->scratch_bytes()) / bytes);
  for (Replica& replica : replicas) replica.engine.reset();
}

}  // namespace
}  // namespace paramshard::server

int main(int argc, char** argv) {
  int daemons = 4, elements = 1 << 20, times = 20;
  paramshard::ReadCounts(argc, argv,
                         {{"DAEMONS", &daemons, 2, 64}, {"ELEMENTS", &elements, 1, 1 << 30}, {"TIMES", &times}});
  paramshard::server::Measure(daemons, elements, times);
}
