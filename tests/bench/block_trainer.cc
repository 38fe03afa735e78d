// A stand-in for a trainer: the matrix products of Llama-3-8B blocks, forward and backward, on every GPU, around the calls
// of the client library. What the calls cost is the difference between loops that run in turns.
//
// Usage: block_trainer [GPUS] [BLOCKS] [STEPS] [ROUNDS]. cuBLAS is loaded at run time: it is too large to carry along
// (LD_LIBRARY_PATH says where it is). Loops, each with the products of a whole step:
//
//   products              nothing else
//   gathers               + every block gathered for forward and for backward, two ahead of the products
//   gathers and pushes    + gradients written into slots by the products, pushed, and the step committed
//
// TFLOP/s are of the slowest rank; `of products` is their ratio to the first loop's, from medians over the rounds.

#include <cublas_v2.h>
#include <cuda_runtime.h>
#include <dlfcn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <iostream>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/client.h"
#include "client/cuda.h"
#include "kernels/gpu/memory.h"
#include "kernels/gpu/status.h"
#include "kernels/gpu/stream.h"
#include "tests/bench/or_die.h"
#include "tests/bench/process_barrier.h"
#include "tests/support/daemon_process.h"
#include "tests/support/environment.h"

namespace paramshard {
namespace {

constexpr int kMaxGpus = 8;
constexpr int kMaxRounds = 16;
constexpr int kTokens = 8192;
constexpr size_t kAhead = 2;

enum Loop { kProducts, kGathers, kPushes, kLoopCount };
constexpr const char* kLoopNames[] = {"products", "gathers", "gathers and pushes"};

struct Weight {
  const char* name;
  int64_t rows;
  int64_t columns;
};
constexpr Weight kWeights[] = {{"q", 4096, 4096},     {"k", 1024, 4096},   {"v", 1024, 4096},    {"o", 4096, 4096},
                               {"gate", 14336, 4096}, {"up", 14336, 4096}, {"down", 4096, 14336}};

// The functions of cuBLAS that are used here.
class Blas {
 public:
  explicit Blas(cudaStream_t stream) {
    void* const library = dlopen("libcublas.so.13", RTLD_NOW);
    if (library == nullptr) OrDie(absl::NotFoundError(dlerror()), "load cuBLAS");
    const auto create = reinterpret_cast<decltype(&cublasCreate_v2)>(dlsym(library, "cublasCreate_v2"));
    const auto set_stream = reinterpret_cast<decltype(&cublasSetStream_v2)>(dlsym(library, "cublasSetStream_v2"));
    multiply_ = reinterpret_cast<MultiplyFunction*>(dlsym(library, "cublasGemmEx"));
    if (create == nullptr || set_stream == nullptr || multiply_ == nullptr ||
        create(&handle_) != CUBLAS_STATUS_SUCCESS || set_stream(handle_, stream) != CUBLAS_STATUS_SUCCESS) {
      OrDie(absl::InternalError("cublasCreate failed"), "load cuBLAS");
    }
  }

  // c (m x n) = a (m x k) times b (k x n), all bf16, in any layout: only the time counts.
  void Multiply(int64_t m, int64_t n, int64_t k, const void* a, const void* b, void* c) const {
    const float one = 1;
    const float zero = 0;
    const cublasStatus_t status =
        multiply_(handle_, CUBLAS_OP_N, CUBLAS_OP_N, static_cast<int>(m), static_cast<int>(n), static_cast<int>(k),
                  &one, a, CUDA_R_16BF, static_cast<int>(m), b, CUDA_R_16BF, static_cast<int>(k), &zero, c, CUDA_R_16BF,
                  static_cast<int>(m), CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
    if (status != CUBLAS_STATUS_SUCCESS) OrDie(absl::InternalError(absl::StrCat("status ", status)), "matrix product");
  }

 private:
  // cublasGemmEx, which the header overloads.
  using MultiplyFunction = cublasStatus_t(cublasHandle_t, cublasOperation_t, cublasOperation_t, int, int, int,
                                          const void*, const void*, cudaDataType, int, const void*, cudaDataType, int,
                                          const void*, void*, cudaDataType, int, cublasComputeType_t, cublasGemmAlgo_t);

  cublasHandle_t handle_ = nullptr;
  MultiplyFunction* multiply_ = nullptr;
};

ModelSpec Spec(int blocks) {
  ModelSpec spec;
  spec.name = "blocks";
  spec.gather_slots = 4;
  for (int block = 0; block < blocks; ++block) {
    UnitSpec unit;
    unit.name = absl::StrCat("block", block);
    for (const Weight& weight : kWeights) {
      ParameterSpec& parameter = unit.parameters.emplace_back();
      parameter.name = absl::StrCat(unit.name, ".", weight.name);
      parameter.shape = {weight.rows, weight.columns};
      parameter.encoding.format = Format::kFP8Block128x128;
      parameter.gradient_type = GradientType::kBF16;
      parameter.initial_value = {Initializer::kNormal, 0.0f, 0.02f};
    }
    spec.units.push_back(std::move(unit));
  }
  return spec;
}

// What the processes share.
struct Board {
  ProcessBarrier barrier;
  double seconds[kLoopCount][kMaxRounds][kMaxGpus] = {};
};

class Trainer {
 public:
  Trainer(Model model, int blocks)
      : model_(std::move(model)),
        blocks_(blocks),
        compute_(OrDie(gpu::Stream::Create(model_.gpu()), "stream")),
        prefetch_(OrDie(gpu::Stream::Create(model_.gpu()), "stream")),
        blas_(compute_.get()) {
    const int accessors[] = {model_.gpu()};
    const auto allocate = [&](int64_t elements) {
      return OrDie(gpu::DeviceMemory::Create(model_.gpu(), elements * 2, accessors, false), "allocate");
    };
    activations_ = allocate(int64_t{kTokens} * 14336);
    outputs_ = allocate(int64_t{kTokens} * 14336);
    weights_ = allocate(int64_t{14336} * 4096);
    gradient_ = allocate(int64_t{14336} * 4096);
    Randomize(activations_);
    Randomize(weights_);
  }

