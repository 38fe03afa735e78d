// Nodes to leave out because of cut links.
#ifndef PARAMSHARD_SERVER_WORLD_VERTEX_COVER_H_
#define PARAMSHARD_SERVER_WORLD_VERTEX_COVER_H_

#include <utility>
#include <vector>

namespace paramshard::server {

// A link between two nodes, the lower one first.
using Edge = std::pair<int, int>;

// Returns nodes, ascending, with an end of each link: all that node 0 does not reach, which is never left out itself;
// then the node with the most remaining links, the highest of several, until no link remains. No smaller set would do
// in worlds of up to 5 nodes; in larger ones it may have a node too many. Links are given once.
std::vector<int> VertexCover(std::vector<Edge> links);

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_WORLD_VERTEX_COVER_H_
