// The daemon and its client library as trainers see them: gathers, commits, opening, idle cost, memory.
//
// Starts a real daemon and real trainer processes, and prints one row for each goal of docs/train/cost.md with the
// median and the 99th percentile. Ratios are taken against memcpy in the same run. Usage: service_bench [--json]

#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/client.h"
#include "client/ctl/admin_client.h"
#include "lab/bench/or_die.h"
#include "tests/support/daemon_process.h"

namespace paramshard {
namespace {

using test::DaemonProcess;
using test::TemporaryDirectory;

constexpr int kRanks = 2;

double Seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// User and system time of all threads of this process.
double CpuSeconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// Numbers that trainer processes leave for the bench: one row of samples for each rank.
class Samples {
 public:
  explicit Samples(int64_t count, int ranks = kRanks)
      : count_(count),
        ranks_(ranks),
        values_(
            static_cast<double*>(mmap(nullptr, Bytes(), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0))) {}
  ~Samples() { munmap(values_, Bytes()); }
  double* Row(int rank) { return values_ + rank * count_; }
  int64_t count() const { return count_; }

  // Over all ranks.
  double Quantile(double q) const {
    std::vector<double> sorted(values_, values_ + ranks_ * count_);
    std::sort(sorted.begin(), sorted.end());
    return sorted[static_cast<size_t>(q * static_cast<double>(sorted.size() - 1))];
  }

 private:
  size_t Bytes() const { return sizeof(double) * ranks_ * count_; }
  int64_t count_;
  int ranks_;
  double* values_;
};

// Runs `trainer(rank)` in a process for each rank.
void RunTrainers(const std::function<void(int)>& trainer, int ranks = kRanks) {
  std::vector<pid_t> children;
  for (int rank = 0; rank < ranks; ++rank) {
    const pid_t pid = fork();
    if (pid == 0) {
      trainer(rank);
      std::_Exit(0);
    }
    children.push_back(pid);
  }
  for (const pid_t pid : children) {
    if (OrDie(test::AwaitChild(pid, absl::Minutes(5)), "trainer") != 0) std::_Exit(1);
  }
}

// Units of one FP32 matrix each.
ModelSpec Matrices(const std::string& name, int units, int64_t rows, int64_t columns) {
  ModelSpec spec;
  spec.name = name;
  spec.small_parameter_bytes = 0;
  for (int i = 0; i < units; ++i) {
    ParameterSpec parameter;
    parameter.name = absl::StrCat("matrix", i);
    parameter.shape = {rows, columns};
    UnitSpec unit;
    unit.name = absl::StrCat("unit", i);
    unit.parameters.push_back(parameter);
    spec.units.push_back(unit);
  }
  return spec;
}

struct Bench {
  std::string socket_dir;
  nlohmann::ordered_json report;

  Model Open(int rank, const ModelSpec& spec) const {
    Client client = OrDie(Client::Connect({.rank = rank, .socket_dir = socket_dir, .prefetch = false}), "connect");
    return OrDie(client.OpenModel(spec), "open");
  }

