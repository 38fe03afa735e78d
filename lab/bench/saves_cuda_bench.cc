// Cost of saves, restores and a killed server for a trainer on GPUs: the block trainer's steps with and without saves,
// in turns, beside the bandwidths of link and disk.
//
// Usage: saves_cuda_bench [GPUS] [BLOCKS] [STEPS] [ROUNDS] [KILLS] [TOKENS]. Llama-3-8B blocks in FP8 with fp32
// moments, cut over the GPUs; every rank's trainer is a thread of this process. Checkpoints, and the files that measure
// the disk, lie in a folder of $PARAMSHARD_BENCH_DIR (without: the folder for temporary files), which needs three times
// the state. cuBLAS is loaded at run time (LD_LIBRARY_PATH says where it is).
//
// With 0 ROUNDS servers are killed and nothing else is done: no file is written, so that the state may be larger than
// the disk.
//
// A save begins with each other round. `steps` compares the steps of such a round with those of the round before it;
// `stall` is the daemon's word for how long a step waited for the copy. Ceilings are measured in the same run: copies
// between each GPU and pinned memory, and reads and writes of 64 MiB around the page cache, a new file for each GPU at
// once, before each save and each restore.
// `keeper` is the step with journal and moved state against the step of a daemon without keeper. After a kill the time
// runs from the signal until a commit is answered again; one step's products are in it.

#include <cuda_runtime.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <barrier>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "client/client.h"
#include "client/ctl/admin_client.h"
#include "common/rpc/durations.h"
#include "kernels/base/polling.h"
#include "kernels/base/status_macros.h"
#include "kernels/gpu/nccl.h"
#include "kernels/gpu/pinned_memory.h"
#include "kernels/gpu/stream.h"
#include "lab/bench/arguments.h"
#include "lab/bench/block_products.h"
#include "lab/bench/or_die.h"
#include "tests/support/daemon_process.h"
#include "tests/support/environment.h"

namespace paramshard {
namespace {

using ctl::AdminClient;

constexpr int kMaxGpus = 8;
constexpr int64_t kPieceBytes = int64_t{64} << 20;
// Bytes that the disk is measured with, piece after piece: more than a cache holds, like a state.
constexpr int64_t kSourceBytes = int64_t{1} << 30;
constexpr char kModel[] = "blocks";
constexpr int kRestores = 3;
constexpr absl::Duration kLongestSave = absl::Minutes(5);

struct Arguments {
  int gpus = 1;
  int blocks = 4;
  int steps = 20;
  int rounds = 6;
  int kills = 5;
  int tokens = 32768;
};

double Seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

double Quantile(std::vector<double> values, double q) {
  std::sort(values.begin(), values.end());
  return values[static_cast<size_t>(q * static_cast<double>(values.size() - 1))];
}
double Median(const std::vector<double>& values) { return Quantile(values, 0.5); }

void OnAll(int count, const std::function<void(int)>& work) {
  std::vector<std::thread> threads;
  for (int i = 0; i < count; ++i) threads.emplace_back(work, i);
  for (std::thread& thread : threads) thread.join();
}

// --- Ceilings, in GB/s ---

// Returns the bandwidth of all GPUs together.
double LinkCeiling(int gpus, cudaMemcpyKind direction) {
  constexpr int64_t kBytes = int64_t{256} << 20;
  constexpr int kTimes = 8;
  std::vector<double> seconds(gpus);
  OnAll(gpus, [&](int gpu) {
    const gpu::DeviceScope scope(gpu);
    const auto pinned = OrDie(gpu::PinnedArray<uint8_t>::Create(kBytes), "pin");
    const int accessors[] = {gpu};
    const auto memory = OrDie(gpu::DeviceMemory::Create(gpu, kBytes, accessors, false), "allocate");
    const auto stream = OrDie(gpu::Stream::Create(gpu), "stream");
    const bool down = direction == cudaMemcpyDeviceToHost;
    const auto copy = [&] {
      OrDie(gpu::ToStatus(cudaMemcpyAsync(down ? pinned.data() : memory.data(), down ? memory.data() : pinned.data(),
                                          kBytes, direction, stream.get()),
                          "copy"),
            "copy");
    };
    copy();
    OrDie(stream.Synchronize(), "copy");
    const double begin = Seconds();
    for (int i = 0; i < kTimes; ++i) copy();
    OrDie(stream.Synchronize(), "copy");
    seconds[gpu] = Seconds() - begin;
  });
  return gpus * kTimes * static_cast<double>(kBytes) / *std::max_element(seconds.begin(), seconds.end()) / 1e9;
}

// Files that measure the disk's bandwidth, one for each GPU, in GB/s of all together. They are written around the page
// cache and synced, like the files of a save.
class DiskFiles {
 public:
  DiskFiles(int gpus, std::string folder, int64_t file_bytes)
      : gpus_(gpus), folder_(std::move(folder)), pieces_(file_bytes / kPieceBytes) {}
  ~DiskFiles() {
    for (int gpu = 0; gpu < gpus_; ++gpu) std::filesystem::remove(PathOf(gpu));
  }

