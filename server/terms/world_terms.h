// What all daemons of a world have in common, besides how many they are.
#ifndef PARAMSHARD_SERVER_TERMS_WORLD_TERMS_H_
#define PARAMSHARD_SERVER_TERMS_WORLD_TERMS_H_

#include <string>

namespace paramshard::server {

// Node 0 refuses who has others.
struct WorldTerms {
  std::string world = {};           // its name, as --world says
  std::string save_dir = {};        // the folder that checkpoints lie in; empty: nothing is saved
  std::string engine_library = {};  // what moves bytes between daemons: "NCCL 2.27.3"; empty: nothing from the machine
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_TERMS_WORLD_TERMS_H_
