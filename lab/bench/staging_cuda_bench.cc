// Bottlenecks of the copy of a save: the ways from all GPUs at once into the host's memory, part by part.
//
// Usage: staging_cuda_bench [GPUS] [MEBIBYTES] [ROUNDS]. So much of each GPU, copied by 4 to 14 threads for each; GB/s
// of all GPUs together, the median of rounds, beside what the links do at the same time. Every way begins with pieces
// of 4 MiB in buffers that are pinned:
//   link       into pinned memory, nothing else: the ceiling
//   lanes      by StagingLanes, which drops the bytes
//   copied     and copied into memory in huge pages
//   hashed     and hashed by rows of 16 KiB, as a save does it
//   direct     into memory in huge pages that was registered, and hashed there
//   host       no GPU: memory in huge pages copied to other such memory, and hashed

#include <cuda_runtime.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <iostream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_format.h"
#include "common/checkpoint/content_hash.h"
#include "kernels/gpu/memory.h"
#include "kernels/gpu/pinned_memory.h"
#include "kernels/gpu/staging.h"
#include "kernels/gpu/stream.h"
#include "lab/bench/arguments.h"
#include "lab/bench/or_die.h"

namespace paramshard {
namespace {

constexpr int kMaxGpus = 8;
constexpr int kMostThreads = 14;
constexpr int64_t kBufferBytes = int64_t{4} << 20;
constexpr int64_t kPartBytes = int64_t{16} << 20;  // of a call
constexpr int64_t kHashedBytes = int64_t{256} << 10;
constexpr int64_t kRowBytes = int64_t{16} << 10;

double Seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

void OnAll(int count, const std::function<void(int)>& work) {
  std::vector<std::thread> threads;
  for (int i = 0; i < count; ++i) threads.emplace_back(work, i);
  for (std::thread& thread : threads) thread.join();
}

uint8_t* HugePages(int64_t size_bytes) {
  void* const data = mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  madvise(data, size_bytes, MADV_HUGEPAGE);
  std::memset(data, 0x5a, size_bytes);
  return static_cast<uint8_t*>(data);
}

void Hash(const uint8_t* bytes, int64_t size_bytes) {
  static std::atomic<uint64_t> sink = 0;
  sink += absl::Uint128Low64(checkpoint::HashRows(0, kRowBytes, absl::MakeConstSpan(bytes, size_bytes)).sum);
}

void CopyAndHash(uint8_t* target, absl::Span<const uint8_t> bytes, bool hashes) {
  for (size_t at = 0; at < bytes.size(); at += kHashedBytes) {
    const size_t size = std::min<size_t>(kHashedBytes, bytes.size() - at);
    std::memcpy(target + at, bytes.data() + at, size);
    if (hashes) Hash(target + at, static_cast<int64_t>(size));
  }
}

// One GPU, with the sources and targets of its copies.
struct Gpu {
  int index;
  int64_t size_bytes;
  gpu::DeviceMemory memory;
  std::unique_ptr<gpu::StagingLanes> lanes;
  std::vector<gpu::Stream> streams;
  uint8_t* image;       // in huge pages
  uint8_t* source;      // likewise
  uint8_t* registered;  // likewise
  double registering;   // seconds

  Gpu(int gpu, int64_t bytes) : index(gpu), size_bytes(bytes) {
    const gpu::DeviceScope scope(gpu);
    const int accessors[] = {gpu};
    memory = OrDie(gpu::DeviceMemory::Create(gpu, bytes, accessors, false), "allocate");
    lanes = OrDie(gpu::StagingLanes::Create(gpu, kMostThreads, kBufferBytes), "pin");
    for (int i = 0; i < 2 * kMostThreads; ++i) streams.push_back(OrDie(gpu::Stream::Create(gpu), "stream"));
    image = HugePages(bytes);
    source = HugePages(bytes);
    registered = HugePages(bytes);
    const double begin = Seconds();
    OrDie(gpu::ToStatus(cudaHostRegister(registered, bytes, cudaHostRegisterDefault), "register"), "register");
    registering = Seconds() - begin;
  }

