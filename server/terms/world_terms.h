// Settings that all daemons of a world share, besides their number.
#ifndef PARAMSHARD_SERVER_TERMS_WORLD_TERMS_H_
#define PARAMSHARD_SERVER_TERMS_WORLD_TERMS_H_

#include <string>

namespace paramshard::server {

// Node 0 refuses a daemon whose settings differ.
struct WorldTerms {
  std::string world = {};           // the world's name (--world)
  std::string save_dir = {};        // folder of the checkpoints; empty: nothing is saved
  std::string engine_library = {};  // as "NCCL 2.27.3": moves bytes between daemons; empty: none of the machine
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_TERMS_WORLD_TERMS_H_