  // Allocates new files first: overwriting existing files takes a disk less time.
  double Write() const {
    for (int gpu = 0; gpu < gpus_; ++gpu) std::filesystem::remove(PathOf(gpu));
    return Run(O_WRONLY | O_CREAT,
               [&](int fd, uint8_t* memory, int64_t offset) { return pwrite(fd, memory, kPieceBytes, offset); });
  }
  // After Write().
  double Read() const {
    return Run(O_RDONLY,
               [&](int fd, uint8_t* memory, int64_t offset) { return pread(fd, memory, kPieceBytes, offset); });
  }

 private:
  std::string PathOf(int gpu) const { return absl::StrCat(folder_, "/ceiling-", gpu); }

  double Run(int flags, const std::function<ssize_t(int fd, uint8_t* memory, int64_t offset)>& move) const {
    double begin = 0;
    std::barrier ready(gpus_);
    OnAll(gpus_, [&](int gpu) {
      void* const memory = mmap(nullptr, kSourceBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      madvise(memory, kSourceBytes, MADV_HUGEPAGE);
      std::fill_n(static_cast<uint8_t*>(memory), kSourceBytes, uint8_t{0xa5});
      ready.arrive_and_wait();
      if (gpu == 0) begin = Seconds();
      const int fd = open(PathOf(gpu).c_str(), flags | O_DIRECT, 0600);
      if (fd < 0) OrDie(absl::ErrnoToStatus(errno, "open"), "measure the disk");
      if (flags != O_RDONLY && posix_fallocate(fd, 0, pieces_ * kPieceBytes) != 0) {
        OrDie(absl::ResourceExhaustedError("no room"), "measure the disk");
      }
      for (int64_t offset = 0; offset < pieces_ * kPieceBytes; offset += kPieceBytes) {
        if (move(fd, static_cast<uint8_t*>(memory) + offset % kSourceBytes, offset) != kPieceBytes) {
          OrDie(absl::ErrnoToStatus(errno, "read or write"), "measure the disk");
        }
      }
      if (flags != O_RDONLY && fsync(fd) != 0) OrDie(absl::ErrnoToStatus(errno, "fsync"), "measure the disk");
      close(fd);
      munmap(memory, kSourceBytes);
    });
    return gpus_ * static_cast<double>(pieces_ * kPieceBytes) / (Seconds() - begin) / 1e9;
  }

  const int gpus_;
  const std::string folder_;
  const int64_t pieces_;
};

// --- The daemon ---

struct Daemon {
  test::TemporaryDirectory sockets;
  std::optional<test::DaemonProcess> process;

  Daemon(const Arguments& arguments, bool keeper, const std::string& save_dir) {
    std::vector<std::string> flags = {absl::StrCat("--keeper=", keeper ? "on" : "off")};
    for (int i = 0; i < arguments.gpus; ++i) flags.push_back(absl::StrCat("--device=cuda:", i));
    if (!save_dir.empty()) {
      flags.insert(flags.end(), {"--save-dir=" + save_dir, "--save-keep=2", "--save-on-drain=off"});
    }
    process.emplace(
        OrDie(test::DaemonProcess::Start(test::Program(PARAMSHARDD), sockets.path(), flags), "start a daemon"));
  }

  AdminClient Admin() const {
    return OrDie(AdminClient::Connect({.socket_dir = sockets.path(), .stream_timeout = absl::Minutes(5)}), "connect");
  }

  // The keeper's only child.
  pid_t Server() const {
    std::ifstream children(absl::StrCat("/proc/", process->pid(), "/task/", process->pid(), "/children"));
    pid_t server = 0;
    if (!(children >> server)) OrDie(absl::NotFoundError("no child"), "find the server");
    return server;
  }
};

// The trainer of one rank, on a GPU of its own.
class Trainer {
 public:
  Trainer(const Daemon& daemon, int rank, const Arguments& arguments) : rank_(rank), arguments_(arguments) {
    Open(daemon);
    products_ = std::make_unique<BlockProducts>(model_->gpu(), arguments.blocks, arguments.tokens);
    MakeCalls();
  }

