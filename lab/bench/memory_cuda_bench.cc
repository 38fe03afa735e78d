// Memory of GPUs: the daemon's own, and a model's, by class.
//
// Usage: memory_cuda_bench [GPUS] [BLOCKS]. Llama-3-8B blocks in FP8 with fp32 moments, bf16 gradients, gradients
// summed at the commit and at the push. Used bytes are the driver's count for the first GPU; differences exclude this
// process's own context. lab/bench/fsdp2_memory.py prints the same for PyTorch's FSDP2.

#include <cuda_runtime.h>

#include <cstdio>
#include <iostream>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/client.h"
#include "kernels/gpu/status.h"
#include "lab/bench/arguments.h"
#include "lab/bench/or_die.h"
#include "tests/support/daemon_process.h"
#include "tests/support/environment.h"

namespace paramshard {
namespace {

constexpr int64_t kBlockElements = 2 * 4096 * 4096 + 2 * 1024 * 4096 + 3 * 14336 * 4096;

ModelSpec Spec(int blocks, GradientSums sums) {
  ModelSpec spec;
  spec.name = "blocks";
  spec.gradient_sums = sums;
  for (int block = 0; block < blocks; ++block) {
    UnitSpec& unit = spec.units.emplace_back();
    unit.name = absl::StrCat("block", block);
    // One matrix of all the block's elements: memory does not depend on how they are divided.
    unit.parameters = {{.name = absl::StrCat(unit.name, ".w"),
                        .shape = {kBlockElements / 4096, 4096},
                        .encoding = {.format = Format::kFP8Block128x128},
                        .gradient_type = GradientType::kBF16,
                        .initial_value = {Initializer::kNormal, 0.0f, 0.02f}}};
  }
  return spec;
}

int64_t UsedBytes() {
  size_t available = 0;
  size_t total = 0;
  OrDie(gpu::ToStatus(cudaMemGetInfo(&available, &total), "memory"), "memory");
  return static_cast<int64_t>(total - available);
}

void Print(const char* what, int64_t bytes, int64_t elements) {
  std::cout << absl::StrFormat("%-44s %10.1f MiB", what, static_cast<double>(bytes) / (1 << 20));
  if (elements > 0) {
    std::cout << absl::StrFormat(" %7.2f bytes a parameter",
                                 static_cast<double>(bytes) / static_cast<double>(elements));
  }
  std::cout << std::endl;
}

void PrintClasses(const std::string& socket_dir) {
  const std::string command = absl::StrCat(test::Program(PARAMSHARDCTL), " --socket-dir=", socket_dir, " memory 2>&1");
  std::FILE* const output = popen(command.c_str(), "r");
  char line[512];
  while (output != nullptr && std::fgets(line, sizeof(line), output) != nullptr) std::cout << line;
  if (output != nullptr) pclose(output);
}

std::vector<Client> ConnectAll(const std::string& socket_dir, int gpus) {
  std::vector<Client> clients;
  for (int rank = 0; rank < gpus; ++rank) {
    clients.push_back(OrDie(Client::Connect({.rank = rank, .socket_dir = socket_dir}), "connect"));
  }
  return clients;
}

// Every rank's trainer is a thread of this process.
std::vector<std::optional<Model>> OpenAll(std::vector<Client>& clients, const ModelSpec& spec) {
  std::vector<std::optional<Model>> models(clients.size());
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < clients.size(); ++rank) {
    threads.emplace_back([&, rank] { models[rank].emplace(OrDie(clients[rank].OpenModel(spec), "open")); });
  }
  for (std::thread& thread : threads) thread.join();
  return models;
}

int Main(int gpus, int blocks) {
  for (int gpu = gpus - 1; gpu >= 0; --gpu) OrDie(gpu::ToStatus(cudaSetDevice(gpu), "open"), "open");
  const int64_t elements = kBlockElements * blocks;
  const test::TemporaryDirectory directory;
  std::vector<std::string> flags;
  for (int gpu = 0; gpu < gpus; ++gpu) flags.push_back(absl::StrCat("--device=cuda:", gpu));
  const int64_t alone = UsedBytes();
  const auto daemon =
      OrDie(test::DaemonProcess::Start(test::Program(PARAMSHARDD), directory.path(), flags), "start a daemon");
  std::cout << absl::StrFormat("%d GPUs, %d blocks: %.2f billion parameters; of GPU 0\n", gpus, blocks,
                               static_cast<double>(elements) / 1e9);
  Print("the daemon, without models", UsedBytes() - alone, 0);
  std::vector<Client> clients = ConnectAll(directory.path(), gpus);
  for (const GradientSums sums : {GradientSums::kAtPush, GradientSums::kAtCommit}) {
    const bool at_commit = sums == GradientSums::kAtCommit;
    const ModelSpec spec = Spec(blocks, sums);
    const int64_t before = UsedBytes();
    OrDie(clients[0].CreateModel(spec).status(), "create");
    Print(at_commit ? "model, sums at commit" : "model, sums at push", UsedBytes() - before, elements / gpus);
    {
      const std::vector<std::optional<Model>> models = OpenAll(clients, spec);
      Print("  and attached trainers' slots and receive memory", UsedBytes() - before, elements / gpus);
      PrintClasses(directory.path());
    }
    OrDie(clients[0].DeleteModel(spec.name), "delete");
    Print("  left when it is deleted", UsedBytes() - before, 0);
  }
  return 0;
}

}  // namespace
}  // namespace paramshard

int main(int argc, char** argv) {
  int gpus = 2;
  int blocks = 8;
  paramshard::ReadCounts(argc, argv, {{"GPUS", &gpus}, {"BLOCKS", &blocks}});
  paramshard::EndWithoutGpu();
  return paramshard::Main(gpus, blocks);
}