  double Run(Loop loop, int steps) {
    OrDie(compute_.Synchronize(), "synchronize");
    cudaEvent_t begin, end;
    cudaEventCreate(&begin);
    cudaEventCreate(&end);
    cudaEventRecord(begin, compute_.get());
    for (int step = 0; step < steps; ++step) Step(loop);
    cudaEventRecord(end, compute_.get());
    OrDie(gpu::ToStatus(cudaEventSynchronize(end), "train"), "train");
    float milliseconds = 0;
    cudaEventElapsedTime(&milliseconds, begin, end);
    return milliseconds / 1e3 / steps;
  }

  // Of one step: a product forward and two backward for every weight.
  double Operations() const {
    double sum = 0;
    for (const Weight& weight : kWeights) sum += 6.0 * kTokens * static_cast<double>(weight.rows * weight.columns);
    return sum * blocks_;
  }

 private:
  // Of small integers: real products draw the power of random bits.
  void Randomize(const gpu::DeviceMemory& memory) {
    std::vector<uint16_t> values(memory.size_bytes() / 2);
    uint32_t state = 1;
    for (uint16_t& value : values) {
      state = state * 1664525u + 1013904223u;
      value = static_cast<uint16_t>(0x3c00u + (state >> 16 & 0x83ffu));
    }
    OrDie(gpu::ToStatus(cudaMemcpy(memory.data(), values.data(), memory.size_bytes(), cudaMemcpyHostToDevice), "copy"),
          "fill");
    OrDie(gpu::ToStatus(cudaDeviceSynchronize(), "copy"), "fill");
  }

  struct Planned {
    int block;
    Phase phase;
  };

  // Keeps `kAhead` gathers in front of the one that is computed with.
  void Prefetch(std::deque<GatheredUnit>& units, const std::vector<Planned>& plan, size_t& next) {
    while (units.size() <= kAhead && next < plan.size()) {
      const Planned& planned = plan[next++];
      units.push_back(OrDie(model_.Gather(absl::StrCat("block", planned.block), planned.phase), "gather"));
      OrDie(cuda::WaitOn(units.back(), prefetch_.get()), "wait");
    }
  }

  void Step(Loop loop) {
    std::vector<Planned> plan;
    for (int block = 0; block < blocks_; ++block) plan.push_back({block, Phase::kForward});
    for (int block = blocks_ - 1; block >= 0; --block) plan.push_back({block, Phase::kBackward});
    std::deque<GatheredUnit> units;
    size_t next = 0;
    for (const Planned& planned : plan) {
      if (loop != kProducts) {
        Prefetch(units, plan, next);
        OrDie(cuda::WaitOn(units.front(), compute_.get()), "wait");
      }
      planned.phase == Phase::kForward ? Forward() : Backward(planned.block, loop);
      if (loop != kProducts) {
        OrDie(cuda::Release(units.front(), compute_.get()), "release");
        units.pop_front();
      }
    }
    if (loop == kPushes) OrDie(model_.Commit({.learning_rate = 1e-4f, .max_grad_norm = 1.0f}).status(), "commit");
  }

  void Forward() const {
    for (const Weight& weight : kWeights) {
      blas_.Multiply(kTokens, weight.rows, weight.columns, activations_.data(), weights_.data(), outputs_.data());
    }
  }

