// Gathers between GPUs: one daemon, a trainer process for each GPU, and NCCL between the same processes.
//
// Usage: gather_cuda_bench [GPUS] [ITERATIONS]. For each size, idle and while every trainer's GPU is saturated by
// matrix products of its own, in turns: time p50 and p99 over all ranks, and bus bandwidth (bytes that cross a GPU's
// links: (n - 1) / n of the gathered bytes) of
//
//   usable       from Gather to a word that the trainer's stream writes after WaitOn: own pieces and scales are in
//                place
//   arrived      from Gather until the host sees that the pieces of all other ranks are there
//   NCCL         from ncclAllGather to a word behind it: ordinary kernels
//   NCCL 0-CTA   the same by copy engines: in symmetric windows, in place
//
// Then how long the trainer's thread is in Gather, WaitOn and Release together, median: none of them waits for
// anything.

#include <cuda_runtime.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/client.h"
#include "client/cuda.h"
#include "kernels/gpu/memory.h"
#include "kernels/gpu/nccl.h"
#include "kernels/gpu/stream.h"
#include "kernels/gpu/word_operations.h"
#include "lab/bench/arguments.h"
#include "lab/bench/blas.h"
#include "lab/bench/nccl_rank.h"
#include "lab/bench/or_die.h"
#include "lab/bench/process_barrier.h"
#include "tests/support/daemon_process.h"
#include "tests/support/environment.h"

