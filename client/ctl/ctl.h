// paramshardctl as a function.
#ifndef PARAMSHARD_CLIENT_CTL_CTL_H_
#define PARAMSHARD_CLIENT_CTL_CTL_H_

#include <ostream>

namespace paramshard::ctl {

struct Streams {
  std::ostream& out;
  std::ostream& err;
  // Takes a line that is overwritten and shows how far verify and convert are; null: nobody sees it.
  std::ostream* progress = nullptr;
};

// Does what the arguments ask and returns the exit code. Errors go to `err` as "paramshardctl: operation object: CODE:
// message".
int RunCtl(int argc, const char* const* argv, const Streams& streams);

}  // namespace paramshard::ctl

#endif  // PARAMSHARD_CLIENT_CTL_CTL_H_