  void Backward(int block, Loop loop) {
    std::optional<UnitGradients> gradients;
    const std::string unit = absl::StrCat("block", block);
    if (loop == kPushes) gradients = OrDie(cuda::Gradients(model_, unit, compute_.get()), "gradients");
    for (const Weight& weight : kWeights) {
      blas_.Multiply(kTokens, weight.columns, weight.rows, activations_.data(), weights_.data(), outputs_.data());
      void* gradient = gradient_.data();
      if (gradients.has_value()) {
        gradient = OrDie(gradients->Get(absl::StrCat(unit, ".", weight.name)), "gradient").data.data();
      }
      blas_.Multiply(weight.columns, weight.rows, kTokens, activations_.data(), outputs_.data(), gradient);
    }
    if (gradients.has_value()) OrDie(cuda::Push(*gradients, compute_.get()), "push");
  }

  Model model_;
  const int blocks_;
  const gpu::Stream compute_, prefetch_;
  const Blas blas_;
  gpu::DeviceMemory activations_, outputs_, weights_, gradient_;
};

void Train(const std::string& socket_dir, int rank, int gpus, int blocks, int steps, int rounds, Board& board) {
  Client client = OrDie(Client::Connect({.rank = rank, .socket_dir = socket_dir, .prefetch = false}), "connect");
  Model model = OrDie(client.OpenModel(Spec(blocks)), "open");
  OrDie(gpu::ToStatus(cudaSetDevice(model.gpu()), "choose a GPU"), "choose a GPU");
  Trainer trainer(std::move(model), blocks);
  for (int loop = 0; loop < kLoopCount; ++loop) trainer.Run(static_cast<Loop>(loop), 2);
  for (int round = 0; round < rounds; ++round) {
    for (int loop = 0; loop < kLoopCount; ++loop) {
      board.barrier.Await(gpus);
      board.seconds[loop][round][rank] = trainer.Run(static_cast<Loop>(loop), steps);
    }
  }
  board.barrier.Await(gpus);
  if (rank != 0) return;
  double first = 0;
  for (int loop = 0; loop < kLoopCount; ++loop) {
    std::vector<double> slowest;
    for (int round = 0; round < rounds; ++round) {
      slowest.push_back(*std::max_element(board.seconds[loop][round], board.seconds[loop][round] + gpus));
    }
    std::sort(slowest.begin(), slowest.end());
    const double median = slowest[slowest.size() / 2];
    if (loop == kProducts) first = median;
    std::cout << absl::StrFormat("%-20s %8.2f ms a step %8.1f TFLOP/s %7.2f %% of products  (%.2f .. %.2f ms)\n",
                                 kLoopNames[loop], median * 1e3, trainer.Operations() / median / 1e12,
                                 100 * first / median, slowest.front() * 1e3, slowest.back() * 1e3);
  }
}

int Main(int gpus, int blocks, int steps, int rounds) {
  const test::TemporaryDirectory directory;
  std::vector<std::string> flags;
  for (int i = 0; i < gpus; ++i) flags.push_back(absl::StrCat("--device=cuda:", i));
  const test::DaemonProcess daemon =
      OrDie(test::DaemonProcess::Start(test::Program(PARAMSHARDD), directory.path(), flags), "start a daemon");
  auto* const board =
      new (mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)) Board;
  std::cout << absl::StrFormat("%d GPUs, %d blocks, %d tokens\n", gpus, blocks, kTokens);
  std::cout.flush();
  std::vector<pid_t> trainers;
  for (int rank = 0; rank < gpus; ++rank) {
    const pid_t pid = fork();
    if (pid == 0) {
      Train(directory.path(), rank, gpus, blocks, steps, rounds, *board);
      std::cout.flush();
      std::_Exit(0);
    }
    trainers.push_back(pid);
  }
  int failed = 0;
  for (const pid_t pid : trainers) failed += OrDie(test::AwaitChild(pid, absl::Minutes(5)), "await a trainer") != 0;
  std::cout << absl::StrFormat("daemon: %.1f s of CPU\n", absl::ToDoubleSeconds(daemon.CpuTime()));
  return failed == 0 ? 0 : 1;
}

}  // namespace
}  // namespace paramshard

int main(int argc, char** argv) {
  const auto argument = [&](int index, int otherwise) { return argc > index ? std::atoi(argv[index]) : otherwise; };
  const int gpus = argument(1, 2);
  const int rounds = argument(4, 5);
  if (gpus < 1 || gpus > paramshard::kMaxGpus || rounds < 1 || rounds > paramshard::kMaxRounds) {
    std::cerr << "usage: block_trainer [GPUS] [BLOCKS] [STEPS] [ROUNDS]\n";
    return 2;
  }
  if (!paramshard::test::HasGpuDriver()) {
    std::cout << "skipped: no GPU here\n";
    return 0;
  }
  return paramshard::Main(gpus, argument(2, 4), argument(3, 4), rounds);
}
