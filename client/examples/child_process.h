// A program that the demo starts, and that does not outlive it.
#ifndef PARAMSHARD_CLIENT_EXAMPLES_CHILD_PROCESS_H_
#define PARAMSHARD_CLIENT_EXAMPLES_CHILD_PROCESS_H_

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace paramshard::examples {

// How a process ended.
struct ExitState {
  int code = 0;    // when signal is 0
  int signal = 0;  // that killed it

  bool ok() const { return code == 0 && signal == 0; }
  std::string ToString() const;
};

// Owns a process. Move-only. The destructor kills it if it still runs; the kernel does so when this
// process dies.
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

  // How the process ended; nullopt while it runs.
  std::optional<ExitState> Poll();
  // Waits for the end. DEADLINE_EXCEEDED.
  absl::StatusOr<ExitState> Wait(absl::Duration timeout);
  // Waits for the end with exit code 0; any other end is an error that quotes the last lines of the
  // output.
  absl::Status WaitForSuccess(absl::Duration timeout);
  // OK while the process runs, else the same error.
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

// Runs a program to its end and returns its standard output. An exit code that is not 0 is an
// error.
absl::StatusOr<std::string> RunAndRead(const std::string& name, const std::vector<std::string>& arguments,
                                       const std::string& output_file, absl::Duration timeout);

}  // namespace paramshard::examples

#endif  // PARAMSHARD_CLIENT_EXAMPLES_CHILD_PROCESS_H_
