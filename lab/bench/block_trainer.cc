// A stand-in for a trainer: the matrix products of Llama-3-8B blocks, forward and backward, on every GPU, with the
// transfers of weights and gradients. The cost of transfers is the difference between loops that run in turns.
//
// Usage: block_trainer [GPUS] [BLOCKS] [STEPS] [ROUNDS] [LOOPS]. cuBLAS is loaded at run time: it is too large to carry
// along (LD_LIBRARY_PATH says where it is), and so is NCCL ($PARAMSHARD_NCCL_LIBRARY). Loops, each with the products of
// a whole step; LOOPS are their letters (without: all):
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
// Before the daemon starts and after it has ended the products run too: `no daemon`.
//
// Times are of the slowest rank, medians over the rounds; `of products` is the ratio to the products' loop. `between
// steps` is the time from a step's last product to the first product of the next step, on the rank with the shortest
// time (the other ranks wait for it): the exposed part of commit and first gather. `daemon` is the daemon's use of a
// core; power and clock are the first GPU's: over the whole loop, and when its products have been enqueued.

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

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "client/client.h"
#include "kernels/gpu/nccl.h"
#include "kernels/gpu/status.h"
#include "lab/bench/arguments.h"
#include "lab/bench/block_calls.h"
#include "lab/bench/block_products.h"
#include "lab/bench/gpu_power.h"
#include "lab/bench/nccl_rank.h"
#include "lab/bench/or_die.h"
#include "lab/bench/process_barrier.h"
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
  ModelSpec spec = BlockSpec(sums == GradientSums::kAtPush ? "sums-at-push" : "sums-at-commit", blocks);
  spec.gradient_sums = sums;
  return spec;
}

// Load of the first GPU and of the daemon in a loop. 0 if the GPU does not report it.
struct Usage {
  double watts = 0;
  int megahertz = 0;
  double daemon_cores = 0;
};

using LoopTimes = StepTimes[kMaxRounds][kMaxGpus];

// Memory that the processes share.
struct Board {
  ProcessBarrier barrier;
  LoopTimes times[kLoopCount] = {};
  Usage usage[kLoopCount] = {};
  LoopTimes no_daemon = {};
  ncclUniqueId ids[2 * kLoopCount] = {};
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

// Cores that the daemon uses between Begin() and End().
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
  double cores() const { return absl::FDivDuration(cpu_, time_); }
  double seconds() const { return absl::ToDoubleSeconds(time_); }

 private:
  const test::DaemonProcess& daemon_;
  absl::Duration cpu_, time_;
};

// Returns the operations of one step: a product forward and two backward for every weight.
double Operations(int blocks) { return 6.0 * kTokens * static_cast<double>(BlockElements()) * blocks; }

// Returns the seconds of the slowest rank in each round.
std::vector<double> SlowestRanks(const LoopTimes& times, const Arguments& arguments) {
  std::vector<double> seconds;
  for (int round = 0; round < arguments.rounds; ++round) {
    double slowest = 0;
    for (int rank = 0; rank < arguments.gpus; ++rank) slowest = std::max(slowest, times[round][rank].seconds);
    seconds.push_back(slowest);
  }
  return seconds;
}

std::vector<double> LeastBetweenSteps(const LoopTimes& times, const Arguments& arguments) {
  std::vector<double> seconds;
  for (int round = 0; round < arguments.rounds; ++round) {
    double least = times[round][0].between_steps;
    for (int rank = 1; rank < arguments.gpus; ++rank) least = std::min(least, times[round][rank].between_steps);
    seconds.push_back(least);
  }
  return seconds;
}

void PrintAlone(Loop loop, const Arguments& arguments, const Board& board) {
  const double median = Median(SlowestRanks(board.times[loop], arguments));
  const double gathers = 2.0 * arguments.blocks;
  const double bytes = static_cast<double>(BlockElements()) * gathers * (arguments.gpus - 1) / arguments.gpus;
  std::cout << absl::StrFormat("%-15s %8.1f us a block %33.1f GB/s, daemon %4.2f cores\n", kLoopNames[loop],
                               median * 1e6 / gathers, bytes / median / 1e9, board.usage[loop].daemon_cores);
}

