// Readers that a keeper remembers, so that the next server knows which processes still map memory of this one.
#ifndef PARAMSHARD_SERVER_MODELS_KEPT_READERS_H_
#define PARAMSHARD_SERVER_MODELS_KEPT_READERS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/shared_memory/file_descriptor.h"
#include "server/base/kept_store.h"
#include "server/state/publication.h"

namespace paramshard::server {

// A reader has a lock on its lease page: a lock of an open file, which no other process has, and which lasts until the
// last mapping of that file has ended. A server asks the page by a file of its own.
//
// Returns the file for the reader, locked. RESOURCE_EXHAUSTED.
absl::StatusOr<wire::FileDescriptor> LockedFileOf(int page);
// Returns true while a file that LockedFileOf has returned is open or mapped anywhere.
bool IsLocked(int page);

struct KeptReader {
  int64_t number = 0;  // of all readers that a keeper has seen, from 1
  std::string model = {};
  ReaderReport report = {};        // name, pid, uid, mapped_bytes and process alone
  wire::FileDescriptor page = {};  // the lease page
};

// Keeps a reader without its process, whose descriptor KeepProcess adds: a kept process may be ended. Errors of
// KeptStore::Keep.
absl::Status KeepReader(KeptStore& kept, int64_t number, const std::string& model, const ReaderReport& report,
                        int page);
absl::Status KeepProcess(KeptStore& kept, int64_t number, int pidfd);
// Errors of KeptStore::DropPrefix.
absl::Status DropProcess(KeptStore& kept, int64_t number);
absl::Status DropReader(KeptStore& kept, int64_t number);
// Takes the readers out of all that is kept, by number.
std::vector<KeptReader> TakeReaders(KeptStore::Descriptors& all);

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_MODELS_KEPT_READERS_H_
