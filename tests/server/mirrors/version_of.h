// Versions for tests of mirrors.
#ifndef PARAMSHARD_TESTS_SERVER_MIRRORS_VERSION_OF_H_
#define PARAMSHARD_TESTS_SERVER_MIRRORS_VERSION_OF_H_

#include <cstdint>

#include "absl/algorithm/container.h"
#include "common/shared_memory/publication_page.h"

namespace paramshard::server {

// Its history is a digit, repeated.
inline wire::PublishedVersion VersionOf(int64_t commit, char history = 'a') {
  wire::PublishedVersion version{.commit_number = commit, .version = commit};
  absl::c_fill(version.history_id, history);
  return version;
}

}  // namespace paramshard::server

#endif  // PARAMSHARD_TESTS_SERVER_MIRRORS_VERSION_OF_H_
