// Reads a trainer's report while it is being written.
#ifndef PARAMSHARD_CLIENT_DEMO_REPORT_TAIL_H_
#define PARAMSHARD_CLIENT_DEMO_REPORT_TAIL_H_

#include <string>
#include <vector>

#include "nlohmann/json.hpp"

namespace paramshard::demo {

class ReportTail {
 public:
  explicit ReportTail(std::string file) : file_(std::move(file)) {}

  // Returns the events written since the last call. An incomplete line is left for the next call.
  std::vector<nlohmann::json> Read();

 private:
  std::string file_;
  std::streamoff position_ = 0;
};

}  // namespace paramshard::demo

#endif  // PARAMSHARD_CLIENT_DEMO_REPORT_TAIL_H_
