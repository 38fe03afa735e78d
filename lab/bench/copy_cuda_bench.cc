// The stages of a gather inside the daemon's engine: one process, a thread for each GPU, without trainers.
//
// Usage: copy_cuda_bench [GPUS] [ITERATIONS]. Prints p50 and p99, over all ranks, of the times from the beginning of a
// gather until its copies are enqueued, its words too, and the last word is there; with the ranks in turns and all at
// once: the difference is what they cost each other in the driver and on the links. Ways: one batch of copies; the
// largest piece in a batch of its own first, as the engine does it; pulled from the other GPUs in one batch, as
// gradients are.

#include <cuda_runtime.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <chrono>
#include <iostream>
#include <mutex>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_format.h"
#include "kernels/gpu/batch_copy.h"
#include "kernels/gpu/memory.h"
#include "kernels/gpu/stream.h"
#include "kernels/gpu/word_operations.h"
#include "lab/bench/arguments.h"
#include "lab/bench/or_die.h"

namespace paramshard {
namespace {

constexpr int kMaxGpus = 8;
constexpr int kWarmup = 20;
constexpr int64_t kMebi = 1 << 20;

enum Way { kOneBatch, kLargestFirst, kPulled, kWayCount };
constexpr const char* kWayNames[] = {"one batch", "largest first", "pulled"};

enum Stage { kCopiesEnqueued, kWordsEnqueued, kDone, kStageCount };

// A rank's bytes for every other rank, in pieces, the largest first.
struct Size {
  const char* name;
  std::vector<int64_t> pieces;
};

std::vector<Size> Sizes(int gpus) {
  std::vector<int64_t> block;
  for (const int64_t mebi : {56, 16, 4, 4, 16, 56, 56}) block.push_back(mebi * kMebi / gpus);
  block.push_back(16384);  // scales
  const int64_t sum = std::accumulate(block.begin(), block.end(), int64_t{0});
  return {{"64 KiB", {65536 / gpus}},
          {"1 MiB", {kMebi / gpus}},
          {"Llama-3-8B block", block},
          {"the same in one piece", {sum}}};
}

double Microseconds() {
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// One rank's memory and stream: its own pieces, and the pieces that other ranks write.
class Rank {
 public:
  Rank(int gpu, int gpus, void* words) : gpu_(gpu), words_(static_cast<uint8_t*>(words) + gpu * 4096) {
    std::vector<int> all(gpus);
    std::iota(all.begin(), all.end(), 0);
    stream_ = OrDie(gpu::Stream::Create(gpu), "stream");
    memory_ = OrDie(gpu::DeviceMemory::Create(gpu, (gpus + 1) * kRegion, all, /*shareable=*/true), "allocate");
  }

  void Plan(const Size& size, Way way, std::vector<Rank>& ranks) {
    first_ = {};
    rest_ = {};
    const int gpus = static_cast<int>(ranks.size());
    for (int step = 1; step < gpus; ++step) {
      const int peer = (gpu_ + step) % gpus;
      uint8_t* const own = memory_.data() + (way == kPulled ? (peer + 1) * kRegion : 0);
      uint8_t* const other = ranks[peer].memory_.data() + (way == kPulled ? 0 : (gpu_ + 1) * kRegion);
      int64_t offset = 0;
      for (size_t i = 0; i < size.pieces.size(); ++i) {
        gpu::BatchCopy& copies = way == kLargestFirst && i > 0 ? rest_ : first_;
        uint8_t* const target = way == kPulled ? own : other;
        uint8_t* const source = way == kPulled ? other : own;
        copies.Add(target + offset, source + offset, size.pieces[i]);
        offset += (size.pieces[i] + 255) / 256 * 256;
      }
    }
  }

  void Gather(int gpus, double (&times)[kStageCount]) {
    const double start = Microseconds();
    OrDie(first_.Enqueue(stream_.get()), "copies");
    OrDie(rest_.Enqueue(stream_.get()), "copies");
    times[kCopiesEnqueued] = Microseconds() - start;
    for (int peer = 0; peer < gpus; ++peer) {
      if (peer != gpu_) operations_.Write(words_ + peer * 64, ++value_);
    }
    const int last = gpu_ == gpus - 1 ? gpus - 2 : gpus - 1;
    const auto* const word = reinterpret_cast<const std::atomic<uint32_t>*>(words_ + last * 64);
    OrDie(operations_.Enqueue(stream_.get()), "words");
    times[kWordsEnqueued] = Microseconds() - start;
    while (word->load(std::memory_order_acquire) != value_) {
    }
    times[kDone] = Microseconds() - start;
  }

  int gpu() const { return gpu_; }

 private:
  static constexpr int64_t kRegion = 128 * kMebi;

  int gpu_;
  uint8_t* words_;
  gpu::Stream stream_;
  gpu::DeviceMemory memory_;
  gpu::BatchCopy first_, rest_;
  gpu::WordOperations operations_;
  uint32_t value_ = 0;
};

// Times by stage, of all ranks.
using Times = std::vector<double>[kStageCount];

void Measure(std::vector<Rank>& ranks, int iterations, bool at_once, Times& times) {
  const int gpus = static_cast<int>(ranks.size());
  std::barrier barrier(gpus);
  std::vector<std::thread> threads;
  std::mutex mu;
  for (Rank& rank : ranks) {
    threads.emplace_back([&] {
      cudaSetDevice(rank.gpu());
      for (int i = -kWarmup; i < iterations; ++i) {
        for (int turn = 0; turn < (at_once ? 1 : gpus); ++turn) {
          barrier.arrive_and_wait();
          if (!at_once && turn != rank.gpu()) continue;
          double stages[kStageCount];
          rank.Gather(gpus, stages);
          const std::lock_guard<std::mutex> lock(mu);
          for (int stage = 0; stage < kStageCount && i >= 0; ++stage) times[stage].push_back(stages[stage]);
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

double Quantile(std::vector<double>& values, double q) {
  std::sort(values.begin(), values.end());
  return values[static_cast<size_t>(q * static_cast<double>(values.size() - 1))];
}

int Main(int gpus, int iterations) {
  void* const words = mmap(nullptr, kMaxGpus * 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  const auto registration = OrDie(gpu::HostRegistration::Register(words, kMaxGpus * 4096), "register words");
  std::vector<Rank> ranks;
  for (int gpu = 0; gpu < gpus; ++gpu) ranks.emplace_back(gpu, gpus, words);
  std::cout << absl::StrFormat("%d GPUs, p50 / p99 in us\n%-22s %-14s %-9s %18s %18s %18s\n", gpus, "gathered", "way",
                               "ranks", "copies enqueued", "words enqueued", "done");
  for (const Size& size : Sizes(gpus)) {
    for (int way = 0; way < kWayCount; ++way) {
      if (way == kLargestFirst && size.pieces.size() == 1) continue;
      for (Rank& rank : ranks) rank.Plan(size, static_cast<Way>(way), ranks);
      for (const bool at_once : {false, true}) {
        Times times;
        Measure(ranks, iterations, at_once, times);
        std::cout << absl::StrFormat("%-22s %-14s %-9s", size.name, kWayNames[way], at_once ? "at once" : "in turns");
        for (std::vector<double>& stage : times) {
          std::cout << absl::StrFormat(" %8.1f %8.1f ", Quantile(stage, 0.5), Quantile(stage, 0.99));
        }
        std::cout << std::endl;
      }
    }
  }
  return 0;
}

}  // namespace
}  // namespace paramshard

int main(int argc, char** argv) {
  int gpus = 2;
  int iterations = 200;
  paramshard::ReadCounts(argc, argv, {{"GPUS", &gpus, 2, paramshard::kMaxGpus}, {"ITERATIONS", &iterations}});
  paramshard::EndWithoutGpu();
  return paramshard::Main(gpus, iterations);
}
