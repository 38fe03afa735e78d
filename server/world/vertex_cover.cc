#include "server/world/vertex_cover.h"

#include <algorithm>
#include <map>

namespace paramshard::server {
namespace {

// Requires links.
int NextNode(const std::vector<Edge>& links) {
  std::map<int, int> counts;
  for (const auto& [a, b] : links) {
    if (a == 0) return b;
    ++counts[a];
    ++counts[b];
  }
  const auto fewer = [](const auto& a, const auto& b) { return a.second < b.second; };
  return std::max_element(counts.rbegin(), counts.rend(), fewer)->first;
}

}  // namespace

std::vector<int> VertexCover(std::vector<Edge> links) {
  std::vector<int> cover;
  while (!links.empty()) {
    const int node = cover.emplace_back(NextNode(links));
    std::erase_if(links, [&](const Edge& link) { return link.first == node || link.second == node; });
  }
  std::sort(cover.begin(), cover.end());
  return cover;
}

}  // namespace paramshard::server