  // After the server has died too.
  void Reopen(const Daemon& daemon) {
    calls_.reset();
    model_.reset();
    client_.reset();
    Open(daemon);
    MakeCalls();
  }

  // Seconds of each step.
  std::vector<double> Run(int steps) {
    OrDie(gpu::ToStatus(cudaSetDevice(model_->gpu()), "choose a GPU"), "choose a GPU");
    products_->Run(*calls_, steps, /*products=*/true);
    return products_->step_seconds();
  }

 private:
  void Open(const Daemon& daemon) {
    client_ =
        OrDie(Client::Connect({.rank = rank_, .socket_dir = daemon.sockets.path(), .prefetch = false}), "connect");
    model_ = OrDie(client_->OpenModel(BlockSpec(kModel, arguments_.blocks)), "open");
    OrDie(gpu::ToStatus(cudaSetDevice(model_->gpu()), "choose a GPU"), "choose a GPU");
  }
  void MakeCalls() {
    if (products_ != nullptr) {
      calls_ = MakeClientCalls(*model_, arguments_.blocks, /*pushes=*/true, products_->stream());
    }
  }

  const int rank_;
  const Arguments arguments_;
  std::optional<Client> client_;
  std::optional<Model> model_;
  std::unique_ptr<BlockProducts> products_;
  std::unique_ptr<BlockCalls> calls_;
};

// All ranks' trainers.
class Training {
 public:
  Training(const Daemon& daemon, const Arguments& arguments) : daemon_(daemon), trainers_(arguments.gpus) {
    OnAll(arguments.gpus, [&](int rank) { trainers_[rank] = std::make_unique<Trainer>(daemon, rank, arguments); });
  }
  // Rank 0's: all wait for each other.
  std::vector<double> Run(int steps) {
    std::vector<std::vector<double>> seconds(trainers_.size());
    OnAll(static_cast<int>(trainers_.size()), [&](int rank) { seconds[rank] = trainers_[rank]->Run(steps); });
    return seconds.front();
  }
  void Reopen() {
    OnAll(static_cast<int>(trainers_.size()), [&](int rank) { trainers_[rank]->Reopen(daemon_); });
  }

