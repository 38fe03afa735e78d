// Journals as programs of other versions write them.
#ifndef PARAMSHARD_TESTS_SERVER_JOURNAL_JOURNAL_VERSION_H_
#define PARAMSHARD_TESTS_SERVER_JOURNAL_JOURNAL_VERSION_H_

#include <sys/mman.h>
#include <sys/stat.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "absl/numeric/int128.h"
#include "absl/types/span.h"
#include "kernels/base/check.h"
#include "server/journal/journal_layout.h"

namespace paramshard::server {

// Gives a journal another version, and its header the hash that goes with it.
inline void SetJournalVersion(absl::Span<uint8_t> journal, uint32_t version) {
  std::memcpy(journal.data() + offsetof(JournalHeader, version), &version, sizeof(version));
  const absl::uint128 hash = JournalHash(journal.subspan(0, offsetof(JournalHeader, hash)), kHeaderSeed);
  const uint64_t stored[2] = {absl::Uint128Low64(hash), absl::Uint128High64(hash)};
  std::memcpy(journal.data() + offsetof(JournalHeader, hash), stored, sizeof(stored));
}

// The same of memory that a keeper holds. False where there is no journal in it.
inline bool SetJournalVersion(int memory, uint32_t version) {
  struct stat info {};
  PARAMSHARD_CHECK(fstat(memory, &info) == 0);
  const auto size_bytes = static_cast<size_t>(info.st_size);
  if (size_bytes < sizeof(JournalHeader)) return false;
  void* const mapped = mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
  PARAMSHARD_CHECK(mapped != MAP_FAILED);
  uint64_t magic = 0;
  std::memcpy(&magic, mapped, sizeof(magic));
  if (magic == kJournalMagic) SetJournalVersion({static_cast<uint8_t*>(mapped), size_bytes}, version);
  munmap(mapped, size_bytes);
  return magic == kJournalMagic;
}

}  // namespace paramshard::server

#endif  // PARAMSHARD_TESTS_SERVER_JOURNAL_JOURNAL_VERSION_H_
