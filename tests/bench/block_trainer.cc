// A stand-in for a trainer: the matrix products of Llama-3-8B blocks, forward and backward, on every GPU, around what moves
// weights and gradients. What that costs is the difference between loops that run in turns.
//
// Usage: block_trainer [GPUS] [BLOCKS] [STEPS] [ROUNDS] [LOOPS]. cuBLAS is loaded at run time: it is too large to carry along
// (LD_LIBRARY_PATH says where it is), and so is NCCL ($PARAMSHARD_NCCL_LIBRARY). Loops, each with the products of a whole
// step; LOOPS are their letters (without: all):
//
//   0  products        nothing else
//   g  gathers         + every block gathered for forward and for backward, two ahead of the products
//   p  sums at push    + gradients written into slots by the products, pushed, and the step committed
//   c  sums at commit  the same with ModelSpec::gradient_sums = kAtCommit
//   b  NCCL bf16       all-gathers of bf16 weights, bf16 reduce-scatters and AdamW in the trainer's own process
//   f  NCCL FP8        the same with all-gathers of FP8 weights
//   a  gathers alone   no products: how fast gathers of FP8 weights follow each other, two ahead
//   n  NCCL alone      NCCL's all-gathers of FP8 weights likewise
//
// Times are of the slowest rank, medians over the rounds; `of products` is the ratio to the first loop's. `between steps` is
// the time from a step's last product to the next one's first, of the rank that has the least of it (the others wait for that
// one as well): what of commit and first gather is exposed. `daemon` is what the
// daemon uses of a core meanwhile.

#include <cuda_runtime.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "client/client.h"
#include "kernels/gpu/memory.h"
#include "kernels/gpu/nccl.h"
#include "kernels/gpu/status.h"
#include "kernels/gpu/stream.h"
#include "tests/bench/blas.h"
#include "tests/bench/block_calls.h"
#include "tests/bench/nccl_rank.h"
#include "tests/bench/or_die.h"
#include "tests/bench/process_barrier.h"
#include "tests/support/daemon_process.h"
#include "tests/support/environment.h"

namespace paramshard {
namespace {

constexpr int kMaxGpus = 8;
constexpr int kMaxRounds = 16;
constexpr int kTokens = 8192;
constexpr absl::Duration kIdle = absl::Seconds(2);

enum Loop {
  kProducts,
  kGathers,
  kSumsAtPush,
  kSumsAtCommit,
  kNcclBF16,
  kNcclFP8,
  kGathersAlone,
  kNcclAlone,
  kLoopCount
};
constexpr const char* kLoopNames[] = {"products",  "gathers",  "sums at push",  "sums at commit",
                                      "NCCL bf16", "NCCL FP8", "gathers alone", "NCCL alone"};
constexpr char kLoopLetters[] = "0gpcbfan";

bool IsNccl(Loop loop) { return loop == kNcclBF16 || loop == kNcclFP8 || loop == kNcclAlone; }
bool IsAlone(Loop loop) { return loop == kGathersAlone || loop == kNcclAlone; }

struct Arguments {
  int gpus = 2;
  int blocks = 4;
  int steps = 4;
  int rounds = 5;
  std::string loops = kLoopLetters;

