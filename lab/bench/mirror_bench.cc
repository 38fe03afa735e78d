// Time from a commit to the version at all mirrors, each on a machine of its own: network namespaces of this one.
//
// Usage: mirror_bench [MEBIBYTES] [TIMES] [MIRRORS] [MEGABITS] [TLS] [SHARED]. A model of MEBIBYTES (1024) of BF16
// planes, of which a small part trains: from the commit's answer until readers beside all of MIRRORS (1) may read the
// version, in turns with as many bytes over plain TCP connections from the trainers' machine into memory on each of the
// mirrors' machines, side by side. Each of these receives at most MEGABITS a second (0: no limit); with SHARED the
// trainers' machine sends at most so many to all of them. TLS: certificates on both sides. Medians of TIMES (5), the
// shortest and the longest; CPU seconds of all processes that send or receive; the longest commit; the mean time of a
// mirror's phases. Needs root.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <ctime>
#include <iostream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/client.h"
#include "client/ctl/admin_client.h"
#include "client/reader.h"
#include "kernels/formats/format.h"
#include "lab/bench/arguments.h"
#include "lab/bench/or_die.h"
#include "tests/net/machines.h"
#include "tests/support/child_process.h"
#include "tests/support/daemon_process.h"
#include "tests/support/environment.h"
#include "tests/support/test_authority.h"

