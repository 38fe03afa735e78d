// A child process that does not outlive its parent.
#ifndef PARAMSHARD_CLIENT_DEMO_CHILD_PROCESS_H_
#define PARAMSHARD_CLIENT_DEMO_CHILD_PROCESS_H_

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace paramshard::demo {

// How a process ended.
struct ExitState {
  int code = 0;    // exit code if signal is 0
  int signal = 0;  // signal that killed it; 0: none

  bool ok() const { return code == 0 && signal == 0; }
  std::string ToString() const;
};

// Owns a process. Move-only. The destructor kills it if it still runs, and the kernel kills it when this process dies.
class ChildProcess {
 public:
  struct Spec {
    std::string name;                    // for messages
    std::vector<std::string> arguments;  // the program first
    std::string output_file;             // standard output and standard error are appended to it
  };

  static absl::StatusOr<ChildProcess> Start(const Spec& spec);

  ChildProcess(ChildProcess&& other) noexcept;
  ChildProcess& operator=(ChildProcess&& other) noexcept;
  ~ChildProcess();

  const std::string& name() const { return spec_.name; }

  // Returns how the process ended; nullopt while it runs.
  std::optional<ExitState> Poll();
  // Waits for the process to end. DEADLINE_EXCEEDED after `timeout`.
  absl::StatusOr<ExitState> Wait(absl::Duration timeout);
  // Waits for the process to end with exit code 0. Any other end is INTERNAL and quotes the end of the output.
  absl::Status WaitForSuccess(absl::Duration timeout);
  // Returns OK while the process runs, else the same error.
  absl::Status CheckRunning();

  void Signal(int signal);

 private:
  ChildProcess(Spec spec, pid_t pid) : spec_(std::move(spec)), pid_(pid) {}

  absl::Status Failed(const ExitState& exit) const;
  void Kill();

  Spec spec_;
  pid_t pid_ = -1;  // -1: none
  std::optional<ExitState> exit_;
};

// Runs a program to its end and returns its output. An exit code that is not 0 is an error.
absl::StatusOr<std::string> RunAndRead(const std::string& name, const std::vector<std::string>& arguments,
                                       const std::string& output_file, absl::Duration timeout);

}  // namespace paramshard::demo

#endif  // PARAMSHARD_CLIENT_DEMO_CHILD_PROCESS_H_
