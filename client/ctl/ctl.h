// paramshardctl as a function.
#ifndef PARAMSHARD_CLIENT_CTL_CTL_H_
#define PARAMSHARD_CLIENT_CTL_CTL_H_

#include <ostream>

namespace paramshard::ctl {

struct Streams {
  std::ostream& out;
  std::ostream& err;
  // Receives a progress line of verify and convert, which is overwritten; null: no progress.
  std::ostream* progress = nullptr;
};

// Runs the command of the arguments and returns the exit code. Errors go to `err` as "paramshardctl: operation object:
// CODE: message".
int RunCtl(int argc, const char* const* argv, const Streams& streams);

}  // namespace paramshard::ctl

#endif  // PARAMSHARD_CLIENT_CTL_CTL_H_