namespace paramshard {
namespace {

constexpr int64_t kColumns = 4096;
constexpr int64_t kParameterBytes = int64_t{64} << 20;
constexpr int64_t kPieceBytes = int64_t{1} << 20;
constexpr int kStreamPort = 7777, kDaemonPort = 7778;

double Seconds(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

double ClockSeconds(clockid_t clock) {
  timespec time{};
  clock_gettime(clock, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

double CpuSeconds(const std::vector<pid_t>& processes) {
  double seconds = 0;
  for (const pid_t process : processes) {
    clockid_t clock{};
    if (clock_getcpuclockid(process, &clock) == 0) seconds += ClockSeconds(clock);
  }
  return seconds;
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

std::string Times(const std::vector<double>& values) {
  const auto [least, most] = std::minmax_element(values.begin(), values.end());
  return absl::StrFormat("%.3f s (%.3f to %.3f)", Median(values), *least, *most);
}

ModelSpec BenchModel(int count) {
  ModelSpec spec{.name = "m"};
  for (int i = 0; i < count; ++i) {
    spec.units.push_back({.name = absl::StrCat("u", i),
                          .parameters = {{.name = absl::StrCat("w", i),
                                          .shape = {kParameterBytes / 2 / kColumns, kColumns},
                                          .encoding = {.format = Format::kBF16},
                                          .initial_value = {Initializer::kNormal, 0.0f, 0.02f},
                                          .trainable = false}}});
  }
  spec.units.push_back({.name = "head", .parameters = {{.name = "head", .shape = {64, 64}}}});
  return spec;
}

// Returns a TCP socket of a network namespace.
int SocketOf(int network) {
  int made = -1;
  std::thread([&] {
    if (setns(network, CLONE_NEWNET) == 0) made = socket(AF_INET, SOCK_STREAM, 0);
  }).join();
  if (made < 0) OrDie(absl::InternalError("no socket in a network namespace"), "stream");
  return made;
}

sockaddr_in StreamAddress() {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(kStreamPort);
  inet_pton(AF_INET, test::Machines::Address(0).c_str(), &address.sin_addr);
  return address;
}

int Listen(int network) {
  const int listener = SocketOf(network);
  const sockaddr_in address = StreamAddress();
  if (bind(listener, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0 || listen(listener, 8) != 0) {
    OrDie(absl::InternalError("listen failed"), "stream");
  }
  return listener;
}

// Sends the memory to one connection after the other.
absl::Status ServeStreams(int listener, const std::vector<char>& memory) {
  while (true) {
    const int connection = accept(listener, nullptr, nullptr);
    for (size_t sent = 0; sent < memory.size();) {
      const ssize_t wrote =
          write(connection, memory.data() + sent, std::min<size_t>(kPieceBytes, memory.size() - sent));
      if (wrote <= 0) return absl::InternalError("write failed");
      sent += wrote;
    }
    close(connection);
  }
}

// Returns its CPU seconds.
double ReceiveStream(int network, std::vector<char>& memory) {
  const int connection = SocketOf(network);
  const sockaddr_in address = StreamAddress();
  if (connect(connection, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    OrDie(absl::InternalError("connect failed"), "stream");
  }
  for (size_t received = 0; received < memory.size();) {
    const ssize_t got = read(connection, memory.data() + received, memory.size() - received);
    if (got <= 0) OrDie(absl::InternalError("read failed"), "stream");
    received += got;
  }
  close(connection);
  return ClockSeconds(CLOCK_THREAD_CPUTIME_ID);
}

struct Sample {
  std::vector<double> seconds, cpu;
  void Add(double time, double cpu_seconds) {
    seconds.push_back(time);
    cpu.push_back(cpu_seconds);
  }
};

// Plain TCP connections to all mirrors' machines at once.
class Streams {
 public:
  // Forks.
  Streams(const test::Machines& machines, int mirrors, int64_t bytes)
      : machines_(machines), memories_(mirrors, std::vector<char>(bytes, 1)) {
    const int listener = Listen(machines.network(0));
    for (int i = 0; i < mirrors; ++i) {
      senders_.push_back(test::ChildProcess::Run([&](test::Board&) { return ServeStreams(listener, memories_[0]); }));
      pids_.push_back(senders_.back().pid());
    }
    close(listener);
  }

  void Measure(Sample& sample) {
    const double cpu = CpuSeconds(pids_);
    std::vector<double> received(memories_.size());
    std::vector<std::thread> threads;
    const auto begin = std::chrono::steady_clock::now();
    for (size_t i = 0; i < memories_.size(); ++i) {
      threads.emplace_back([&, i] { received[i] = ReceiveStream(machines_.network(1 + i), memories_[i]); });
    }
    for (std::thread& thread : threads) thread.join();
    const double seconds = Seconds(begin);
    double all = CpuSeconds(pids_) - cpu;
    for (const double each : received) all += each;
    sample.Add(seconds, all);
  }

 private:
  const test::Machines& machines_;
  std::vector<std::vector<char>> memories_;
  std::vector<test::ChildProcess> senders_;
  std::vector<pid_t> pids_;
};

double Commit(Model& model) {
  const auto begin = std::chrono::steady_clock::now();
  UnitGradients gradients = OrDie(model.Gradients("head"), "gradients");
  const GradientView view = OrDie(gradients.Get("head"), "gradient");
  std::fill(view.fp32().begin(), view.fp32().end(), 0.01f);
  OrDie(gradients.Push(), "push");
  PendingCommit pending = OrDie(model.Commit({.learning_rate = 1e-3f}), "commit");
  OrDie(pending.Wait().status(), "wait");
  return Seconds(begin);
}

// Seconds of a mirror's phases so far.
struct Phases {
  static Phases Of(const std::string& sockets) {
    ctl::AdminClient admin = OrDie(ctl::AdminClient::Connect({.socket_dir = sockets}), "connect");
    v1::GetMetricsResponse metrics;
    OrDie(admin.Call(&ctl::AdminClient::Stub::GetMetrics, v1::GetMetricsRequest(), metrics), "metrics");
    const auto sum = [&](absl::string_view phase) {
      const std::string name = absl::StrCat("paramshard_mirror_version_seconds_sum{phase=\"", phase, "\"} ");
      const size_t at = metrics.text().find(name);
      double seconds = 0;
      if (at == std::string::npos) return seconds;
      const std::string rest = metrics.text().substr(at + name.size());
      (void)absl::SimpleAtod(rest.substr(0, rest.find('\n')), &seconds);
      return seconds;
    };
    return {sum("wait"), sum("transfer"), sum("activate")};
  }
  std::string Since(const Phases& before, int times) const {
    return absl::StrFormat("wait %.3f s, transfer %.3f s, activation %.3f s", (wait - before.wait) / times,
                           (transfer - before.transfer) / times, (activate - before.activate) / times);
  }

  double wait = 0, transfer = 0, activate = 0;
};

struct Setting {
  int mebibytes = 1024, times = 5, mirrors = 1, megabits = 0, tls = 0, shared = 0;
};

void Measure(const Setting& setting) {
  const int count = setting.mebibytes / 64;  // at most 1,024 parameters of 64 MiB
  const int64_t bytes = count * kParameterBytes;
  const test::Machines machines = OrDie(test::Machines::Make(1 + setting.mirrors), "make network namespaces");
  const int kilobits = setting.megabits * 1000;
  if (kilobits > 0 && setting.shared != 0) OrDie(machines.Throttle(0, kilobits), "limit a link");
  for (int i = 1; i <= setting.mirrors && kilobits > 0 && setting.shared == 0; ++i) {
    OrDie(machines.ThrottleTo(i, kilobits), "limit a link");
  }
  Streams streams(machines, setting.mirrors, bytes);  // before gRPC is used
  const test::Certificates certificates;
  const auto start = [&](int machine, const std::string& sockets, std::vector<std::string> flags) {
    const auto secured = setting.tls == 0 ? std::vector<std::string>{"--insecure=on"}
                                          : certificates.Flags(machine == 0 ? "node/0" : "reader");
    flags.insert(flags.end(), secured.begin(), secured.end());
    flags.insert(flags.end(), {"--log-level=warning", "--keeper=off"});
    return OrDie(
        test::DaemonProcess::Start(test::Program(PARAMSHARDD), sockets, flags, absl::Minutes(1), machines.Of(machine)),
        "start daemon");
  };
  const std::string address = absl::StrCat(test::Machines::Address(0), ":", kDaemonPort);
  const test::TemporaryDirectory training;
  std::vector<test::DaemonProcess> daemons;
  daemons.push_back(start(0, training.path(), {"--listen=" + address}));
  Client client = OrDie(Client::Connect({.rank = 0, .socket_dir = training.path()}), "connect");
  Model model = OrDie(client.OpenModel(BenchModel(count)), "open");
  const std::vector<test::TemporaryDirectory> mirrored(setting.mirrors);
  std::vector<std::unique_ptr<Reader>> readers;
  for (int i = 0; i < setting.mirrors; ++i) {
    daemons.push_back(start(1 + i, mirrored[i].path(), {"--mirror=" + address}));
    readers.push_back(OrDie(Reader::Create({.model = "m", .socket_dir = mirrored[i].path()}), "create reader"));
  }
  std::vector<pid_t> owner = {daemons[0].pid()}, mirrors;
  for (int i = 1; i <= setting.mirrors; ++i) mirrors.push_back(daemons[i].pid());
  const auto await = [&](int64_t commit) {
    for (const auto& reader : readers) {
      OrDie(reader->Acquire({.min_commit = commit, .timeout = absl::Minutes(10)}).status(), "acquire");
    }
  };
  await(0);
  Sample of_streams, versions;
  std::vector<double> at_mirrors, commits;
  streams.Measure(of_streams);
  commits.push_back(Commit(model));
  await(1);
  of_streams = {};
  const Phases before = Phases::Of(mirrored[0].path());
  for (int i = 2; i <= 1 + setting.times; ++i) {
    streams.Measure(of_streams);
    commits.push_back(Commit(model));
    const double owner_cpu = CpuSeconds(owner), mirrors_cpu = CpuSeconds(mirrors);
    const auto begin = std::chrono::steady_clock::now();
    await(i);
    versions.Add(Seconds(begin), CpuSeconds(owner) - owner_cpu);
    at_mirrors.push_back(CpuSeconds(mirrors) - mirrors_cpu);
  }
  std::cout << absl::StrFormat(
      "%.2f GB to %d mirrors, %s%s%s: TCP %s, CPU %.2f s; commit to active %s, %.2f of it, CPU %.2f s and %.2f s at "
      "the mirrors; longest commit %.3f s; %s\n",
      bytes / 1e9, setting.mirrors, kilobits > 0 ? absl::StrCat(setting.megabits, " Mbit/s") : "no limit",
      setting.shared != 0 ? " shared" : "", setting.tls != 0 ? ", TLS" : "", Times(of_streams.seconds),
      Median(of_streams.cpu), Times(versions.seconds), Median(versions.seconds) / Median(of_streams.seconds),
      Median(versions.cpu), Median(at_mirrors), *std::max_element(commits.begin(), commits.end()),
      Phases::Of(mirrored[0].path()).Since(before, setting.times));
}

}  // namespace
}  // namespace paramshard

int main(int argc, char** argv) {
  paramshard::Setting setting;
  paramshard::ReadCounts(argc, argv,
                         {{"MEBIBYTES", &setting.mebibytes, 64, 65536},
                          {"TIMES", &setting.times},
                          {"MIRRORS", &setting.mirrors, 1, 16},
                          {"MEGABITS", &setting.megabits, 0, 1'000'000},
                          {"TLS", &setting.tls, 0, 1},
                          {"SHARED", &setting.shared, 0, 1}});
  paramshard::Measure(setting);
}
