// Planes of a model as a reader is given them.
#ifndef PARAMSHARD_SERVER_STATE_PUBLISHED_PLANES_H_
#define PARAMSHARD_SERVER_STATE_PUBLISHED_PLANES_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/model/layout.h"
#include "server/device/memory.h"
#include "server/state/publication.h"

namespace paramshard::server {

// The planes of all ranks of a shard group, with their publication.
struct PublishedPlanes {
  struct Rank {
    const Memory* planes = nullptr;
    std::string gpu_uuid = {};  // empty: host memory
  };

  std::shared_ptr<const void> owner;  // of what is pointed to below
  const Layout* layout = nullptr;
  uint64_t layout_fingerprint = 0;
  std::shared_ptr<Publication> publication;
  std::vector<Rank> ranks = {};
  int copies = 1;  // in each rank's memory; see OpenReaderResponse
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_STATE_PUBLISHED_PLANES_H_