std::string UsageText(const Usage& usage) {
  std::string text = absl::StrFormat(", daemon %4.2f cores", usage.daemon_cores);
  if (usage.megahertz > 0) absl::StrAppendFormat(&text, ", %3.0f W, %4d MHz", usage.watts, usage.megahertz);
  return text;
}

// `usage` null: not measured.
void PrintSteps(const char* name, const Arguments& arguments, const LoopTimes& times, const Usage* usage,
                double products) {
  const std::vector<double> seconds = SlowestRanks(times, arguments);
  const double median = Median(seconds);
  const auto [least, most] = std::minmax_element(seconds.begin(), seconds.end());
  std::cout << absl::StrFormat(
                   "%-15s %8.2f ms a step (%.2f .. %.2f) %7.1f TFLOP/s %7.2f %% of products, between steps %6.2f ms",
                   name, median * 1e3, *least * 1e3, *most * 1e3, Operations(arguments.blocks) / median / 1e12,
                   100 * products / median, Median(LeastBetweenSteps(times, arguments)) * 1e3)
            << (usage != nullptr ? UsageText(*usage) : "") << "\n";
}

void Print(const Arguments& arguments, const Board& board) {
  const LoopTimes& first = arguments.Has(kProducts) ? board.times[kProducts] : board.no_daemon;
  const double products = Median(SlowestRanks(first, arguments));
  PrintSteps("no daemon", arguments, board.no_daemon, /*usage=*/nullptr, products);
  for (int i = 0; i < kLoopCount; ++i) {
    const auto loop = static_cast<Loop>(i);
    if (!arguments.Has(loop)) continue;
    if (IsAlone(loop)) {
      PrintAlone(loop, arguments, board);
    } else {
      PrintSteps(kLoopNames[loop], arguments, board.times[loop], &board.usage[loop], products);
    }
  }
}

// Rounds from `begin` to `end` of the products alone.
void TrainWithoutDaemon(int rank, int begin, int end, const Arguments& arguments, Board& board) {
  OrDie(gpu::ToStatus(cudaSetDevice(rank), "choose a GPU"), "choose a GPU");
  BlockProducts products(rank, arguments.blocks, kTokens);
  BlockCalls nothing;
  products.Run(nothing, 2, true);
  for (int round = begin; round < end; ++round) {
    board.barrier.Await(arguments.gpus);
    board.no_daemon[round][rank] = products.Run(nothing, arguments.steps, true);
  }
}

void PrintIdle(const test::DaemonProcess& daemon) {
  CoreMeter idle(daemon);
  idle.Begin();
  absl::SleepFor(kIdle);
  idle.End();
  std::cout << absl::StrFormat("idle, models open: daemon %.3f cores\n", idle.cores());
}

// Usage of a loop, over its rounds.
class UsageMeter {
 public:
  UsageMeter(const test::DaemonProcess& daemon, const GpuPower& power) : cores_(daemon), power_(&power) {}
  void Begin() {
    cores_.Begin();
    joules_ -= power_->Joules();
  }
  void Enqueued() { megahertz_.push_back(power_->Megahertz()); }
  void End() {
    joules_ += power_->Joules();
    cores_.End();
  }
  Usage usage() const {
    return {.watts = joules_ / cores_.seconds(),
            .megahertz = static_cast<int>(Median({megahertz_.begin(), megahertz_.end()})),
            .daemon_cores = cores_.cores()};
  }

 private:
  CoreMeter cores_;
  const GpuPower* power_;
  double joules_ = 0;
  std::vector<int> megahertz_;
};

