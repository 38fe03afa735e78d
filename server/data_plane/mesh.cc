#include "server/data_plane/mesh.h"

#include "absl/strings/str_cat.h"

namespace paramshard::server {

std::string MemberName(const MeshMember& member) {
  return absl::StrCat("rank ", member.rank, " (node ", member.node, ")");
}

}  // namespace paramshard::server
