#include "server/observe/process_statistics.h"

#include <dirent.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdint>
#include <fstream>
#include <iterator>
#include <memory>
#include <optional>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace paramshard::server {
namespace {

// Indices in proc(5)'s list of /proc/PID/stat, from the field after the name, which may contain any characters.
constexpr size_t kUserTicks = 11;
constexpr size_t kSystemTicks = 12;
constexpr size_t kStartTicks = 19;
constexpr size_t kVirtualBytes = 20;
constexpr size_t kResidentPages = 21;

std::string ReadText(const char* path) {
  std::ifstream stream(path);
  return {std::istreambuf_iterator<char>(stream), {}};
}

std::vector<double> StatFields() {
  const std::string text = ReadText("/proc/self/stat");
  const size_t name_end = text.rfind(')');
  std::vector<double> fields;
  if (name_end == std::string::npos) return fields;
  for (const absl::string_view field : absl::StrSplit(text.substr(name_end + 1), ' ', absl::SkipEmpty())) {
    if (!absl::SimpleAtod(field, &fields.emplace_back())) fields.back() = 0;  // the state is a letter
  }
  return fields;
}

// Returns the boot time of the machine, in Unix time.
std::optional<double> BootTime() {
  for (absl::string_view line : absl::StrSplit(ReadText("/proc/stat"), '\n')) {
    double seconds = 0;
    if (absl::ConsumePrefix(&line, "btime ") && absl::SimpleAtod(line, &seconds)) return seconds;
  }
  return std::nullopt;
}

std::optional<double> OpenDescriptors() {
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(opendir("/proc/self/fd"), closedir);
  if (folder == nullptr) return std::nullopt;
  int64_t count = 0;
  while (const dirent* const entry = readdir(folder.get())) count += entry->d_name[0] != '.' ? 1 : 0;
  return static_cast<double>(count - 1);  // without the folder itself
}

}  // namespace

std::vector<MetricSample> ProcessSamples() {
  std::vector<MetricSample> samples;
  const auto add = [&](Metric metric, double value) { samples.push_back({metric, {}, value}); };
  const auto ticks_per_second = static_cast<double>(sysconf(_SC_CLK_TCK));
  if (const std::vector<double> fields = StatFields(); fields.size() > kResidentPages) {
    add(Metric::kProcessCpu, (fields[kUserTicks] + fields[kSystemTicks]) / ticks_per_second);
    add(Metric::kProcessVirtualMemory, fields[kVirtualBytes]);
    add(Metric::kProcessResidentMemory, fields[kResidentPages] * static_cast<double>(sysconf(_SC_PAGESIZE)));
    if (const auto boot = BootTime()) add(Metric::kProcessStartTime, *boot + fields[kStartTicks] / ticks_per_second);
  }
  if (const auto open = OpenDescriptors()) add(Metric::kProcessOpenFds, *open);
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0) add(Metric::kProcessMaxFds, static_cast<double>(limit.rlim_cur));
  return samples;
}

}  // namespace paramshard::server