namespace paramshard {
namespace {

constexpr int kMaxGpus = 8;
constexpr int kMaxIterations = 1000;
constexpr int kWarmup = 10;
constexpr int kRounds = 2;
constexpr int kCallsAtOnce = 32;

double Microseconds() {
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

enum Arm { kUsable, kArrived, kNccl, kNcclZeroCta, kArmCount };
constexpr const char* kArmNames[] = {"usable", "arrived", "NCCL", "NCCL 0-CTA"};
constexpr const char* kLoadNames[] = {"idle", "saturated"};

// Memory that trainers share: a barrier, and their measurements of the current size.
struct Board {
  ProcessBarrier barrier;
  double times[2][kArmCount][kMaxGpus][kMaxIterations] = {};
  double calls[kMaxGpus] = {};
  ncclUniqueId ids[kArmCount] = {};
};

struct Size {
  std::string name;
  std::vector<std::pair<int64_t, int64_t>> matrices;  // rows, columns: one byte an element
  Placement placement = Placement::kCut;

  int64_t bytes() const {
    int64_t sum = 0;
    for (const auto& [rows, columns] : matrices) sum += rows * columns;
    return sum;
  }
};

// Every size is a unit: FP8 in 128x128 blocks.
std::vector<Size> Sizes() {
  std::vector<Size> sizes;
  for (const int64_t kib : {64, 256, 1024, 4096, 16384, 65536, 262144, 1048576}) {
    const std::string name = kib < 1024 ? absl::StrCat(kib, " KiB") : absl::StrCat(kib / 1024, " MiB");
    const int64_t columns = kib < 256 ? 128 : kib < 4096 ? 256 : 4096;
    sizes.push_back({name, {{kib * 1024 / columns, columns}}});
  }
  Size block{"Llama-3-8B block",
             {{4096, 4096}, {1024, 4096}, {1024, 4096}, {4096, 4096}, {14336, 4096}, {14336, 4096}, {4096, 14336}}};
  sizes.push_back(block);
  block.name = "owned block";
  block.placement = Placement::kOwned;
  sizes.push_back(block);
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
      parameter.placement = size.placement;
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

// Keeps the GPU busy with matrix products, from construction to destruction.
class Load {
 public:
  explicit Load(int gpu) : gpu_(gpu), stream_(OrDie(gpu::Stream::Create(gpu), "stream")), blas_(stream_.get()) {
    const int accessors[] = {gpu};
    operands_ = OrDie(gpu::DeviceMemory::Create(gpu, 3 * kSide * kSide * 2, accessors, false), "allocate");
    Multiply();
    OrDie(stream_.Synchronize(), "matrix product");  // its kernel is loaded
    thread_ = std::thread([this] { Run(); });
  }
  ~Load() {
    stopped_ = true;
    thread_.join();
  }

 private:
  static constexpr int64_t kSide = 8192;

  void Multiply() {
    uint8_t* const data = operands_.data();
    blas_.Multiply(kSide, kSide, kSide, data, data + kSide * kSide * 2, data + kSide * kSide * 4);
  }

  // Two products are enqueued at any time.
  void Run() {
    cudaSetDevice(gpu_);
    cudaEvent_t events[2];
    for (cudaEvent_t& event : events) cudaEventCreateWithFlags(&event, cudaEventBlockingSync | cudaEventDisableTiming);
    for (int i = 0; !stopped_; ++i) {
      cudaEventSynchronize(events[i % 2]);
      Multiply();
      cudaEventRecord(events[i % 2], stream_.get());
    }
    OrDie(stream_.Synchronize(), "matrix products");
  }

  const int gpu_;
  const gpu::Stream stream_;
  const Blas blas_;
  gpu::DeviceMemory operands_;
  std::atomic<bool> stopped_{false};
  std::thread thread_;
};

// Measurements of one rank.
class Rank {
 public:
  Rank(Model& model, int gpus, Board& board)
      : model_(model), gpus_(gpus), board_(board), stream_(OrDie(gpu::Stream::Create(model.gpu()), "stream")) {
    int64_t most = 0;
    for (const Size& size : Sizes()) most = std::max(most, size.bytes());
    for (const Arm arm : {kNccl, kNcclZeroCta}) {
      const NcclRank::Kind kind = arm == kNccl ? NcclRank::Kind::kKernels : NcclRank::Kind::kZeroCta;
      if (const absl::Status available = NcclRank::Available(kind); !available.ok()) {
        if (model.rank() == 0) std::cout << kArmNames[arm] << ": skipped, " << available.message() << std::endl;
        continue;
      }
      if (model.rank() == 0) board.ids[arm] = NcclRank::MakeId();
      board.barrier.Await(gpus);
      nccl_[arm] = std::make_unique<NcclRank>(kind, board.ids[arm], model.rank(), gpus);
      buffers_[arm] = nccl_[arm]->Allocate(most);
    }
  }

  bool Has(Arm arm) const { return arm == kUsable || arm == kArrived || nccl_[arm] != nullptr; }

  void Measure(const Size& size, Arm arm, int load, int first, int end) {
    for (int i = first - kWarmup; i < end; ++i) {
      board_.barrier.Await(gpus_);
      const double microseconds = Once(size, arm);
      if (i >= first) board_.times[load][arm][model_.rank()][i] = microseconds;
    }
  }

  void MeasureCalls(const Size& size, int iterations) {
    std::vector<double> microseconds;
    for (int i = 0; i < iterations; ++i) {
      // Before the stream's queue is full, where a call would wait.
      if (i % kCallsAtOnce == 0) AwaitStream();
      const double start = Microseconds();
      GatheredUnit unit = OrDie(model_.Gather(size.name, Phase::kForward), "gather");
      OrDie(cuda::WaitOn(unit, stream_.get()), "wait");
      OrDie(cuda::Release(unit, stream_.get()), "release");
      microseconds.push_back(Microseconds() - start);
    }
    std::sort(microseconds.begin(), microseconds.end());
    board_.calls[model_.rank()] = microseconds[microseconds.size() / 2];
    AwaitStream();
  }

 private:
  void AwaitStream() {
    usable_.Enqueue(stream_.get());
    usable_.Await();
    board_.barrier.Await(gpus_);
  }

  double Once(const Size& size, Arm arm) {
    const double start = Microseconds();
    if (arm == kUsable || arm == kArrived) return OwnOnce(size, arm, start);
    nccl_[arm]->AllGather(buffers_[arm], size.bytes() / gpus_, stream_.get());
    usable_.Enqueue(stream_.get());
    usable_.Await();
    return Microseconds() - start;
  }

  double OwnOnce(const Size& size, Arm arm, double start) {
    GatheredUnit unit = OrDie(model_.Gather(size.name, Phase::kForward), "gather");
    if (arm == kArrived) {
      while (!unit.Ready()) {
      }
      return Microseconds() - start;
    }
    OrDie(cuda::WaitOn(unit, stream_.get()), "wait");
    usable_.Enqueue(stream_.get());
    usable_.Await();
    const double microseconds = Microseconds() - start;
    OrDie(cuda::Release(unit, stream_.get()), "release");
    return microseconds;
  }

  Model& model_;
  const int gpus_;
  Board& board_;
  const gpu::Stream stream_;
  Flag usable_;
  std::unique_ptr<NcclRank> nccl_[kArmCount];
  uint8_t* buffers_[kArmCount] = {};
};

double Quantile(const double (&times)[kMaxGpus][kMaxIterations], int gpus, int iterations, double q) {
  std::vector<double> all;
  for (int rank = 0; rank < gpus; ++rank) all.insert(all.end(), times[rank], times[rank] + iterations);
  std::sort(all.begin(), all.end());
  return all[static_cast<size_t>(q * static_cast<double>(all.size() - 1))];
}

void Print(const Size& size, const Rank& rank, int gpus, int count, const Board& board) {
  for (int load = 0; load < 2; ++load) {
    for (int arm = 0; arm < kArmCount; ++arm) {
      if (!rank.Has(static_cast<Arm>(arm))) continue;
      const double median = Quantile(board.times[load][arm], gpus, count, 0.5);
      std::cout << absl::StrFormat("%-18s %-10s %-11s %10.1f %10.1f us %8.1f GB/s\n", size.name, kLoadNames[load],
                                   kArmNames[arm], median, Quantile(board.times[load][arm], gpus, count, 0.99),
                                   static_cast<double>(size.bytes()) * (gpus - 1) / gpus / median / 1e3);
    }
  }
  std::cout << absl::StrFormat("%-18s %.1f us in the calls of a gather\n", size.name,
                               *std::max_element(board.calls, board.calls + gpus));
  std::cout.flush();
}

void Train(const std::string& socket_dir, int gpus, int iterations, int rank_index, Board& board) {
  Client client = OrDie(Client::Connect({.rank = rank_index, .socket_dir = socket_dir, .prefetch = false}), "connect");
  Model model = OrDie(client.OpenModel(Spec()), "open");
  cudaSetDevice(model.gpu());
  Rank rank(model, gpus, board);
  for (const Size& size : Sizes()) {
    const int count = size.bytes() > (64 << 20) ? std::max(20, iterations / 4) : iterations;
    for (int round = 0; round < kRounds; ++round) {
      for (int load = 0; load < 2; ++load) {
        std::optional<Load> products;
        if (load == 1) products.emplace(model.gpu());
        for (int arm = 0; arm < kArmCount; ++arm) {
          if (!rank.Has(static_cast<Arm>(arm))) continue;
          rank.Measure(size, static_cast<Arm>(arm), load, count * round / kRounds, count * (round + 1) / kRounds);
        }
        board.barrier.Await(gpus);
      }
    }
    rank.MeasureCalls(size, count);
    if (rank_index == 0) Print(size, rank, gpus, count, board);
    board.barrier.Await(gpus);
  }
}

int Main(int gpus, int iterations) {
  gpu::SetNcclEnvironment();
  const test::TemporaryDirectory directory;
  std::vector<std::string> flags;
  for (int i = 0; i < gpus; ++i) flags.push_back(absl::StrCat("--device=cuda:", i));
  const test::DaemonProcess daemon =
      OrDie(test::DaemonProcess::Start(test::Program(PARAMSHARDD), directory.path(), flags), "start a daemon");
  auto* const board =
      new (mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)) Board;
  std::cout << absl::StrFormat("%d GPUs\n%-18s %-10s %-11s %10s %10s %16s\n", gpus, "gathered", "GPUs", "", "p50",
                               "p99", "bus bandwidth");
  std::cout.flush();
  std::vector<pid_t> trainers;
  for (int rank = 0; rank < gpus; ++rank) {
    const pid_t pid = fork();
    if (pid == 0) {
      Train(directory.path(), gpus, iterations, rank, *board);
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
  int gpus = 2;
  int iterations = 200;
  paramshard::ReadCounts(
      argc, argv,
      {{"GPUS", &gpus, 1, paramshard::kMaxGpus}, {"ITERATIONS", &iterations, 1, paramshard::kMaxIterations}});
  paramshard::EndWithoutGpu();
  return paramshard::Main(gpus, iterations);
}
