#include "server/data_plane/mesh_tag.h"

#include <xxhash.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/base/status_macros.h"

namespace paramshard::server {
namespace {

// Message with a tag, sent as it lies in memory: both ends are machines of one kind, as for the bytes of models.
struct TagMessage {
  uint64_t tag_high = 0;
  uint64_t tag_low = 0;
  int32_t from = 0;  // members of the mesh
  int32_t to = 0;

  bool operator==(const TagMessage&) const = default;
};

TagMessage MakeTagMessage(MeshTag tag, int from, int to) {
  return {.tag_high = absl::Uint128High64(tag), .tag_low = absl::Uint128Low64(tag), .from = from, .to = to};
}

std::string TagMessageText(const TagMessage& message) {
  return absl::StrFormat("tag %016x%016x from member %d to member %d", message.tag_high, message.tag_low, message.from,
                         message.to);
}

}  // namespace

MeshTag MakeMeshTag(absl::string_view epoch, absl::string_view mesh) {
  // The length marks the end of the first text.
  const std::string text = absl::StrCat(epoch.size(), "/", epoch, "/", mesh);
  const XXH128_hash_t hash = XXH3_128bits(text.data(), text.size());
  return absl::MakeUint128(hash.high64, hash.low64);
}

absl::Status ExchangeTags(Mesh& mesh, MeshTag tag, SteadyTime deadline) {
  std::vector<TagMessage> sent(mesh.size());
  std::vector<TagMessage> heard(mesh.size());
  std::vector<PeerTransfer> transfers;
  for (int peer = 0; peer < mesh.size(); ++peer) {
    if (peer == mesh.self()) continue;
    sent[peer] = MakeTagMessage(tag, mesh.self(), peer);
    transfers.push_back({.peer = peer,
                         .sends = {{&sent[peer], static_cast<int64_t>(sizeof(TagMessage))}},
                         .receives = {{&heard[peer], static_cast<int64_t>(sizeof(TagMessage))}}});
  }
  RETURN_IF_ERROR(mesh.Exchange(transfers, deadline, [](int) {}));
  for (const PeerTransfer& transfer : transfers) {
    const TagMessage expected = MakeTagMessage(tag, transfer.peer, mesh.self());
    if (heard[transfer.peer] == expected) continue;
    return absl::UnavailableError(absl::StrCat(MemberName(mesh.member(transfer.peer)),
                                               ": want its connection of this epoch (", TagMessageText(expected),
                                               "), got another one (", TagMessageText(heard[transfer.peer]), ")"));
  }
  return absl::OkStatus();
}

}  // namespace paramshard::server
