// A server that a keeper starts and a test tells what to do, on a socket that outlives its processes.
//
//   --control=FD     that socket
//   --exit=CODE      ends as soon as it has begun: a start that fails
//   --lend           takes nothing: the test has the keeper's socket from the first request on
//
// It says "begun PID NAMES", with the names of all that it has taken, divided by commas; "signal N" when one came that
// a server waits for; and answers each command (Obey, Carry). It does not look whether the keeper is gone: the kernel
// does.

#include <poll.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "kernels/base/check.h"
#include "server/keeper/keeper_link.h"
#include "server/keeper/keeper_message.h"
#include "server/keeper/keeper_packet.h"
#include "tests/server/keeper/memory_file.h"

namespace paramshard::server {
namespace {

using Words = std::vector<std::string>;

int NumberIn(absl::string_view text) {
  int number = -1;
  PARAMSHARD_CHECK(absl::SimpleAtoi(text, &number));
  return number;
}

class TestServer {
 public:
  TestServer(int control, Words flags, std::unique_ptr<KeeperLink> link)
      : control_(control), flags_(std::move(flags)), link_(std::move(link)) {}

  void Begin(bool take) {
    if (take) memory_ = link_->TakeAll().value();
    const auto name = [](std::string* text, const auto& entry) { *text += entry.first; };
    Say(absl::StrCat(
        "begun ", getpid(), " ",
        memory_.size() > 100 ? absl::StrCat(memory_.size(), " names") : absl::StrJoin(memory_, ",", name)));
  }

  // Until a command or a signal ends the process.
  [[noreturn]] void Serve() {
    sigset_t signals;
    sigemptyset(&signals);
    for (int signal : {SIGTERM, SIGINT, SIGHUP, SIGUSR1}) sigaddset(&signals, signal);
    const wire::FileDescriptor signal_fd(signalfd(-1, &signals, SFD_CLOEXEC));
    while (true) {
      pollfd polled[] = {{.fd = control_, .events = POLLIN, .revents = 0},
                         {.fd = signal_fd.get(), .events = POLLIN, .revents = 0}};
      PARAMSHARD_CHECK(poll(polled, std::size(polled), -1) > 0);
      if (polled[0].revents != 0) Obey();
      if (polled[1].revents != 0) TakeSignal(signal_fd.get());
    }
  }

 private:
  void Say(absl::string_view text, const std::vector<int>& fds = {}) const {
    PARAMSHARD_CHECK(SendKeeperPacket(control_, text, fds).ok());
  }

  void TakeSignal(int signal_fd) const {
    signalfd_siginfo info;
    PARAMSHARD_CHECK(read(signal_fd, &info, sizeof(info)) == sizeof(info));
    Say(absl::StrCat("signal ", info.ssi_signo));
  }

  void Obey() {
    const absl::StatusOr<KeeperPacket> packet = ReceiveKeeperPacket(control_);
    if (!packet.ok()) _exit(0);  // the test has ended
    const Words words = absl::StrSplit(packet->bytes, ' ');
    if (words[0] == "exit") _exit(NumberIn(words[1]));
    if (words[0] == "raise") Raise(NumberIn(words[1]));
    if (words[0] == "link") return Say("link", {link_->fd()});
    if (words[0] == "keep-and-die") KeepAndDie(NumberIn(words[1]));
    Say(Carry(words));
  }

  [[noreturn]] static void Raise(int signal) {
    std::signal(signal, SIG_DFL);
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, signal);
    sigprocmask(SIG_UNBLOCK, &signals, nullptr);
    kill(getpid(), signal);
    _exit(99);
  }

  // Without a look at the answers.
  [[noreturn]] void KeepAndDie(int count) const {
    for (int i = 0; i < count; ++i) {
      const std::string name = absl::StrCat("last/", i);
      const absl::StatusOr<std::string> request = EncodeKeeperMessage(
          {.kind = KeeperMessageKind::kKeep, .sequence = 1'000'000 + static_cast<uint64_t>(i), .words = {name}});
      PARAMSHARD_CHECK(SendKeeperPacket(link_->fd(), *request, {test::MemoryFile(name).get()}).ok());
    }
    Raise(SIGKILL);
  }

  std::string Carry(const Words& words) {
    if (words[0] == "ready") return link_->ReportReady("test").ToString();
    if (words[0] == "drop") return link_->DropPrefix(words[1]).ToString();
    if (words[0] == "keep") return Keep(words[1], words[2]).ToString();
    if (words[0] == "keep-many") return KeepMany(NumberIn(words[1])).ToString();
    if (words[0] == "read") return test::BytesOf(memory_[words[1]].get());
    if (words[0] == "restart") return Restart({words.begin() + 1, words.end()}).ToString();
    if (words[0] == "last-restart") return LastRestart();
    if (words[0] == "restarts") return Restarts();
    if (words[0] == "flags") return absl::StrJoin(flags_, " ");
    if (words[0] == "group") return absl::StrCat(getpgrp() == getpid() ? "own" : "the keeper's");
    if (words[0] == "close") return Close();
    return "unknown command";
  }

  absl::Status Keep(const std::string& name, absl::string_view bytes) {
    memory_[name] = test::MemoryFile(bytes);
    return link_->Keep(name, memory_[name].get());
  }

  absl::Status KeepMany(int count) {
    for (int i = 0; i < count; ++i) {
      const std::string name = absl::StrCat("many/", i);
      const absl::Status kept = link_->Keep(name, test::MemoryFile(name).get());
      if (!kept.ok()) return kept;
    }
    return absl::OkStatus();
  }

  absl::Status Restart(const Words& words) {
    if (words.empty()) return link_->RequestRestart(std::nullopt);
    return link_->RequestRestart(ServerCommand{.program = words[0], .arguments = {words.begin() + 1, words.end()}});
  }

  std::string LastRestart() {
    const absl::StatusOr<std::string> rollback = link_->LastRestart();
    return rollback.ok() ? absl::StrCat("given up: ", *rollback) : rollback.status().ToString();
  }

  std::string Restarts() {
    const absl::StatusOr<int64_t> count = link_->CountRestarts();
    return count.ok() ? absl::StrCat(*count) : count.status().ToString();
  }

  // Behaves like a broken server.
  std::string Close() {
    link_.reset();
    return "closed";
  }

  const int control_;
  const Words flags_;
  std::unique_ptr<KeeperLink> link_;
  KeptStore::Descriptors memory_;
};

int Main(int argc, char** argv) {
  // A deliberate crash leaves no core.
  const rlimit no_core{.rlim_cur = 0, .rlim_max = 0};
  setrlimit(RLIMIT_CORE, &no_core);
  int control = -1;
  std::optional<int> exit_code;
  bool lend = false;
  for (int i = 1; i < argc; ++i) {
    absl::string_view flag = argv[i];
    if (absl::ConsumePrefix(&flag, "--control=")) control = NumberIn(flag);
    if (absl::ConsumePrefix(&flag, "--exit=")) exit_code = NumberIn(flag);
    lend = lend || flag == "--lend";
  }
  absl::StatusOr<std::unique_ptr<KeeperLink>> link = KeeperLink::FromEnvironment();
  PARAMSHARD_CHECK(link.ok());
  TestServer server(control, {argv + 1, argv + argc}, *std::move(link));
  server.Begin(!lend);
  if (exit_code.has_value()) return *exit_code;
  server.Serve();
}

}  // namespace
}  // namespace paramshard::server

int main(int argc, char** argv) { return paramshard::server::Main(argc, argv); }
