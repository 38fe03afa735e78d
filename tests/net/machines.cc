#include "tests/net/machines.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/check.h"
#include "kernels/base/status_macros.h"
#include "tests/support/child_process.h"

namespace paramshard::test {
namespace {

// Uses a thread, which has its own namespace and passes it on to its children.
absl::Status RunIn(int network, const std::string& command) {
  absl::Status status;
  std::thread([&] {
    PARAMSHARD_CHECK(setns(network, CLONE_NEWNET) == 0);
    status = OutputOf(command).status();
  }).join();
  return status;
}

// A bucket of less than a millisecond's bytes does not reach high rates.
std::string Bucket(int kilobits, int least_bytes) {
  return absl::StrCat("tbf rate ", kilobits, "kbit burst ", std::max(least_bytes, kilobits / 8), " latency 200ms");
}

}  // namespace

absl::StatusOr<Machines::Holder> Machines::Holder::Start() {
  int ready[2];
  PARAMSHARD_CHECK(pipe2(ready, O_CLOEXEC) == 0);
  const pid_t pid = fork();
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    const char error = unshare(CLONE_NEWNET) == 0 ? 0 : static_cast<char>(errno);
    (void)!write(ready[1], &error, 1);
    while (error == 0) pause();
    _exit(1);
  }
  char error = EAGAIN;
  close(ready[1]);
  (void)!read(ready[0], &error, 1);
  close(ready[0]);
  Holder holder(pid);
  holder.network_ = wire::FileDescriptor(open(absl::StrCat("/proc/", pid, "/ns/net").c_str(), O_RDONLY | O_CLOEXEC));
  if (error == 0) return holder;
  return absl::FailedPreconditionError(absl::StrCat("failed to create a network namespace: ", strerror(error)));
}

Machines::Holder::Holder(Holder&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)), network_(std::move(other.network_)) {}

Machines::Holder::~Holder() {
  if (pid_ < 0) return;
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
}

absl::StatusOr<Machines> Machines::Make(int count) {
  if (!OutputOf("ip -V").ok()) return absl::FailedPreconditionError("ip (iproute2) not found");
  Machines machines;
  for (int i = 0; i <= count; ++i) {
    ASSIGN_OR_RETURN(Holder holder, Holder::Start());
    machines.holders_.push_back(std::move(holder));
  }
  // Some kernels lack bridges or pairs of interfaces.
  absl::Status made = RunIn(machines.holders_[0].network(), "ip link add bridge type bridge && ip link set bridge up");
  for (int machine = 0; machine < count && made.ok(); ++machine) made = machines.Connect(machine);
  if (made.ok()) return machines;
  return absl::FailedPreconditionError(absl::StrCat("failed to create a bridge between namespaces: ", made.message()));
}

Machines::~Machines() = default;

absl::Status Machines::Connect(int machine) {
  const std::string link = absl::StrCat("link", machine);
  RETURN_IF_ERROR(RunIn(holders_[0].network(),
                        absl::StrCat("ip link add ", link, " type veth peer name eth0 netns ",
                                     holders_[machine + 1].pid(), " && ip link set ", link, " master bridge up")));
  return RunIn(network(machine), absl::StrCat("ip link set lo up && ip addr add ", Address(machine),
                                              "/24 dev eth0 && ip link set eth0 up"));
}

std::string Machines::Address(int machine) { return absl::StrCat("10.9.0.", machine + 10); }

Surroundings Machines::Of(int machine) const {
  return {.network = network(machine), .environment = {{"NCCL_HOSTID", Address(machine)}}};
}

absl::Status Machines::Cut(int machine) const {
  return RunIn(holders_[0].network(), absl::StrCat("ip link set link", machine, " nomaster"));
}

absl::Status Machines::Join(int machine) const {
  return RunIn(holders_[0].network(), absl::StrCat("ip link set link", machine, " master bridge"));
}

absl::Status Machines::Mute(int machine, int other) const {
  return RunIn(network(machine), absl::StrCat("ip route add blackhole ", Address(other), "/32"));
}

absl::Status Machines::Unmute(int machine, int other) const {
  return RunIn(network(machine), absl::StrCat("ip route del blackhole ", Address(other), "/32"));
}

absl::Status Machines::Sever(int machine, int other) const {
  return RunIn(network(machine), absl::StrCat("iptables -w -A INPUT -s ", Address(other), " -j DROP"));
}

absl::Status Machines::Mend(int machine, int other) const {
  return RunIn(network(machine), absl::StrCat("iptables -w -D INPUT -s ", Address(other), " -j DROP"));
}

absl::Status Machines::Lose(int machine, int percent) const {
  const std::string rule = absl::StrCat(" eth0 -m statistic --mode random --probability ", percent / 100.0, " -j DROP");
  return RunIn(network(machine), absl::StrCat("iptables -w -A OUTPUT -o", rule, " && iptables -w -A INPUT -i", rule));
}

absl::Status Machines::LoseNone(int machine) const { return RunIn(network(machine), "iptables -w -F"); }

absl::Status Machines::Throttle(int machine, int kilobits) const {
  return RunIn(network(machine), absl::StrCat("tc qdisc add dev eth0 root ", Bucket(kilobits, 16 << 10)));
}

absl::Status Machines::Unthrottle(int machine) const { return RunIn(network(machine), "tc qdisc del dev eth0 root"); }

absl::Status Machines::ThrottleTo(int machine, int kilobits) const {
  return RunIn(holders_[0].network(),
               absl::StrCat("tc qdisc add dev link", machine, " root ", Bucket(kilobits, 64 << 10)));
}

absl::Status Machines::UnthrottleTo(int machine) const {
  return RunIn(holders_[0].network(), absl::StrCat("tc qdisc del dev link", machine, " root"));
}

absl::Status Machines::CheckLosesAndThrottles() const {
  absl::Status status = Lose(0, 1);
  if (status.ok()) status = LoseNone(0);
  if (!status.ok()) return absl::FailedPreconditionError(absl::StrCat("iptables does not work: ", status.message()));
  status = Throttle(0, 1000);
  if (status.ok()) status = Unthrottle(0);
  if (!status.ok()) return absl::FailedPreconditionError(absl::StrCat("tc with tbf does not work: ", status.message()));
  return absl::OkStatus();
}

}  // namespace paramshard::test
