#include "server/device/memory_cgroup.h"

#include <glob.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <string_view>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace paramshard::server {
namespace {

constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();

// Names of one version's files.
struct Version {
  std::vector<std::string> limits;
  std::string usage;
  std::string inactive_file;  // in memory.stat
};

// memory.high is not a hard limit, but slows the process down until it seems to stand still.
const Version& Two() {
  static const auto& version = *new Version{
      .limits = {"memory.max", "memory.high"}, .usage = "memory.current", .inactive_file = "inactive_file"};
  return version;
}

const Version& One() {
  static const auto& version = *new Version{
      .limits = {"memory.limit_in_bytes"}, .usage = "memory.usage_in_bytes", .inactive_file = "total_inactive_file"};
  return version;
}

// A hierarchy that is mounted here.
struct Mount {
  const Version* version;
  std::string root;   // the group that is mounted
  std::string point;  // the directory where it is mounted
};

std::vector<std::string> Lines(const std::string& path) {
  std::ifstream file(path);
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
}

// Version 1 writes "no limit" as a number near 2^63, version 2 as "max".
std::optional<int64_t> Number(absl::string_view text) {
  uint64_t number = 0;
  if (text == "max") return kNoLimit;
  if (!absl::SimpleAtoi(text, &number)) return std::nullopt;
  return static_cast<int64_t>(std::min<uint64_t>(number, kNoLimit));
}

std::optional<int64_t> NumberIn(const std::string& path) {
  const std::vector<std::string> lines = Lines(path);
  return lines.empty() ? std::nullopt : Number(lines.front());
}

std::optional<int64_t> Statistic(const std::string& group, absl::string_view name) {
  for (const std::string& line : Lines(group + "/memory.stat")) {
    absl::string_view value = line;
    if (absl::ConsumePrefix(&value, name) && absl::ConsumePrefix(&value, " ")) return Number(value);
  }
  return std::nullopt;
}

int64_t LimitOf(const Version& version, const std::string& group) {
  int64_t limit = kNoLimit;
  for (const std::string& name : version.limits) {
    limit = std::min(limit, NumberIn(absl::StrCat(group, "/", name)).value_or(kNoLimit));
  }
  // Version 1 gives the least limit of all groups above, including groups that are not mounted here.
  return std::min(limit, Statistic(group, "hierarchical_memory_limit").value_or(kNoLimit));
}

int64_t LeftBy(const Version& version, const std::string& group) {
  const int64_t limit = LimitOf(version, group);
  if (limit == kNoLimit) return kNoLimit;
  const int64_t usage = NumberIn(absl::StrCat(group, "/", version.usage)).value_or(0);
  const int64_t reclaimable = Statistic(group, version.inactive_file).value_or(0);
  return std::max<int64_t>(limit - std::max<int64_t>(usage - reclaimable, 0), 0);
}

// Groups of version 1 may be told not to count what groups below them use.
bool CountsGroupsBelow(const std::string& group) { return NumberIn(group + "/memory.use_hierarchy").value_or(1) != 0; }

// The kernel writes spaces and the like as \040.
std::string Unescaped(absl::string_view text) {
  std::string plain;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '\\' || i + 3 >= text.size()) {
      plain += text[i];
      continue;
    }
    plain += static_cast<char>((text[i + 1] - '0') * 64 + (text[i + 2] - '0') * 8 + (text[i + 3] - '0'));
    i += 3;
  }
  return plain;
}

// "36 35 98:0 ROOT POINT options [fields...] - TYPE source options"
std::optional<Mount> ParseMount(const std::string& line) {
  const std::vector<std::string> fields = absl::StrSplit(line, ' ');
  const auto dash = absl::c_find(fields, "-");
  if (fields.size() < 6 || fields.end() - dash < 4) return std::nullopt;
  Mount mount{.root = Unescaped(fields[3]), .point = Unescaped(fields[4])};
  if (dash[1] == "cgroup2") {
    mount.version = &Two();
  } else if (dash[1] == "cgroup" && absl::c_linear_search(absl::StrSplit(dash[3], ','), "memory")) {
    mount.version = &One();
  } else {
    return std::nullopt;
  }
  return mount;
}

