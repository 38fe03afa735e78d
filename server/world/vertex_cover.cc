#include "server/world/vertex_cover.h"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <optional>
#include <utility>

namespace paramshard::server {
namespace {

using Nodes = std::vector<int>;
using Edges = std::vector<Edge>;

Edges Without(const Edges& edges, int node) {
  Edges left;
  for (const Edge& edge : edges) {
    if (edge.first != node && edge.second != node) left.push_back(edge);
  }
  return left;
}

// Returns the node with the most edges (the highest of several) and their number. Requires edges.
std::pair<int, size_t> Busiest(const Edges& edges) {
  int nodes = 0;
  for (const auto& [a, b] : edges) nodes = std::max({nodes, a + 1, b + 1});
  std::vector<size_t> degrees(nodes);
  for (const auto& [a, b] : edges) {
    ++degrees[a];
    ++degrees[b];
  }
  std::pair<int, size_t> busiest{0, 0};
  for (int node = 0; node < nodes; ++node) {
    if (degrees[node] >= busiest.second) busiest = {node, degrees[node]};
  }
  return busiest;
}

Nodes Neighbours(const Edges& edges, int node) {
  Nodes neighbours;
  for (const auto& [a, b] : edges) {
    if (a == node) neighbours.push_back(b);
    if (b == node) neighbours.push_back(a);
  }
  return neighbours;
}

Nodes Descending(Nodes nodes) {
  std::sort(nodes.begin(), nodes.end(), std::greater<int>());
  return nodes;
}

// Search through all covers of one size.
class CoverSearch {
 public:
  // Returns nothing if no cover has at most `size` nodes.
  static std::optional<Nodes> Find(const Edges& edges, size_t size) {
    CoverSearch search;
    Nodes taken;
    search.Extend(edges, size, taken);
    return std::move(search.best_);
  }

 private:
  // A cover has the busiest node or all its neighbours.
  void Extend(const Edges& edges, size_t left, Nodes& taken) {
    if (edges.empty()) return Keep(Descending(taken));
    const auto [node, degree] = Busiest(edges);
    if (left * degree < edges.size()) return;
    Take(edges, {node}, left, taken);
    Take(edges, Neighbours(edges, node), left, taken);
  }

  void Take(const Edges& edges, const Nodes& nodes, size_t left, Nodes& taken) {
    if (nodes.size() > left) return;
    Edges rest = edges;
    for (const int node : nodes) rest = Without(rest, node);
    taken.insert(taken.end(), nodes.begin(), nodes.end());
    Extend(rest, left - nodes.size(), taken);
    taken.resize(taken.size() - nodes.size());
  }

  void Keep(Nodes cover) {
    if (!best_.has_value() || cover > *best_) best_ = std::move(cover);
  }

  std::optional<Nodes> best_;  // descending
};

Nodes GreedyCover(Edges edges) {
  Nodes cover;
  while (!edges.empty()) {
    cover.push_back(Busiest(edges).first);
    edges = Without(edges, cover.back());
  }
  return cover;
}

Nodes CoverWithoutNode0(const Edges& edges) {
  for (size_t size = 0; size <= kMostExactCover; ++size) {
    if (std::optional<Nodes> cover = CoverSearch::Find(edges, size); cover.has_value()) return *std::move(cover);
  }
  return GreedyCover(edges);
}

}  // namespace

std::vector<int> SmallestCover(const std::vector<Edge>& edges) {
  Edges unique;
  for (const auto& [a, b] : edges) unique.emplace_back(std::min(a, b), std::max(a, b));
  std::sort(unique.begin(), unique.end());
  unique.erase(std::unique(unique.begin(), unique.end()), unique.end());

  Nodes cover = Neighbours(unique, 0);
  for (const int node : Nodes(cover)) unique = Without(unique, node);
  const Nodes rest = CoverWithoutNode0(unique);
  cover.insert(cover.end(), rest.begin(), rest.end());
  std::sort(cover.begin(), cover.end());
  return cover;
}

}  // namespace paramshard::server
