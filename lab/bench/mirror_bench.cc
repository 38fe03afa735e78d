// Time from a commit to the version at a mirror, on one machine over loopback.
//
// Usage: mirror_bench [MEBIBYTES] [TIMES]. A model of MEBIBYTES (1024) of BF16 planes, of which a small part trains: from
// the commit's answer until a reader beside the mirror may read the version, in turns with as many bytes over a TCP
// connection from one process' memory into another's. Medians of TIMES (5), and the longest commit.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/client.h"
#include "client/reader.h"
#include "kernels/formats/format.h"
#include "lab/bench/arguments.h"
#include "lab/bench/or_die.h"
#include "tests/support/child_process.h"
#include "tests/support/daemon_process.h"

namespace paramshard {
namespace {

constexpr int64_t kColumns = 4096;
constexpr int64_t kParameterBytes = int64_t{64} << 20;
constexpr int64_t kPieceBytes = int64_t{1} << 20;

double Seconds(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
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

sockaddr_in Loopback(int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

// Sends the same memory to each connection.
absl::Status ServeStreams(int listener, int64_t bytes, int times) {
  const std::vector<char> memory(bytes, 1);
  for (int i = 0; i < times; ++i) {
    const int connection = accept(listener, nullptr, nullptr);
    for (int64_t sent = 0; sent < bytes;) {
      const ssize_t wrote = write(connection, memory.data() + sent, std::min(kPieceBytes, bytes - sent));
      if (wrote <= 0) return absl::InternalError("write failed");
      sent += wrote;
    }
    close(connection);
  }
  return absl::OkStatus();
}

double ReceiveStream(const sockaddr_in& address, std::vector<char>& memory) {
  const int connection = socket(AF_INET, SOCK_STREAM, 0);
  if (connect(connection, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    OrDie(absl::InternalError("connect failed"), "stream");
  }
  const auto begin = std::chrono::steady_clock::now();
  int64_t received = 0;
  while (received < static_cast<int64_t>(memory.size())) {
    const ssize_t got = read(connection, memory.data() + received, memory.size() - received);
    if (got <= 0) OrDie(absl::InternalError("read failed"), "stream");
    received += got;
  }
  close(connection);
  return Seconds(begin);
}

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

void Measure(int count, int times) {
  const int64_t bytes = count * kParameterBytes;
  const int listener = socket(AF_INET, SOCK_STREAM, 0);
  const int port = test::FreePort(), daemon_port = test::FreePort();
  const sockaddr_in address = Loopback(port);
  const int on = 1;
  setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (bind(listener, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0 || listen(listener, 1) != 0) {
    OrDie(absl::InternalError("listen failed"), "stream");
  }
  // Forked before gRPC is used.
  const test::ChildProcess sender =
      test::ChildProcess::Run([&](test::Board&) { return ServeStreams(listener, bytes, times + 1); });
  const test::TemporaryDirectory training, mirrored;
  const std::string quiet = "--log-level=warning";
  const test::DaemonProcess daemon =
      OrDie(test::DaemonProcess::Start(PARAMSHARDD, training.path(),
                                       {absl::StrCat("--listen=127.0.0.1:", daemon_port), "--insecure=on", quiet}),
            "start daemon");
  Client client = OrDie(Client::Connect({.rank = 0, .socket_dir = training.path()}), "connect");
  Model model = OrDie(client.OpenModel(BenchModel(count)), "open");
  const test::DaemonProcess mirror =
      OrDie(test::DaemonProcess::Start(PARAMSHARDD, mirrored.path(),
                                       {absl::StrCat("--mirror=127.0.0.1:", daemon_port), quiet}),
            "start mirror");
  const auto reader = OrDie(Reader::Create({.model = "m", .socket_dir = mirrored.path()}), "create reader");
  OrDie(reader->Acquire({.timeout = absl::Minutes(10)}).status(), "acquire");
  std::vector<char> memory(bytes);
  ReceiveStream(address, memory);
  std::vector<double> streams, versions, commits;
  for (int i = 1; i <= times; ++i) {
    streams.push_back(ReceiveStream(address, memory));
    commits.push_back(Commit(model));
    const auto begin = std::chrono::steady_clock::now();
    OrDie(reader->Acquire({.min_commit = i, .timeout = absl::Minutes(10)}).status(), "acquire");
    versions.push_back(Seconds(begin));
  }
  std::cout << absl::StrFormat(
      "%.2f GB of planes: TCP stream %.3f s, commit to active at the mirror %.3f s (%.2f); longest commit %.3f s\n",
      bytes / 1e9, Median(streams), Median(versions), Median(versions) / Median(streams),
      *std::max_element(commits.begin(), commits.end()));
}

}  // namespace
}  // namespace paramshard

int main(int argc, char** argv) {
  int mebibytes = 1024, times = 5;
  paramshard::ReadCounts(argc, argv, {{"MEBIBYTES", &mebibytes, 64, 65536}, {"TIMES", &times}});
  paramshard::Measure(mebibytes / 64, times);
}
