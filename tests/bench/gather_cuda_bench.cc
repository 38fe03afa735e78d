// Gathers between GPUs: one daemon, a trainer process for each GPU, from the client's call to bytes usable on its stream.
//
// Usage: gather_cuda_bench [GPUS] [ITERATIONS]. Prints a row for each size: time p50 and p99 over all ranks, bus bandwidth
// (bytes that cross a GPU's links: (n - 1) / n of the gathered bytes) and the trainer's CPU time for each gather when it
// issues them back to back.

#include <cuda_runtime.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/client.h"
#include "client/cuda.h"
#include "kernels/gpu/memory.h"
#include "kernels/gpu/stream.h"
#include "kernels/gpu/word_operations.h"
#include "tests/bench/or_die.h"
#include "tests/bench/process_barrier.h"
#include "tests/support/daemon_process.h"
#include "tests/support/environment.h"

namespace paramshard {
namespace {

constexpr int kMaxGpus = 8;
constexpr int kMaxIterations = 1000;
constexpr int kWarmup = 20;

double Microseconds() {
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double CpuMicroseconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto of = [](const timeval& t) { return 1e6 * static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec); };
  return of(usage.ru_utime) + of(usage.ru_stime);
}

// What trainers share: a barrier, and their measurements.
struct Board {
  ProcessBarrier barrier;
  double times[kMaxGpus][kMaxIterations] = {};
  double cpu[kMaxGpus] = {};
};

struct Size {
  std::string name;
  std::vector<std::pair<int64_t, int64_t>> matrices;  // rows, columns: one byte an element

  int64_t bytes() const {
    int64_t sum = 0;
    for (const auto& [rows, columns] : matrices) sum += rows * columns;
    return sum;
  }
};

// Every size is a unit: FP8 in 128x128 blocks.
std::vector<Size> Sizes() {
  std::vector<Size> sizes;
  for (const int64_t kib : {256, 1024, 4096, 16384, 65536, 262144, 1048576}) {
    const std::string name = kib < 1024 ? absl::StrCat(kib, " KiB") : absl::StrCat(kib / 1024, " MiB");
    const int64_t columns = kib < 4096 ? 256 : 4096;
    sizes.push_back({name, {{kib * 1024 / columns, columns}}});
  }
  sizes.push_back(
      {"Llama-3-8B block",
       {{4096, 4096}, {1024, 4096}, {1024, 4096}, {4096, 4096}, {14336, 4096}, {14336, 4096}, {4096, 14336}}});
  return sizes;
}

ModelSpec Spec() {
  ModelSpec spec;
  spec.name = "gathers";
  spec.small_parameter_bytes = 0;
  spec.gather_slots = 3;
  spec.gradient_slots = 1;
  for (const Size& size : Sizes()) {
    UnitSpec unit;
    unit.name = size.name;
    for (const auto& [rows, columns] : size.matrices) {
      ParameterSpec& parameter = unit.parameters.emplace_back();
      parameter.name = absl::StrCat(size.name, ".", unit.parameters.size());
      parameter.shape = {rows, columns};
      parameter.encoding.format = Format::kFP8Block128x128;
      parameter.gradient_type = GradientType::kBF16;
      parameter.exp_avg_type = MomentType::kBF16;
      parameter.exp_avg_sq_type = MomentType::kBF16;
      parameter.initial_value = {Initializer::kNormal, 0.0f, 1.0f};
    }
    spec.units.push_back(std::move(unit));
  }
  return spec;
}

// A word that a stream writes and this process reads.
class Flag {
 public:
  Flag() {
    page_ = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    registration_ = OrDie(gpu::HostRegistration::Register(page_, 4096), "register a page");
  }
  void Enqueue(cudaStream_t stream) {
    operations_.Write(page_, ++value_);
    OrDie(operations_.Enqueue(stream), "write a word");
  }
  void Await() const {
    while (static_cast<std::atomic<uint32_t>*>(page_)->load(std::memory_order_acquire) != value_) {
    }
  }

