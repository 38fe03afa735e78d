// Smallest set of nodes that contains an end of every bad link.
#ifndef PARAMSHARD_SERVER_WORLD_VERTEX_COVER_H_
#define PARAMSHARD_SERVER_WORLD_VERTEX_COVER_H_

#include <utility>
#include <vector>

namespace paramshard::server {

using Edge = std::pair<int, int>;

// Largest size of a cover that is certainly a smallest one, in a world of any size.
inline constexpr int kMostExactCover = 12;

// Returns the nodes of a smallest cover, ascending. Node 0 is not in it: all its neighbours are. Among several covers
// it takes the one with the higher numbers, comparing the highest first. If a smallest cover has more than
// kMostExactCover nodes besides node 0's neighbours, the cover is greedy: it takes the node with the most remaining
// edges (the highest of several) until none remains, and is at most about ln(nodes) times as large. Edges have two
// different ends.
std::vector<int> SmallestCover(const std::vector<Edge>& edges);

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_WORLD_VERTEX_COVER_H_
