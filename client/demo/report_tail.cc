#include "client/demo/report_tail.h"

#include <fstream>
#include <utility>

namespace paramshard::demo {

std::vector<nlohmann::json> ReportTail::Read() {
  std::vector<nlohmann::json> events;
  std::ifstream in(file_);
  in.seekg(position_);
  std::string line;
  while (std::getline(in, line) && !in.eof()) {
    position_ += static_cast<std::streamoff>(line.size()) + 1;
    nlohmann::json event = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (event.is_object() && event.contains("event") && event.contains("time")) events.push_back(std::move(event));
  }
  return events;
}

}  // namespace paramshard::demo
