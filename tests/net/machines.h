// Machines with a network between them: network namespaces of this machine, joined by a bridge.
#ifndef PARAMSHARD_TESTS_NET_MACHINES_H_
#define PARAMSHARD_TESTS_NET_MACHINES_H_

#include <sys/types.h>

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/shared_memory/file_descriptor.h"
#include "tests/support/daemon_process.h"

namespace paramshard::test {

class Machines {
 public:
  // FAILED_PRECONDITION where this process may not make namespaces, `ip` of iproute2 is missing, or the kernel has no
  // bridges.
  static absl::StatusOr<Machines> Make(int count);

  Machines(Machines&&) = default;
  ~Machines();

  // Returns the address of the machine's only interface besides loopback.
  static std::string Address(int machine);
  // The descriptor of its network namespace.
  int network(int machine) const { return holders_[machine + 1].network(); }
  // Returns the surroundings of a daemon on the machine. They make NCCL treat machines as different hosts and use the
  // network.
  Surroundings Of(int machine) const;

  // Takes the machine off the bridge, and puts it back, without any notice to either end.
  absl::Status Cut(int machine) const;
  absl::Status Join(int machine) const;
  // Drops packets from the machine to the other one, but not the other way.
  absl::Status Mute(int machine, int other) const;
  absl::Status Unmute(int machine, int other) const;
  // Silently drops all packets between two machines. Needs iptables.
  absl::Status Sever(int machine, int other) const;
  absl::Status Mend(int machine, int other) const;
  // Drops a percentage of the packets from and to the machine. Needs iptables.
  absl::Status Lose(int machine, int percent) const;
  absl::Status LoseNone(int machine) const;
  // Limits the rate at which the machine sends.
  absl::Status Throttle(int machine, int kilobits) const;
  absl::Status Unthrottle(int machine) const;
  // Limits the rate of what others send to the machine.
  absl::Status ThrottleTo(int machine, int kilobits) const;
  absl::Status UnthrottleTo(int machine) const;
  // FAILED_PRECONDITION names a missing requirement of these two functions.
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