void Train(const test::DaemonProcess& daemon, int rank, const Arguments& arguments, Board& board) {
  Models models = OpenModels(daemon.socket_dir(), rank, arguments.blocks);
  OrDie(gpu::ToStatus(cudaSetDevice(models.at_push.gpu()), "choose a GPU"), "choose a GPU");
  board.barrier.Await(arguments.gpus);
  if (rank == 0) {
    PrintIdle(daemon);
    if (arguments.HasNccl()) {
      for (ncclUniqueId& id : board.ids) id = NcclRank::MakeId();
    }
  }
  board.barrier.Await(arguments.gpus);
  BlockProducts products(models.at_push.gpu(), arguments.blocks, kTokens);
  const GpuPower power(models.at_push.gpu());
  std::unique_ptr<BlockCalls> calls[kLoopCount];
  std::vector<UsageMeter> meters(kLoopCount, UsageMeter(daemon, power));
  for (int loop = 0; loop < kLoopCount; ++loop) {
    if (!arguments.Has(static_cast<Loop>(loop))) continue;
    calls[loop] = MakeCalls(static_cast<Loop>(loop), models, rank, arguments, board, products.stream());
    products.Run(*calls[loop], 2, !IsAlone(static_cast<Loop>(loop)));
  }
  for (int round = 0; round < arguments.rounds; ++round) {
    for (int loop = 0; loop < kLoopCount; ++loop) {
      if (calls[loop] == nullptr) continue;
      board.barrier.Await(arguments.gpus);
      meters[loop].Begin();
      board.times[loop][round][rank] = products.Run(*calls[loop], arguments.steps, !IsAlone(static_cast<Loop>(loop)),
                                                    [&] { meters[loop].Enqueued(); });
      meters[loop].End();
    }
  }
  for (int loop = 0; loop < kLoopCount && rank == 0; ++loop) {
    if (calls[loop] != nullptr) board.usage[loop] = meters[loop].usage();
  }
  board.barrier.Await(arguments.gpus);
}

// Returns the arguments without loops that this machine cannot run.
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

// A process for each GPU; whether all of them ended well.
bool RunTrainers(int gpus, absl::FunctionRef<void(int rank)> train) {
  std::vector<pid_t> trainers;
  for (int rank = 0; rank < gpus; ++rank) {
    const pid_t pid = fork();
    if (pid == 0) {
      train(rank);
      std::cout.flush();
      std::_Exit(0);
    }
    trainers.push_back(pid);
  }
  bool well = true;
  for (const pid_t pid : trainers) well &= OrDie(test::AwaitChild(pid, absl::Minutes(5)), "await a trainer") == 0;
  return well;
}

bool RunWithDaemon(const Arguments& arguments, Board& board) {
  const test::TemporaryDirectory directory;
  std::vector<std::string> flags;
  for (int i = 0; i < arguments.gpus; ++i) flags.push_back(absl::StrCat("--device=cuda:", i));
  const test::DaemonProcess daemon =
      OrDie(test::DaemonProcess::Start(test::Program(PARAMSHARDD), directory.path(), flags), "start a daemon");
  return RunTrainers(arguments.gpus, [&](int rank) { Train(daemon, rank, arguments, board); });
}

int Main(const Arguments& wanted) {
  gpu::SetNcclEnvironment();
  const Arguments arguments = Possible(wanted);
  auto* const board =
      new (mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)) Board;
  std::cout << absl::StrFormat("%d GPUs, %d blocks, %d tokens\n", arguments.gpus, arguments.blocks, kTokens);
  std::cout.flush();
  const auto without_daemon = [&](int begin, int end) {
    return RunTrainers(arguments.gpus, [&](int rank) { TrainWithoutDaemon(rank, begin, end, arguments, *board); });
  };
  const int half = arguments.rounds / 2;
  const bool well =
      without_daemon(0, half) && RunWithDaemon(arguments, *board) && without_daemon(half, arguments.rounds);
  if (well) Print(arguments, *board);
  return well ? 0 : 1;
}

}  // namespace
}  // namespace paramshard

int main(int argc, char** argv) {
  paramshard::Arguments arguments;
  if (argc == 6) {
    arguments.loops = argv[--argc];
    if (arguments.loops.find_first_not_of(paramshard::kLoopLetters) != std::string::npos) {
      paramshard::EndWithUsage(absl::StrCat("argument 5, LOOPS: want letters of ", paramshard::kLoopLetters, ", got '",
                                            arguments.loops, "'"));
    }
  }
  paramshard::ReadCounts(argc, argv,
                         {{"GPUS", &arguments.gpus, 1, paramshard::kMaxGpus},
                          {"BLOCKS", &arguments.blocks},
                          {"STEPS", &arguments.steps},
                          {"ROUNDS", &arguments.rounds, 1, paramshard::kMaxRounds}});
  paramshard::EndWithoutGpu();
  return paramshard::Main(arguments);
}
