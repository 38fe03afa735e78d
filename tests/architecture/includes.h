// Who includes whom: finds the #include lines that the drawing in docs/architecture.md does not allow.

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

// What the files under `folder` may include. Entries are folders (with a slash at the end) or headers.
struct Rule {
  std::string folder;
  std::vector<std::string> allowed;
};

// The includes of every .h, .cc, .cu and .cuh file under root/folder, in order.
std::vector<Include> ScanIncludes(const std::filesystem::path& root, const std::string& folder);

// "file:line: includes header", for every include that its folder's rule does not allow. The last rule that covers a
// file holds, so that folders are refined by later rules.
std::vector<std::string> FindViolations(const std::filesystem::path& root, const std::vector<Rule>& rules);

// What a program sees that includes `header`: itself and every header that it reaches, from the root of the repository
// where they lie there, else as written.
std::set<std::string> ReachableHeaders(const std::filesystem::path& root, const std::string& header);

}  // namespace paramshard

#endif  // PARAMSHARD_TESTS_ARCHITECTURE_INCLUDES_H_