 private:
  const Daemon& daemon_;
  std::vector<std::unique_ptr<Trainer>> trainers_;
};

// --- Saves ---

double GigabytesPerSecond(int64_t bytes, double seconds) { return static_cast<double>(bytes) / seconds / 1e9; }

// Compares with the disk's speed just before, in the same round, because it changes from minute to minute.
void PrintOfDisk(const char* what, const std::vector<double>& speeds, const std::vector<double>& disk) {
  std::vector<double> ratios;
  for (size_t i = 0; i < speeds.size(); ++i) ratios.push_back(speeds[i] / disk[i]);
  std::cout << absl::StrFormat("%s %.2f GB/s, disk %.2f GB/s; of the disk: median %.3f, %.3f to %.3f of %d\n", what,
                               Median(speeds), Median(disk), Median(ratios), Quantile(ratios, 0), Quantile(ratios, 1),
                               static_cast<int>(ratios.size()));
}

// The last save, once it is published.
v1::Save AwaitLastSave(AdminClient& admin) {
  v1::Save last;
  const auto is_published = [&]() -> absl::StatusOr<bool> {
    v1::ListSavesResponse saves;
    RETURN_IF_ERROR(admin.Call(&AdminClient::Stub::ListSaves, v1::ListSavesRequest(), saves));
    if (saves.saves().empty()) return absl::NotFoundError("no save");
    last = *saves.saves().rbegin();
    if (last.has_error()) return absl::AbortedError(last.error().text());
    return last.state() == v1::SAVE_STATE_PUBLISHED;
  };
  if (!OrDie(Poll({.timeout = kLongestSave}, is_published), "save")) OrDie(absl::DeadlineExceededError("late"), "save");
  return last;
}

// Otherwise the next save would delete them, which takes a disk an eighth of the time of writing them.
void RemoveOthers(const std::filesystem::path& checkpoint) {
  for (const auto& entry : std::filesystem::directory_iterator(checkpoint.parent_path())) {
    if (entry.is_directory() && entry.path() != checkpoint) std::filesystem::remove_all(entry.path());
  }
}

struct SaveFigures {
  std::vector<double> plain, saving;  // seconds of steps
  std::vector<double> stall, copy, write, took;
  std::vector<double> disk;  // GB/s before each
  int64_t bytes = 0;
};

SaveFigures MeasureSaves(const Arguments& arguments, const DiskFiles& files, const Daemon& daemon, Training& training) {
  SaveFigures figures;
  AdminClient admin = daemon.Admin();
  v1::SaveModelRequest request;
  request.set_model(kModel);
  for (int round = 0; round < arguments.rounds; ++round) {
    const double disk = files.Write();
    for (const double seconds : training.Run(arguments.steps)) figures.plain.push_back(seconds);
    v1::SaveModelResponse response;
    OrDie(admin.Call(&AdminClient::Stub::SaveModel, request, response), "save");
    for (const double seconds : training.Run(arguments.steps)) figures.saving.push_back(seconds);
    const v1::Save save = AwaitLastSave(admin);
    RemoveOthers(save.path());
    if (round == 0) continue;  // the image's pages and the file system's first files
    const double copy = absl::ToDoubleSeconds(DurationFromProto(save.copy()));
    const double took = absl::ToDoubleSeconds(DurationFromProto(save.took()));
    figures.stall.push_back(absl::ToDoubleSeconds(DurationFromProto(save.stall())));
    figures.copy.push_back(copy);
    figures.write.push_back(took - copy);
    figures.took.push_back(took);
    figures.disk.push_back(disk);
    figures.bytes = save.size_bytes();
  }
  return figures;
}

// --- Restores ---

double SecondsOfRestore(const Daemon& daemon) {
  AdminClient admin = daemon.Admin();
  v1::RestoreModelRequest request;
  request.set_model(kModel);
  request.mutable_source()->set_checkpoint("latest");
  double seconds = 0;
  OrDie(admin.ReadAll<v1::RestoreModelRequest, v1::RestoreModelResponse>(
            &AdminClient::Stub::RestoreModel, request,
            [&](const v1::RestoreModelResponse& response) {
              if (response.has_summary()) {
                seconds = absl::ToDoubleSeconds(DurationFromProto(response.summary().elapsed()));
              }
            }),
        "restore");
  return seconds;
}

void MeasureRestores(const DiskFiles& files, const Daemon& daemon, int64_t bytes, double link) {
  std::vector<double> disk, restored;
  for (int i = 0; i < kRestores; ++i) {
    disk.push_back(files.Read());
    restored.push_back(GigabytesPerSecond(bytes, SecondsOfRestore(daemon)));
  }
  PrintOfDisk("restore", restored, disk);
  std::cout << absl::StrFormat("restore, of the link: %.3f\n", Median(restored) / link);
}

// --- Kills ---

// Until a commit is answered again.
double SecondsAfterKill(const Daemon& daemon, Training& training) {
  const double begin = Seconds();
  kill(daemon.Server(), SIGKILL);
  training.Reopen();
  training.Run(1);
  return Seconds() - begin;
}

void PrintRatio(const char* what, const std::vector<double>& values, const std::vector<double>& base, double q) {
  std::cout << absl::StrFormat("%-46s %8.3f\n", what, Quantile(values, q) / Quantile(base, q));
}

void PrintSaves(const SaveFigures& figures, double link) {
  const double step = Median(figures.plain);
  const double copied = GigabytesPerSecond(figures.bytes, Median(figures.copy));
  std::vector<double> written;
  for (const double seconds : figures.write) written.push_back(GigabytesPerSecond(figures.bytes, seconds));
  std::cout << absl::StrFormat("saved %.2f GB, step %.1f ms (p99 %.1f), save %.2f s\n",
                               static_cast<double>(figures.bytes) / 1e9, step * 1e3,
                               Quantile(figures.plain, 0.99) * 1e3, Median(figures.took));
  PrintRatio("steps while saving, of steps without: median", figures.saving, figures.plain, 0.5);
  PrintRatio("steps while saving, of steps without: p99", figures.saving, figures.plain, 0.99);
  std::cout << absl::StrFormat("stall of a save: median %.2f ms, most %.2f ms; of a step %.2f %%\n",
                               Median(figures.stall) * 1e3, Quantile(figures.stall, 1) * 1e3,
                               100 * Median(figures.stall) / step);
  std::cout << absl::StrFormat("copy  %8.2f GB/s, link %8.2f GB/s: %.3f\n", copied, link, copied / link);
  PrintOfDisk("write", written, figures.disk);
}

void MeasureKills(const Arguments& arguments, const Daemon& daemon, Training& training) {
  std::vector<double> kills;
  for (int i = 0; i < arguments.kills; ++i) kills.push_back(SecondsAfterKill(daemon, training));
  if (kills.empty()) return;
  std::cout << absl::StrFormat(
      "killed server to the next answered commit: median %.2f s, least %.2f s, most %.2f s of %d\n", Median(kills),
      Quantile(kills, 0), Quantile(kills, 1), static_cast<int>(kills.size()));
}

// --- All of it ---

std::vector<double> StepsOf(const Arguments& arguments, bool keeper) {
  const Daemon daemon(arguments, keeper, "");
  Training training(daemon, arguments);
  training.Run(2);
  return training.Run(arguments.steps);
}

void CompareKeeper(const Arguments& arguments) {
  std::vector<double> without, with;
  for (int round = 0; round < 2; ++round) {
    for (const double seconds : StepsOf(arguments, false)) without.push_back(seconds);
    for (const double seconds : StepsOf(arguments, true)) with.push_back(seconds);
  }
  std::cout << absl::StrFormat("step without keeper %.2f ms, with %.2f ms: %.4f\n", Median(without) * 1e3,
                               Median(with) * 1e3, Median(with) / Median(without));
}

void KillAlone(const Arguments& arguments) {
  const Daemon daemon(arguments, /*keeper=*/true, "");
  Training training(daemon, arguments);
  training.Run(2);
  std::cout << absl::StrFormat("%.2f billion parameters, %.1f ms a step\n",
                               static_cast<double>(BlockElements() * arguments.blocks) / 1e9,
                               Median(training.Run(arguments.steps)) * 1e3)
            << std::flush;
  MeasureKills(arguments, daemon, training);
}

void MeasureAll(const Arguments& arguments) {
  const char* const root = std::getenv("PARAMSHARD_BENCH_DIR");
  const std::string folder =
      absl::StrCat(root != nullptr ? root : std::filesystem::temp_directory_path().string(), "/saves-", getpid());
  std::filesystem::create_directory(folder);
  std::filesystem::permissions(folder, std::filesystem::perms::owner_all);
  const int64_t bytes = 12 * BlockElements() * arguments.blocks;
  const double down = LinkCeiling(arguments.gpus, cudaMemcpyDeviceToHost);
  const double up = LinkCeiling(arguments.gpus, cudaMemcpyHostToDevice);
  std::cout << absl::StrFormat("link %.1f GB/s down, %.1f up\n", down, up) << std::flush;
  {
    const DiskFiles files(arguments.gpus, folder, bytes / arguments.gpus);
    const Daemon daemon(arguments, /*keeper=*/true, folder);
    {
      Training training(daemon, arguments);
      training.Run(2);
      PrintSaves(MeasureSaves(arguments, files, daemon, training), down);
      std::cout << std::flush;
      MeasureKills(arguments, daemon, training);
    }
    MeasureRestores(files, daemon, bytes, up);
  }
  CompareKeeper(arguments);
  std::filesystem::remove_all(folder);
}

void Main(const Arguments& arguments) {
  gpu::SetNcclEnvironment();
  std::cout << absl::StrFormat("%d GPUs, %d blocks, %d tokens\n", arguments.gpus, arguments.blocks, arguments.tokens)
            << std::flush;
  arguments.rounds == 0 ? KillAlone(arguments) : MeasureAll(arguments);
}

}  // namespace
}  // namespace paramshard

int main(int argc, char** argv) {
  paramshard::Arguments arguments;
  paramshard::ReadCounts(argc, argv,
                         {{"GPUS", &arguments.gpus, 1, paramshard::kMaxGpus},
                          {"BLOCKS", &arguments.blocks},
                          {"STEPS", &arguments.steps},
                          {"ROUNDS", &arguments.rounds, 0},
                          {"KILLS", &arguments.kills, 0},
                          {"TOKENS", &arguments.tokens}});
  if (arguments.rounds == 1)
    paramshard::EndWithUsage("argument 4, ROUNDS: want 0, or at least 2 because the first warms up, got 1");
  paramshard::EndWithoutGpu();
  paramshard::Main(arguments);
}
