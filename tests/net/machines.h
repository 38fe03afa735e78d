// Machines with a network between them: network namespaces of this machine, joined by a bridge.
#ifndef PARAMSHARD_TESTS_NET_MACHINES_H_
#define PARAMSHARD_TESTS_NET_MACHINES_H_

#include <sys/types.h>

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/wire/handoff.h"
#include "tests/support/daemon_process.h"

namespace paramshard::test {

class Machines {
 public:
  // FAILED_PRECONDITION where this process may not make namespaces, `ip` of iproute2 is missing, or the kernel has no bridges.
  static absl::StatusOr<Machines> Make(int count);

  Machines(Machines&&) = default;
  ~Machines();

  // Of its only interface; loopback is there besides.
  static std::string Address(int machine);
  // The descriptor of its network namespace.
  int network(int machine) const { return holders_[machine + 1].network(); }
  // What a daemon there gets. NCCL takes the GPUs of two machines for those of two hosts, and so goes over the network.
  Surroundings Of(int machine) const;

  // Takes the machine off the bridge, and puts it back: neither end hears of that.
  absl::Status Cut(int machine) const;
  absl::Status Join(int machine) const;
  // What the machine sends to the other one is lost, but not what it hears.
  absl::Status Mute(int machine, int other) const;
  absl::Status Unmute(int machine, int other) const;
  // Nothing comes from either of the two to the other one, and nobody says so. Needs iptables.
  absl::Status Sever(int machine, int other) const;
  absl::Status Mend(int machine, int other) const;
  // So many of a hundred packets that the machine sends, and of those that it is sent, are lost. Needs iptables.
  absl::Status Lose(int machine, int percent) const;
  absl::Status LoseNone(int machine) const;
  // The machine sends so many kilobits a second at most.
  absl::Status Throttle(int machine, int kilobits) const;
  absl::Status Unthrottle(int machine) const;
  // FAILED_PRECONDITION that names what this machine has not, of what those two need.
  absl::Status CheckLosesAndThrottles() const;

 private:
  // A process that holds a namespace.
  class Holder {
   public:
    static absl::StatusOr<Holder> Start();
    Holder(Holder&& other) noexcept;
    ~Holder();
    pid_t pid() const { return pid_; }
    int network() const { return network_.get(); }

   private:
    explicit Holder(pid_t pid) : pid_(pid) {}
    pid_t pid_;
    wire::FileDescriptor network_;
  };

  Machines() = default;
  absl::Status Connect(int machine);

  std::vector<Holder> holders_;  // the bridge's first
};

}  // namespace paramshard::test

#endif  // PARAMSHARD_TESTS_NET_MACHINES_H_
