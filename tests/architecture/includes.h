// Finds the #include lines that go from a floor of the tree to one above it.

#ifndef PARAMSHARD_TESTS_ARCHITECTURE_INCLUDES_H_
#define PARAMSHARD_TESTS_ARCHITECTURE_INCLUDES_H_

#include <filesystem>
#include <set>
#include <string>
#include <vector>

namespace paramshard {

// One #include of a header that is not the language's or the operating system's.
struct Include {
  std::string file;  // from the root of the repository
  int line;
  std::string header;  // as written
};

// The files under `folder`, except for files of a longer folder in the same tower. They include each other, lower
// floors, Abseil and these libraries.
struct Floor {
  std::string folder;                  // ends with a slash
  std::vector<std::string> libraries;  // folders of headers, with a slash at the end, or headers
};

// The includes of every .h, .cc, .cu and .cuh file under root/folder, in order.
std::vector<Include> ScanIncludes(const std::filesystem::path& root, const std::string& folder);

// Returns "file:line: includes header" for each include that the tower, from the ground up, does not allow. Only files
// of its floors are looked at; one under the same top-level folder that has no floor is named, too.
std::vector<std::string> FindViolations(const std::filesystem::path& root, const std::vector<Floor>& tower);

// Returns `header` and all headers that it includes, directly or not: from the root of the repository where they lie
// there, else as written.
std::set<std::string> ReachableHeaders(const std::filesystem::path& root, const std::string& header);

}  // namespace paramshard

#endif  // PARAMSHARD_TESTS_ARCHITECTURE_INCLUDES_H_