 private:
  void* page_;
  gpu::HostRegistration registration_;
  gpu::WordOperations operations_;
  uint32_t value_ = 0;
};

void Measure(Model& model, const Size& size, int gpus, int iterations, cudaStream_t stream, Flag& usable,
             Board& board) {
  const int rank = model.rank();
  for (int i = -kWarmup; i < iterations; ++i) {
    board.barrier.Await(gpus);
    const double start = Microseconds();
    GatheredUnit unit = OrDie(model.Gather(size.name, Phase::kForward), "gather");
    OrDie(cuda::WaitOn(unit, stream), "wait");
    usable.Enqueue(stream);
    usable.Await();
    if (i >= 0) board.times[rank][i] = Microseconds() - start;
    OrDie(cuda::Release(unit, stream), "release");
  }
  board.barrier.Await(gpus);
  const double cpu = CpuMicroseconds();
  for (int i = 0; i < iterations; ++i) {
    GatheredUnit unit = OrDie(model.Gather(size.name, Phase::kForward), "gather");
    OrDie(cuda::WaitOn(unit, stream), "wait");
    OrDie(cuda::Release(unit, stream), "release");
  }
  board.cpu[rank] = (CpuMicroseconds() - cpu) / iterations;
  usable.Enqueue(stream);
  usable.Await();
  board.barrier.Await(gpus);
}

double Quantile(const Board& board, int gpus, int iterations, double q) {
  std::vector<double> all;
  for (int rank = 0; rank < gpus; ++rank) {
    all.insert(all.end(), board.times[rank], board.times[rank] + iterations);
  }
  std::sort(all.begin(), all.end());
  return all[static_cast<size_t>(q * static_cast<double>(all.size() - 1))];
}

void Train(const std::string& socket_dir, int rank, int gpus, int iterations, Board& board) {
  Client client = OrDie(Client::Connect({.rank = rank, .socket_dir = socket_dir, .prefetch = false}), "connect");
  Model model = OrDie(client.OpenModel(Spec()), "open");
  cudaSetDevice(model.gpu());
  const gpu::Stream stream = OrDie(gpu::Stream::Create(model.gpu()), "stream");
  Flag usable;
  for (const Size& size : Sizes()) {
    const int count = size.bytes() > (64 << 20) ? std::max(20, iterations / 4) : iterations;
    Measure(model, size, gpus, count, stream.get(), usable, board);
    if (rank == 0) {
      const double median = Quantile(board, gpus, count, 0.5);
      std::cout << absl::StrFormat("%-18s %10.1f %10.1f us %8.1f GB/s %8.1f us CPU\n", size.name, median,
                                   Quantile(board, gpus, count, 0.99),
                                   static_cast<double>(size.bytes()) * (gpus - 1) / gpus / median / 1e3,
                                   *std::max_element(board.cpu, board.cpu + gpus));
      std::cout.flush();
    }
    board.barrier.Await(gpus);
  }
}

int Main(int gpus, int iterations) {
  const test::TemporaryDirectory directory;
  std::vector<std::string> flags;
  for (int i = 0; i < gpus; ++i) flags.push_back(absl::StrCat("--device=cuda:", i));
  const test::DaemonProcess daemon =
      OrDie(test::DaemonProcess::Start(test::Program(PARAMSHARDD), directory.path(), flags), "start a daemon");
  auto* const board =
      new (mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)) Board;
  std::cout << absl::StrFormat("%d GPUs\n%-18s %10s %10s %16s %12s\n", gpus, "gathered", "p50", "p99", "bus bandwidth",
                               "a gather");
  std::cout.flush();
  std::vector<pid_t> trainers;
  for (int rank = 0; rank < gpus; ++rank) {
    const pid_t pid = fork();
    if (pid == 0) {
      Train(directory.path(), rank, gpus, iterations, *board);
      std::_Exit(0);
    }
    trainers.push_back(pid);
  }
  int failed = 0;
  for (const pid_t pid : trainers) failed += OrDie(test::AwaitChild(pid, absl::Minutes(10)), "await a trainer") != 0;
  return failed == 0 ? 0 : 1;
}

}  // namespace
}  // namespace paramshard

int main(int argc, char** argv) {
  const int gpus = argc > 1 ? std::atoi(argv[1]) : 2;
  const int iterations = argc > 2 ? std::atoi(argv[2]) : 200;
  if (gpus < 1 || gpus > paramshard::kMaxGpus || iterations < 1 || iterations > paramshard::kMaxIterations) {
    std::cerr << "usage: gather_cuda_bench [GPUS] [ITERATIONS]\n";
    return 2;
  }
  if (!paramshard::test::HasGpuDriver()) {
    std::cout << "skipped: no GPU here\n";
    return 0;
  }
  return paramshard::Main(gpus, iterations);
}