// This process's group in the hierarchy that a line of /proc/self/cgroup is about: "4:memory:/group", or "0::/group".
std::optional<std::string> GroupIn(const Version& version, const std::string& line) {
  const std::vector<std::string> fields = absl::StrSplit(line, absl::MaxSplits(':', 2));
  if (fields.size() != 3) return std::nullopt;
  const bool is_two = fields[0] == "0" && fields[1].empty();
  const bool is_one = absl::c_linear_search(absl::StrSplit(fields[1], ','), "memory");
  if (&version == &Two() ? !is_two : !is_one) return std::nullopt;
  return std::string(absl::StripSuffix(fields[2], " (deleted)"));
}

bool HoldsThisProcess(const std::string& procs) {
  const std::string self = absl::StrCat(getpid());
  return absl::c_linear_search(Lines(procs), self);
}

// Finds the directory below a mount from outside of this process's namespace. Its root is "/../..": as many folders of
// unknown names lie between it and the namespace's root. The right one has this process in it.
std::optional<std::string> BelowUnnamed(const Mount& mount, const std::string& group) {
  std::string pattern = mount.point;
  for (auto i = absl::c_count(absl::StrSplit(mount.root, '/'), ".."); i > 0; --i) pattern += "/*";
  glob_t found{};
  std::optional<std::string> directory;
  if (glob(absl::StrCat(pattern, group, "/cgroup.procs").c_str(), GLOB_NOSORT, nullptr, &found) == 0) {
    for (size_t i = 0; i < found.gl_pathc && !directory.has_value(); ++i) {
      if (!HoldsThisProcess(found.gl_pathv[i])) continue;
      directory = std::string(absl::StripSuffix(found.gl_pathv[i], "/cgroup.procs"));
    }
  }
  globfree(&found);
  return directory;
}

// Returns the directory of the group below the mount; no value if it is not there.
std::optional<std::string> DirectoryOf(const Mount& mount, const std::string& group) {
  const std::string below = group == "/" ? "" : group;
  if (absl::StartsWith(mount.root, "/..")) return BelowUnnamed(mount, below);
  absl::string_view rest = below;
  if (mount.root != "/" && !absl::ConsumePrefix(&rest, mount.root)) return std::nullopt;
  // A group outside of the namespace begins with "/..", a sibling with the same letters.
  if (!rest.empty() && (rest.front() != '/' || absl::StartsWith(rest, "/.."))) return std::nullopt;
  return absl::StrCat(mount.point, rest);
}

int64_t LeftUpTo(const Mount& mount, std::string directory) {
  int64_t left = LeftBy(*mount.version, directory);
  while (directory.size() > mount.point.size()) {
    directory.resize(directory.rfind('/'));
    if (!CountsGroupsBelow(directory)) break;
    left = std::min(left, LeftBy(*mount.version, directory));
  }
  return left;
}

}  // namespace

std::optional<int64_t> BytesLeftByCgroups(const std::string& cgroup, const std::string& mountinfo) {
  const std::vector<std::string> groups = Lines(cgroup);
  int64_t left = kNoLimit;
  for (const std::string& line : Lines(mountinfo)) {
    const std::optional<Mount> mount = ParseMount(line);
    if (!mount.has_value()) continue;
    for (const std::string& of_group : groups) {
      const std::optional<std::string> group = GroupIn(*mount->version, of_group);
      if (!group.has_value()) continue;
      const std::optional<std::string> directory = DirectoryOf(*mount, *group);
      if (directory.has_value()) left = std::min(left, LeftUpTo(*mount, *directory));
    }
  }
  return left == kNoLimit ? std::nullopt : std::optional(left);
}

}  // namespace paramshard::server