  void Row(const std::string& name, double value, const std::string& unit, const std::string& goal) {
    std::cout << absl::StrFormat("%-52s %12.3f %-8s goal %s", name, value, unit, goal) << std::endl;
    report[name] = {{"value", value}, {"unit", unit}, {"goal", goal}};
  }
};

// From the call to the bytes being visible to the trainer.
double TimedGather(Model& model, const std::string& name = "unit0") {
  const double start = Seconds();
  GatheredUnit unit = OrDie(model.Gather(name, Phase::kForward), "gather");
  OrDie(unit.Wait(), "wait");
  return Seconds() - start;
}

// --- Gathers ---

struct GatherTimes {
  double p50 = 0;
  double p99 = 0;
  double cpu = 0;  // of the client per gather, median rank
};

GatherTimes MeasureGathers(const Bench& bench, const std::string& name, int64_t bytes, int count) {
  Samples times(count);
  Samples cpu(1);
  RunTrainers([&](int rank) {
    Model model = bench.Open(rank, Matrices(name, 1, 2, bytes / 2 / static_cast<int64_t>(sizeof(float))));
    for (int i = 0; i < count / 10 + 3; ++i) TimedGather(model);
    const double before = CpuSeconds();
    for (int i = 0; i < count; ++i) times.Row(rank)[i] = TimedGather(model);
    *cpu.Row(rank) = (CpuSeconds() - before) / count;
  });
  return {.p50 = times.Quantile(0.5), .p99 = times.Quantile(0.99), .cpu = cpu.Quantile(1)};
}

// The same bytes by the same number of threads: every rank's slot is filled once.
double MemcpySeconds(int64_t bytes, int count) {
  std::vector<double> times;
  std::vector<std::vector<char>> from(kRanks, std::vector<char>(bytes, 1)), to(kRanks, std::vector<char>(bytes, 2));
  for (int i = 0; i < count; ++i) {
    const double start = Seconds();
    std::vector<std::thread> threads;
    for (int rank = 0; rank < kRanks; ++rank) {
      threads.emplace_back([&, rank] { std::memcpy(to[rank].data(), from[rank].data(), bytes); });
    }
    for (std::thread& thread : threads) thread.join();
    times.push_back(Seconds() - start);
  }
  std::nth_element(times.begin(), times.begin() + count / 2, times.end());
  return times[count / 2];
}

void BenchLargeGather(Bench& bench) {
  constexpr int64_t kBytes = 64 << 20;
  const double before = MemcpySeconds(kBytes, 31);
  const GatherTimes times = MeasureGathers(bench, "large", kBytes, 60);
  const double after = MemcpySeconds(kBytes, 31);
  bench.Row("gather 64 MiB, p50", times.p50 * 1e3, "ms", "");
  bench.Row("memcpy 64 MiB by as many threads, p50", (before + after) / 2 * 1e3, "ms", "");
  bench.Row("gather 64 MiB over memcpy", (before + after) / 2 / times.p50, "ratio", ">= 0.70");
}

void BenchSmallGather(Bench& bench) {
  const GatherTimes times = MeasureGathers(bench, "small", 64 << 10, 5000);
  bench.Row("gather 64 KiB, call to visible, p50", times.p50 * 1e6, "us", "< 100");
  bench.Row("gather 64 KiB, call to visible, p99", times.p99 * 1e6, "us", "");
  bench.Row("client CPU per 64 KiB gather, all threads", times.cpu * 1e6, "us", "<= 30");
}

// --- Placements ---

// A block of Llama, BF16: unit "cut" on rows, unit "owned" in whole matrices.
ModelSpec Placements() {
  constexpr int64_t kHidden = 1024, kIntermediate = 2816, kKeyValue = 256;
  ModelSpec spec;
  spec.name = "placements";
  spec.small_parameter_bytes = 0;
  for (const Placement placement : {Placement::kCut, Placement::kOwned}) {
    UnitSpec& unit = spec.units.emplace_back();
    unit.name = placement == Placement::kCut ? "cut" : "owned";
    for (const auto& shape : std::vector<std::vector<int64_t>>{{kHidden, kHidden},
                                                               {kKeyValue, kHidden},
                                                               {kKeyValue, kHidden},
                                                               {kHidden, kHidden},
                                                               {kIntermediate, kHidden},
                                                               {kIntermediate, kHidden},
                                                               {kHidden, kIntermediate}}) {
      unit.parameters.push_back({.name = absl::StrCat(unit.name, unit.parameters.size()),
                                 .shape = shape,
                                 .encoding = {.format = Format::kBF16},
                                 .placement = placement});
    }
  }
  return spec;
}

// In pairs, whose order alternates.
void BenchPlacements(const std::string& binary, Bench& bench) {
  constexpr int kFourRanks = 4;
  constexpr int kPairs = 200;
  const TemporaryDirectory directory;
  const DaemonProcess daemon =
      OrDie(DaemonProcess::Start(binary, directory.path(),
                                 {"--device=cpu:0", "--device=cpu:1", "--device=cpu:2", "--device=cpu:3"}),
            "start paramshardd");
  const Bench four{.socket_dir = directory.path(), .report = {}};
  Samples cut(kPairs, kFourRanks), owned(kPairs, kFourRanks);
  const auto trainer = [&](int rank) {
    Model model = four.Open(rank, Placements());
    for (int i = -5; i < kPairs; ++i) {
      const bool cut_first = i % 2 == 0;
      const double first = TimedGather(model, cut_first ? "cut" : "owned");
      const double second = TimedGather(model, cut_first ? "owned" : "cut");
      if (i < 0) continue;
      cut.Row(rank)[i] = cut_first ? first : second;
      owned.Row(rank)[i] = cut_first ? second : first;
    }
  };
  RunTrainers(trainer, kFourRanks);
  bench.Row("gather of a cut block, 4 ranks, p50", cut.Quantile(0.5) * 1e3, "ms", "");
  bench.Row("gather of an owned block, 4 ranks, p50", owned.Quantile(0.5) * 1e3, "ms", "");
  bench.Row("gather of an owned block over a cut one", owned.Quantile(0.5) / cut.Quantile(0.5), "ratio", "<= 1.05");
}

// --- Commits ---

void BenchCommit(Bench& bench) {
  constexpr int kCount = 1000;
  Samples times(kCount);
  RunTrainers([&](int rank) {
    Model model = bench.Open(rank, Matrices("commit", 10, 64, 64));
    for (int i = 0; i < kCount; ++i) {
      for (int unit = 0; unit < 10; ++unit) {
        UnitGradients gradients = OrDie(model.Gradients(absl::StrCat("unit", unit)), "gradients");
        OrDie(gradients.Push(), "push");
      }
      const double start = Seconds();
      PendingCommit commit = OrDie(model.Commit({.learning_rate = 1e-3f}), "commit");
      OrDie(commit.Wait(), "commit");
      times.Row(rank)[i] = Seconds() - start;
    }
  });
  bench.Row("commit of 10 tensors, 2 ranks, p50", times.Quantile(0.5) * 1e6, "us", "< 1000");
  bench.Row("commit of 10 tensors, 2 ranks, p99", times.Quantile(0.99) * 1e6, "us", "");
}

// --- Opening, idling, memory ---

void BenchOpen(Bench& bench) {
  Samples times(1);
  RunTrainers([&](int rank) {
    const ModelSpec spec = Matrices("open", 10000, 16, 64);
    const double start = Seconds();
    const Model model = bench.Open(rank, spec);
    *times.Row(rank) = Seconds() - start;
  });
  bench.Row("open a model of 10,000 parameters and attach", times.Quantile(1), "s", "< 1");
}

// Waits until the daemon has cleaned up after earlier trainers.
void AwaitNoSessions(const Bench& bench) {
  RunTrainers([&](int) {
    ctl::AdminClient admin = OrDie(ctl::AdminClient::Connect({.socket_dir = bench.socket_dir}), "admin");
    v1::ListSessionsResponse sessions;
    do {
      OrDie(admin.Call(&ctl::AdminClient::Stub::ListSessions, v1::ListSessionsRequest(), sessions), "sessions");
    } while (!sessions.sessions().empty());
  });
}

void BenchIdle(Bench& bench, const DaemonProcess& daemon) {
  constexpr double kSeconds = 10;
  AwaitNoSessions(bench);
  const absl::Duration before = daemon.CpuTime();
  std::this_thread::sleep_for(std::chrono::duration<double>(kSeconds));
  bench.Row("idle daemon", 100 * absl::ToDoubleSeconds(daemon.CpuTime() - before) / kSeconds, "% CPU", "0");
}

void BenchMemory(Bench& bench) {
  Samples numbers(2);
  RunTrainers([&](int rank) {
    Model model = bench.Open(rank, Matrices("memory", 4, 2048, 2048));
    for (int unit = 0; unit < 4; ++unit) {
      UnitGradients gradients = OrDie(model.Gradients(absl::StrCat("unit", unit)), "gradients");
      OrDie(gradients.Push(), "push");
    }
    const auto commit = [&] {
      PendingCommit pending = OrDie(model.Commit({}), "commit");
      OrDie(pending.Wait(), "commit");
    };
    commit();
    if (rank != 0) return commit();  // stays attached until rank 0 has looked
    ctl::AdminClient admin = OrDie(ctl::AdminClient::Connect({.socket_dir = bench.socket_dir}), "admin");
    v1::GetMemoryResponse memory;
    OrDie(admin.Call(&ctl::AdminClient::Stub::GetMemory, v1::GetMemoryRequest(), memory), "memory");
    numbers.Row(0)[0] = static_cast<double>(memory.total_bytes());
    numbers.Row(0)[1] = static_cast<double>(memory.resident_bytes());
    commit();
  });
  constexpr double kMiB = 1 << 20;
  bench.Row("memory by paramshardctl", numbers.Row(0)[0] / kMiB, "MiB", "");
  bench.Row("resident bytes of the daemon", numbers.Row(0)[1] / kMiB, "MiB", "");
  bench.Row("resident - 1.05 * memory", (numbers.Row(0)[1] - 1.05 * numbers.Row(0)[0]) / kMiB, "MiB", "<= 64");
}

int Run(const std::string& binary, bool json) {
  TemporaryDirectory directory;
  DaemonProcess daemon =
      OrDie(DaemonProcess::Start(binary, directory.path(), {"--device=cpu:0", "--device=cpu:1"}), "start paramshardd");
  Bench bench{.socket_dir = directory.path(), .report = {}};
  BenchLargeGather(bench);
  BenchSmallGather(bench);
  BenchPlacements(binary, bench);
  BenchCommit(bench);
  BenchOpen(bench);
  BenchMemory(bench);
  BenchIdle(bench, daemon);
  if (json) std::cout << bench.report.dump(2) << "\n";
  return 0;
}

}  // namespace
}  // namespace paramshard

int main(int argc, char** argv) {
  const auto bin = std::filesystem::read_symlink("/proc/self/exe").parent_path().parent_path();
  return paramshard::Run((bin / "paramshardd").string(), argc > 1 && std::string(argv[1]) == "--json");
}