  void Start(int64_t at, int64_t size, const gpu::Stream& stream) const {
    OrDie(gpu::ToStatus(cudaMemcpyAsync(registered + at, memory.data() + at, size, cudaMemcpyDefault, stream.get()),
                        "copy"),
          "copy");
  }
};

using Way = std::function<void(Gpu& gpu, int thread, int64_t at)>;  // of a part

void Link(Gpu& gpu, int thread, int64_t at) {
  gpu.Start(at, kPartBytes, gpu.streams[thread]);
  OrDie(gpu.streams[thread].Synchronize(), "copy");
}
void Lanes(Gpu& gpu, int, int64_t at) {
  OrDie(gpu.lanes->Read(gpu.memory.data() + at, kPartBytes, [](absl::Span<const uint8_t>) {}), "read");
}
void Copied(Gpu& gpu, int64_t at, bool hashes) {
  uint8_t* next = gpu.image + at;
  OrDie(gpu.lanes->Read(gpu.memory.data() + at, kPartBytes,
                        [&](absl::Span<const uint8_t> bytes) {
                          CopyAndHash(next, bytes, hashes);
                          next += bytes.size();
                        }),
        "read");
}
void Direct(Gpu& gpu, int thread, int64_t at) {
  const auto stream = [&](int64_t piece) -> const gpu::Stream& { return gpu.streams[2 * thread + piece % 2]; };
  constexpr int64_t kPieces = kPartBytes / kBufferBytes;
  gpu.Start(at, kBufferBytes, stream(0));
  for (int64_t piece = 0; piece < kPieces; ++piece) {
    if (piece + 1 < kPieces) gpu.Start(at + (piece + 1) * kBufferBytes, kBufferBytes, stream(piece + 1));
    OrDie(stream(piece).Synchronize(), "copy");
    Hash(gpu.registered + at + piece * kBufferBytes, kBufferBytes);
  }
}
void Host(Gpu& gpu, int, int64_t at) {
  CopyAndHash(gpu.image + at, absl::MakeConstSpan(gpu.source + at, kPartBytes), true);
}

double GigabytesPerSecond(std::vector<std::unique_ptr<Gpu>>& gpus, int threads, const Way& way) {
  const double begin = Seconds();
  OnAll(static_cast<int>(gpus.size()) * threads,
        [&, next = std::make_shared<std::vector<std::atomic<int64_t>>>(gpus.size())](int index) {
          const int gpu = index % static_cast<int>(gpus.size());
          const gpu::DeviceScope scope(gpus[gpu]->index);
          for (int64_t at = 0; (at = (*next)[gpu].fetch_add(kPartBytes)) < gpus[gpu]->size_bytes;) {
            way(*gpus[gpu], index / static_cast<int>(gpus.size()), at);
          }
        });
  return static_cast<double>(gpus.size()) * static_cast<double>(gpus.front()->size_bytes) / (Seconds() - begin) / 1e9;
}

void Main(int gpus, int64_t size_bytes, int rounds) {
  std::vector<std::unique_ptr<Gpu>> all(gpus);
  OnAll(gpus, [&](int gpu) { all[gpu] = std::make_unique<Gpu>(gpu, size_bytes); });
  std::cout << absl::StrFormat("%d GPUs, %d MiB of each; registered at %.1f GB/s\n", gpus, size_bytes >> 20,
                               static_cast<double>(size_bytes) / all.front()->registering / 1e9);
  const std::vector<std::pair<const char*, Way>> ways = {
      {"link", Link},
      {"lanes", Lanes},
      {"copied", [](Gpu& gpu, int, int64_t at) { Copied(gpu, at, false); }},
      {"hashed", [](Gpu& gpu, int, int64_t at) { Copied(gpu, at, true); }},
      {"direct", Direct},
      {"host", Host}};
  std::cout << absl::StrFormat("%-8s", "threads");
  for (const auto& [name, way] : ways) std::cout << absl::StrFormat(" %8s", name);
  std::cout << std::endl;
  for (const int threads : {4, 6, 8, 10, 12, 14}) {
    std::cout << absl::StrFormat("%-8d", threads);
    for (const auto& [name, way] : ways) {
      std::vector<double> speeds;
      for (int round = 0; round < rounds; ++round) speeds.push_back(GigabytesPerSecond(all, threads, way));
      std::sort(speeds.begin(), speeds.end());
      std::cout << absl::StrFormat(" %8.1f", speeds[speeds.size() / 2]) << std::flush;
    }
    std::cout << std::endl;
  }
}

}  // namespace
}  // namespace paramshard

int main(int argc, char** argv) {
  int gpus = 2;
  int mebibytes = 3072;
  int rounds = 5;
  paramshard::ReadCounts(
      argc, argv, {{"GPUS", &gpus, 1, paramshard::kMaxGpus}, {"MEBIBYTES", &mebibytes, 16}, {"ROUNDS", &rounds}});
  paramshard::EndWithoutGpu();
  paramshard::Main(gpus, static_cast<int64_t>(mebibytes / 16 * 16) << 20, rounds);
}
