// Bytes of every format and state: gathered bytes, as the client counts them, and the daemon's memory, by class.
//
// Usage: footprint_bench [RANKS]. The shapes of a Llama-3-8B block on cpu devices; all figures are bytes an element.
// Prints the tables of docs/reference/formats.md.

#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/client.h"
#include "client/ctl/admin_client.h"
#include "kernels/formats/format.h"
#include "kernels/optim/moment.h"
#include "lab/bench/arguments.h"
#include "lab/bench/or_die.h"
#include "tests/support/daemon_process.h"
#include "tests/support/environment.h"

namespace paramshard {
namespace {

struct MatrixSize {
  const char* name;
  int64_t rows;
  int64_t columns;
};

constexpr MatrixSize kBlock[] = {{"q", 4096, 4096}, {"k", 1024, 4096}, {"gate", 14336, 4096}, {"down", 4096, 14336}};

// How parameters are stored.
struct Storage {
  Format format = Format::kFP32;
  MomentType moments = MomentType::kFP32;
  MasterType master = MasterType::kFP32;
};

ModelSpec Spec(const Storage& storage, bool reshard_after_forward) {
  ModelSpec spec;
  spec.name = "block";
  spec.gather_slots = 1;
  spec.gradient_slots = 1;
  UnitSpec& unit = spec.units.emplace_back();
  unit.name = "block";
  unit.reshard_after_forward = reshard_after_forward;
  for (const MatrixSize& matrix : kBlock) {
    unit.parameters.push_back({.name = matrix.name,
                               .shape = {matrix.rows, matrix.columns},
                               .encoding = {.format = storage.format},
                               .exp_avg_type = storage.moments,
                               .exp_avg_sq_type = storage.moments,
                               .master_type = storage.master});
  }
  return spec;
}

int64_t Elements() {
  int64_t elements = 0;
  for (const MatrixSize& matrix : kBlock) elements += matrix.rows * matrix.columns;
  return elements;
}

int64_t GatheredBytes(Model& model, Phase phase) {
  const int64_t before = model.gathered_bytes();
  GatheredUnit unit = OrDie(model.Gather("block", phase), "gather");
  OrDie(unit.Wait(), "wait");
  return model.gathered_bytes() - before;
}

// Trains; rank 0 fills in the gathered bytes.
void Train(const std::string& socket_dir, int rank, const ModelSpec& spec, const std::vector<Phase>& phases,
           std::map<Phase, int64_t>& gathered) {
  Client client = OrDie(Client::Connect({.rank = rank, .socket_dir = socket_dir, .prefetch = false}), "connect");
  Model model = OrDie(client.OpenModel(spec), "open");
  for (const Phase phase : phases) {
    const int64_t bytes = GatheredBytes(model, phase);
    if (rank == 0) gathered[phase] = bytes;
  }
  // Not before all ranks have gathered: the first to leave ends the epoch.
  OrDie(OrDie(model.Commit({}), "commit").Wait().status(), "commit");
}

void Gather(const std::string& socket_dir, int ranks, const ModelSpec& spec, const std::vector<Phase>& phases,
            std::map<Phase, int64_t>& gathered) {
  std::vector<std::thread> trainers;
  for (int rank = 0; rank < ranks; ++rank) {
    trainers.emplace_back([&, rank] { Train(socket_dir, rank, spec, phases, gathered); });
  }
  for (std::thread& trainer : trainers) trainer.join();
}

// By class of memory, over all ranks.
std::map<std::string, int64_t> Held(const std::string& socket_dir) {
  ctl::AdminClient admin = OrDie(ctl::AdminClient::Connect({.socket_dir = socket_dir}), "connect");
  v1::GetMemoryResponse memory;
  OrDie(admin.Call(&ctl::AdminClient::Stub::GetMemory, v1::GetMemoryRequest(), memory), "memory");
  std::map<std::string, int64_t> held;
  for (const v1::MemoryUse& use : memory.uses()) held[use.memory_class()] += use.size_bytes();
  return held;
}

// Measures the daemon's memory of a model without trainers.
std::map<std::string, int64_t> MeasureHeld(const std::string& socket_dir, const Storage& storage) {
  Client client = OrDie(Client::Connect({.rank = 0, .socket_dir = socket_dir}), "connect");
  OrDie(client.CreateModel(Spec(storage, true)).status(), "create");
  const std::map<std::string, int64_t> held = Held(socket_dir);
  OrDie(client.DeleteModel("block"), "delete");
  return held;
}

std::map<Phase, int64_t> MeasureGathered(const std::string& socket_dir, int ranks, Format format) {
  Client client = OrDie(Client::Connect({.rank = 0, .socket_dir = socket_dir}), "connect");
  std::map<Phase, int64_t> gathered;
  Gather(socket_dir, ranks, Spec({.format = format}, true), {Phase::kForward, Phase::kBackward}, gathered);
  OrDie(client.DeleteModel("block"), "delete");
  Gather(socket_dir, ranks, Spec({.format = format}, false), {Phase::kBoth}, gathered);
  OrDie(client.DeleteModel("block"), "delete");
  return gathered;
}

std::string MomentName(MomentType type) { return absl::AsciiStrToLower(MomentTypeName(type)); }

double PerElement(int64_t bytes) { return static_cast<double>(bytes) / static_cast<double>(Elements()); }

void PrintGathered(Format format, const std::map<Phase, int64_t>& gathered) {
  std::cout << "| " << FormatName(format);
  for (const Phase phase : {Phase::kForward, Phase::kBackward, Phase::kBoth}) {
    std::cout << absl::StrFormat(" | %.4f", PerElement(gathered.at(phase)));
  }
  std::cout << " |" << std::endl;
}

void PrintHeld(const Storage& storage, const std::map<std::string, int64_t>& held) {
  std::cout << "| " << FormatName(storage.format) << " | "
            << (storage.master == MasterType::kFP32 ? "fp32" : "bf16 + remainder") << " | "
            << MomentName(storage.moments);
  int64_t state = 0;
  for (const char* memory_class : {"planes", "master", "exp_avg", "exp_avg_sq"}) {
    state += held.at(memory_class);
    std::cout << absl::StrFormat(" | %.3f", PerElement(held.at(memory_class)));
  }
  std::cout << absl::StrFormat(" | %.3f | %.3f |", PerElement(state), PerElement(held.at("gradients"))) << std::endl;
}

int Main(int ranks) {
  const test::TemporaryDirectory directory;
  std::vector<std::string> flags = {"--log-level=error"};
  for (int i = 0; i < ranks; ++i) flags.push_back(absl::StrCat("--device=cpu:", i));
  const test::DaemonProcess daemon =
      OrDie(test::DaemonProcess::Start(test::Program(PARAMSHARDD), directory.path(), flags), "start a daemon");
  std::cout << "| format | forward | backward | both at once |\n| --- | --- | --- | --- |" << std::endl;
  for (const FormatTraits& traits : kFormats) {
    PrintGathered(traits.format, MeasureGathered(directory.path(), ranks, traits.format));
  }
  std::cout << "\n| format | master | moments | planes | master | exp_avg | exp_avg_sq | together | gradients |\n"
            << "| --- | --- | --- | --- | --- | --- | --- | --- | --- |" << std::endl;
  for (const FormatTraits& traits : kFormats) {
    const Format format = traits.format;
    for (const MomentType moments : kMomentTypes) {
      // Moments take the same bytes beside every format.
      const bool shown = moments == MomentType::kFP32 || moments == MomentType::kBF16 || format == Format::kMXFP8 ||
                         format == Format::kNVFP4_2D;
      const Storage storage = {.format = format, .moments = moments};
      if (shown) PrintHeld(storage, MeasureHeld(directory.path(), storage));
    }
  }
  for (const MomentType moments : {MomentType::kFP32, MomentType::kBF16, MomentType::kFP8}) {
    const Storage storage = {Format::kBF16, moments, MasterType::kBF16Remainder};
    PrintHeld(storage, MeasureHeld(directory.path(), storage));
  }
  return 0;
}

}  // namespace
}  // namespace paramshard

int main(int argc, char** argv) {
  int ranks = 2;
  paramshard::ReadCounts(argc, argv, {{"RANKS", &ranks, 1, 8}});
  return paramshard::Main(ranks);
}
