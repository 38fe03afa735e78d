// A smallest set of nodes that has an end of every bad link.
#ifndef PARAMSHARD_SERVER_CLUSTER_VERTEX_COVER_H_
#define PARAMSHARD_SERVER_CLUSTER_VERTEX_COVER_H_

#include <utility>
#include <vector>

namespace paramshard::server {

using Edge = std::pair<int, int>;

// A cover of up to so many nodes is a smallest one, however large the world is.
inline constexpr int kMostExactCover = 12;

// The nodes of a smallest cover, ascending, without node 0: its neighbours are all in it. Of several the one with the
// higher numbers, the highest of which is compared first. Where a smallest one has more than kMostExactCover nodes
// besides node 0's neighbours, it is one that takes the node with the most edges that are left, of those the highest,
// again and again: at most about ln(nodes) times as large. Edges have two different ends.
std::vector<int> SmallestCover(const std::vector<Edge>& edges);

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_CLUSTER_VERTEX_COVER_H_