  bool Has(Loop loop) const { return loops.find(kLoopLetters[loop]) != std::string::npos; }
  bool HasNccl() const { return Has(kNcclBF16) || Has(kNcclFP8) || Has(kNcclAlone); }
};

ModelSpec Spec(int blocks, GradientSums sums) {
  ModelSpec spec;
  spec.name = sums == GradientSums::kAtPush ? "sums-at-push" : "sums-at-commit";
  spec.gradient_sums = sums;
  spec.gather_slots = 4;
  for (int block = 0; block < blocks; ++block) {
    UnitSpec unit;
    unit.name = absl::StrCat("block", block);
    for (const BlockWeight& weight : kBlockWeights) {
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

// Of a step.
struct StepTimes {
  double seconds = 0;
  double between_steps = 0;  // seconds too
};

// What the processes share.
struct Board {
  ProcessBarrier barrier;
  StepTimes times[kLoopCount][kMaxRounds][kMaxGpus] = {};
  ncclUniqueId ids[2 * kLoopCount] = {};
};

// A moment on a stream.
class Event {
 public:
  Event() { cudaEventCreate(&event_); }
  Event(Event&& other) noexcept : event_(std::exchange(other.event_, nullptr)) {}
  ~Event() {
    if (event_ != nullptr) cudaEventDestroy(event_);
  }
  void Record(cudaStream_t stream) { cudaEventRecord(event_, stream); }
  double SecondsSince(const Event& earlier) const {
    float milliseconds = 0;
    OrDie(gpu::ToStatus(cudaEventElapsedTime(&milliseconds, earlier.event_, event_), "measure"), "measure");
    return milliseconds / 1e3;
  }

 private:
  cudaEvent_t event_ = nullptr;
};

// The products, with their operands.
class Trainer {
 public:
  Trainer(int gpu, int blocks)
      : plan_(PlanStep(blocks)), compute_(OrDie(gpu::Stream::Create(gpu), "stream")), blas_(compute_.get()) {
    const int accessors[] = {gpu};
    const auto allocate = [&](int64_t elements) {
      return OrDie(gpu::DeviceMemory::Create(gpu, elements * 2, accessors, false), "allocate");
    };
    activations_ = allocate(int64_t{kTokens} * 14336);
    outputs_ = allocate(int64_t{kTokens} * 14336);
    weights_ = allocate(int64_t{14336} * 4096);
    gradient_ = allocate(int64_t{14336} * 4096);
    Randomize(activations_);
    Randomize(weights_);
  }

  cudaStream_t stream() const { return compute_.get(); }

  // Without products of gathers only.
  StepTimes Run(BlockCalls& calls, int steps, bool products) {
    OrDie(compute_.Synchronize(), "synchronize");
    std::vector<Event> ends(steps), begins(steps);
    Event begin, end;
    begin.Record(stream());
    for (int step = 0; step < steps; ++step) Step(calls, products, begins[step], ends[step]);
    calls.Finish();
    end.Record(stream());
    OrDie(compute_.Synchronize(), "train");
    StepTimes times{.seconds = end.SecondsSince(begin) / steps};
    for (int step = 1; step < steps; ++step) times.between_steps += begins[step].SecondsSince(ends[step - 1]);
    times.between_steps /= std::max(1, steps - 1);
    return times;
  }

  // Of one step: a product forward and two backward for every weight.
  double Operations() const {
    return 6.0 * kTokens * static_cast<double>(BlockElements()) * static_cast<double>(plan_.size()) / 2;
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

  void Step(BlockCalls& calls, bool products, Event& begin, Event& end) {
    calls.BeginStep();
    for (size_t use = 0; use < plan_.size(); ++use) {
      calls.Await(use);
      if (use == 0) begin.Record(stream());
      if (products) plan_[use].phase == Phase::kForward ? Forward() : Backward(plan_[use].block, calls);
      calls.Release();
    }
    end.Record(stream());
    if (products) calls.EndStep();
  }

  void Forward() const {
    for (const BlockWeight& weight : kBlockWeights) {
      blas_.Multiply(kTokens, weight.rows, weight.columns, activations_.data(), weights_.data(), outputs_.data());
    }
  }

  void Backward(int block, BlockCalls& calls) {
    calls.BeginGradients(block);
    for (int i = 0; i < static_cast<int>(std::size(kBlockWeights)); ++i) {
      const BlockWeight& weight = kBlockWeights[i];
      blas_.Multiply(kTokens, weight.columns, weight.rows, activations_.data(), weights_.data(), outputs_.data());
      void* const gradient = calls.Gradient(i);
      blas_.Multiply(weight.columns, weight.rows, kTokens, activations_.data(), outputs_.data(),
                     gradient != nullptr ? gradient : gradient_.data());
    }
    calls.EndGradients(block);
  }

  const std::vector<BlockUse> plan_;
  const gpu::Stream compute_;
  const Blas blas_;
  gpu::DeviceMemory activations_, outputs_, weights_, gradient_;
};

// Both models are open in all loops.
struct Models {
  Client client;
  Model at_push, at_commit;
};

Models OpenModels(const std::string& socket_dir, int rank, int blocks) {
  Client client = OrDie(Client::Connect({.rank = rank, .socket_dir = socket_dir, .prefetch = false}), "connect");
  const auto open = [&](GradientSums sums) { return OrDie(client.OpenModel(Spec(blocks, sums)), "open"); };
  Model at_push = open(GradientSums::kAtPush);
  Model at_commit = open(GradientSums::kAtCommit);
  return {std::move(client), std::move(at_push), std::move(at_commit)};
}

std::unique_ptr<BlockCalls> MakeCalls(Loop loop, Models& models, int rank, const Arguments& arguments,
                                      const Board& board, cudaStream_t stream) {
  switch (loop) {
    case kGathers:
    case kGathersAlone:
      return MakeClientCalls(models.at_push, arguments.blocks, /*pushes=*/false, stream);
    case kSumsAtPush:
      return MakeClientCalls(models.at_push, arguments.blocks, /*pushes=*/true, stream);
    case kSumsAtCommit:
      return MakeClientCalls(models.at_commit, arguments.blocks, /*pushes=*/true, stream);
    case kNcclBF16:
    case kNcclFP8:
    case kNcclAlone:
      return MakeNcclCalls({.blocks = arguments.blocks,
                            .rank = rank,
                            .ranks = arguments.gpus,
                            .eight_bit_weights = loop != kNcclBF16,
                            .gather_id = board.ids[2 * loop],
                            .reduce_id = board.ids[2 * loop + 1]},
                           stream);
    default:
      return std::make_unique<BlockCalls>();
  }
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Of a process, over a stretch of time.
class CoreMeter {
 public:
  explicit CoreMeter(const test::DaemonProcess& daemon) : daemon_(daemon) {}
  void Begin() {
    cpu_ -= daemon_.CpuTime();
    time_ -= absl::Now() - absl::UnixEpoch();
  }
  void End() {
    cpu_ += daemon_.CpuTime();
    time_ += absl::Now() - absl::UnixEpoch();
  }
  double cores() const { return time_ > absl::ZeroDuration() ? absl::FDivDuration(cpu_, time_) : 0; }

 private:
  const test::DaemonProcess& daemon_;
  absl::Duration cpu_, time_;
};

void Print(Loop loop, const Arguments& arguments, const Board& board, double operations, double cores, double& first) {
  std::vector<double> seconds, between;
  for (int round = 0; round < arguments.rounds; ++round) {
    const StepTimes* const times = board.times[loop][round];
    const StepTimes* const end = times + arguments.gpus;
    const auto by = [](auto member) {
      return [member](const StepTimes& a, const StepTimes& b) { return a.*member < b.*member; };
    };
    seconds.push_back(std::max_element(times, end, by(&StepTimes::seconds))->seconds);
    between.push_back(std::min_element(times, end, by(&StepTimes::between_steps))->between_steps);
  }
  const double median = Median(seconds);
  if (IsAlone(loop)) {
    const double gathers = 2.0 * arguments.blocks;
    const double bytes = static_cast<double>(BlockElements()) * gathers * (arguments.gpus - 1) / arguments.gpus;
    std::cout << absl::StrFormat("%-15s %8.1f us a block %33.1f GB/s, daemon %4.2f cores\n", kLoopNames[loop],
                                 median * 1e6 / gathers, bytes / median / 1e9, cores);
    return;
  }
  if (first == 0) first = median;
  const auto [least, most] = std::minmax_element(seconds.begin(), seconds.end());
  std::cout << absl::StrFormat(
      "%-15s %8.2f ms a step (%.2f .. %.2f) %7.1f TFLOP/s %7.2f %% of products, between steps %6.2f ms, daemon %4.2f "
      "cores\n",
      kLoopNames[loop], median * 1e3, *least * 1e3, *most * 1e3, operations / median / 1e12, 100 * first / median,
      Median(between) * 1e3, cores);
}

void Train(const test::DaemonProcess& daemon, int rank, const Arguments& arguments, Board& board) {
  Models models = OpenModels(daemon.socket_dir(), rank, arguments.blocks);
  OrDie(gpu::ToStatus(cudaSetDevice(models.at_push.gpu()), "choose a GPU"), "choose a GPU");
  board.barrier.Await(arguments.gpus);
  if (rank == 0) {
    CoreMeter idle(daemon);
    idle.Begin();
    absl::SleepFor(kIdle);
    idle.End();
    std::cout << absl::StrFormat("idle, models open: daemon %.3f cores\n", idle.cores());
    if (arguments.HasNccl()) {
      for (ncclUniqueId& id : board.ids) id = NcclRank::MakeId();
    }
  }
  board.barrier.Await(arguments.gpus);
  Trainer trainer(models.at_push.gpu(), arguments.blocks);
  std::unique_ptr<BlockCalls> calls[kLoopCount];
  std::vector<CoreMeter> meters(kLoopCount, CoreMeter(daemon));
  for (int loop = 0; loop < kLoopCount; ++loop) {
    if (!arguments.Has(static_cast<Loop>(loop))) continue;
    calls[loop] = MakeCalls(static_cast<Loop>(loop), models, rank, arguments, board, trainer.stream());
    trainer.Run(*calls[loop], 2, !IsAlone(static_cast<Loop>(loop)));
  }
  for (int round = 0; round < arguments.rounds; ++round) {
    for (int loop = 0; loop < kLoopCount; ++loop) {
      if (calls[loop] == nullptr) continue;
      board.barrier.Await(arguments.gpus);
      meters[loop].Begin();
      board.times[loop][round][rank] = trainer.Run(*calls[loop], arguments.steps, !IsAlone(static_cast<Loop>(loop)));
      meters[loop].End();
    }
  }
  board.barrier.Await(arguments.gpus);
  if (rank != 0) return;
  double first = 0;
  for (int loop = 0; loop < kLoopCount; ++loop) {
    if (calls[loop] == nullptr) continue;
    Print(static_cast<Loop>(loop), arguments, board, trainer.Operations(), meters[loop].cores(), first);
  }
}

// Without what this machine lacks.
Arguments Possible(Arguments arguments) {
  const absl::Status nccl = NcclRank::Available(NcclRank::Kind::kKernels);
  if (nccl.ok() || !arguments.HasNccl()) return arguments;
  std::cout << "NCCL: skipped, " << nccl.message() << "\n";
  const auto is_nccl = [](char letter) {
    return IsNccl(static_cast<Loop>(std::find(kLoopLetters, std::end(kLoopLetters), letter) - kLoopLetters));
  };
  arguments.loops.erase(std::remove_if(arguments.loops.begin(), arguments.loops.end(), is_nccl), arguments.loops.end());
  return arguments;
}

int Main(const Arguments& wanted) {
  gpu::SetNcclEnvironment();
  const Arguments arguments = Possible(wanted);
  const test::TemporaryDirectory directory;
  std::vector<std::string> flags;
  for (int i = 0; i < arguments.gpus; ++i) flags.push_back(absl::StrCat("--device=cuda:", i));
  const test::DaemonProcess daemon =
      OrDie(test::DaemonProcess::Start(test::Program(PARAMSHARDD), directory.path(), flags), "start a daemon");
  auto* const board =
      new (mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)) Board;
  std::cout << absl::StrFormat("%d GPUs, %d blocks, %d tokens\n", arguments.gpus, arguments.blocks, kTokens);
  std::cout.flush();
  std::vector<pid_t> trainers;
  for (int rank = 0; rank < arguments.gpus; ++rank) {
    const pid_t pid = fork();
    if (pid == 0) {
      Train(daemon, rank, arguments, *board);
      std::cout.flush();
      std::_Exit(0);
    }
    trainers.push_back(pid);
  }
  int failed = 0;
  for (const pid_t pid : trainers) failed += OrDie(test::AwaitChild(pid, absl::Minutes(5)), "await a trainer") != 0;
  return failed == 0 ? 0 : 1;
}

}  // namespace
}  // namespace paramshard

int main(int argc, char** argv) {
  if (!paramshard::test::HasGpuDriver()) {
    std::cout << "skipped: no GPU here\n";
    return 0;
  }
  paramshard::Arguments arguments;
  int* const counts[] = {&arguments.gpus, &arguments.blocks, &arguments.steps, &arguments.rounds};
  for (int i = 1; i < std::min(argc, 5); ++i) *counts[i - 1] = std::atoi(argv[i]);
  if (argc > 5) arguments.loops = argv[5];
  if (arguments.gpus < 1 || arguments.gpus > paramshard::kMaxGpus || arguments.blocks < 1 || arguments.steps < 1 ||
      arguments.rounds < 1 || arguments.rounds > paramshard::kMaxRounds ||
      arguments.loops.find_first_not_of(paramshard::kLoopLetters) != std::string::npos) {
    std::cerr << "usage: block_trainer [GPUS] [BLOCKS] [STEPS] [ROUNDS] [LOOPS of 0gpcbfan]\n";
    return 2;
  }
  return paramshard::Main(arguments);
}
