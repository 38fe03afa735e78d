#include "tests/architecture/includes.h"

#include <algorithm>
#include <fstream>
#include <optional>
#include <regex>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace paramshard {
namespace {

namespace fs = std::filesystem;

bool IsSource(const fs::path& path) {
  const std::string extension = path.extension();
  return extension == ".h" || extension == ".cc" || extension == ".cu" || extension == ".cuh";
}

// Headers of C++, C and Linux are everybody's. They are in angle brackets, and without a folder or in one of these.
bool IsSystemHeader(const std::string& name, bool angle_brackets) {
  static const std::set<std::string> folders = {"arpa", "asm", "linux", "net", "netinet", "sys"};
  static const std::set<std::string> libraries = {"xxh_x86dispatch.h", "xxhash.h", "zlib.h", "cuda.h",
                                                  "cuda_runtime.h",    "nccl.h"};
  if (!angle_brackets) return false;
  const size_t slash = name.find('/');
  return slash == std::string::npos ? !libraries.contains(name) : folders.contains(name.substr(0, slash));
}

std::vector<Include> ScanFile(const fs::path& root, const std::string& file) {
  static const std::regex pattern(R"(^\s*#\s*include\s*([<"])([^>"]+)[>"].*)");
  std::vector<Include> includes;
  std::ifstream in(root / file);
  std::string text;
  std::smatch match;
  for (int line = 1; std::getline(in, text); ++line) {
    if (!std::regex_match(text, match, pattern)) continue;
    const std::string header = match[2];
    if (!IsSystemHeader(header, match[1] == "<")) includes.push_back({file, line, header});
  }
  return includes;
}

constexpr int kNone = -1;

// Returns the index of the floor with the longest folder that `path` lies under, or kNone.
int FloorOf(const std::string& path, const std::vector<Floor>& tower) {
  int found = kNone;
  for (int i = 0; i < static_cast<int>(tower.size()); ++i) {
    const bool is_longer = found == kNone || tower[i].folder.size() > tower[found].folder.size();
    if (absl::StartsWith(path, tower[i].folder) && is_longer) found = i;
  }
  return found;
}

bool IsLibrary(const Floor& floor, const std::string& header) {
  return absl::StartsWith(header, "absl/") ||
         std::any_of(floor.libraries.begin(), floor.libraries.end(), [&](const std::string& library) {
           return library.ends_with('/') ? absl::StartsWith(header, library) : header == library;
         });
}

bool IsAllowed(const Include& include, const std::vector<Floor>& tower) {
  const int floor = FloorOf(include.file, tower);
  if (floor == kNone) return false;
  const int below = FloorOf(include.header, tower);
  return (below != kNone && below <= floor) || IsLibrary(tower[floor], include.header);
}

}  // namespace

std::vector<Include> ScanIncludes(const fs::path& root, const std::string& folder) {
  std::vector<std::string> files;
  for (const auto& entry : fs::recursive_directory_iterator(root / folder)) {
    if (IsSource(entry.path())) files.push_back(entry.path().lexically_relative(root));
  }
  std::sort(files.begin(), files.end());

  std::vector<Include> includes;
  for (const std::string& file : files) {
    for (Include& include : ScanFile(root, file)) includes.push_back(std::move(include));
  }
  return includes;
}

std::vector<std::string> FindViolations(const fs::path& root, const std::vector<Floor>& tower) {
  std::set<std::string> folders;  // of the top level
  for (const Floor& floor : tower) folders.insert(floor.folder.substr(0, floor.folder.find('/')));

  std::vector<std::string> violations;
  for (const std::string& folder : folders) {
    for (const Include& include : ScanIncludes(root, folder)) {
      if (IsAllowed(include, tower)) continue;
      violations.push_back(absl::StrCat(include.file, ":", include.line, ": includes ", include.header));
    }
  }
  return violations;
}

std::set<std::string> ReachableHeaders(const fs::path& root, const std::string& header) {
  std::set<std::string> reached = {header};
  std::vector<std::string> to_scan = {header};
  while (!to_scan.empty()) {
    const std::string file = std::move(to_scan.back());
    to_scan.pop_back();
    for (const Include& include : ScanFile(root, file)) {
      if (reached.insert(include.header).second) to_scan.push_back(include.header);
    }
  }
  return reached;
}

}  // namespace paramshard
