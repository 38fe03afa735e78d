#include "server/models/kept_readers.h"

#include <fcntl.h>
#include <sys/file.h>

#include <cerrno>
#include <cstring>
#include <map>
#include <memory>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace paramshard::server {
namespace {

// Names of a reader's descriptors, which are no model's: NUL "reader" NUL number NUL, then "page" and what is known of
// the reader, or "process"; words have a NUL between them.
constexpr absl::string_view kPrefix("\0reader\0", 8);
constexpr char kPage[] = "page", kProcess[] = "process";
constexpr absl::string_view kSeparator("\0", 1);

std::string PrefixOf(int64_t number) { return absl::StrCat(kPrefix, number, kSeparator); }

// Returns false for a page's name that no server writes.
bool ParsePage(const std::vector<std::string>& words, KeptReader& reader) {
  ReaderReport& report = reader.report;
  if (words.size() != 6 || words[0] != kPage || !absl::SimpleAtoi(words[1], &report.pid) ||
      !absl::SimpleAtoi(words[2], &report.uid) || !absl::SimpleAtoi(words[3], &report.mapped_bytes)) {
    return false;
  }
  reader.model = words[4];
  report.name = words[5];
  return true;
}

}  // namespace

absl::StatusOr<wire::FileDescriptor> LockedFileOf(int page) {
  wire::FileDescriptor file(open(absl::StrCat("/proc/self/fd/", page).c_str(), O_RDWR | O_CLOEXEC));
  if (file.valid() && flock(file.get(), LOCK_SH | LOCK_NB) == 0) return file;
  return absl::ResourceExhaustedError(absl::StrCat("failed to lock a lease page by /proc/self/fd: ", strerror(errno)));
}

bool IsLocked(int page) {
  if (flock(page, LOCK_EX | LOCK_NB) != 0) return true;
  flock(page, LOCK_UN);
  return false;
}

absl::Status KeepReader(KeptStore& kept, int64_t number, const std::string& model, const ReaderReport& report,
                        int page) {
  const std::string words = absl::StrCat(
      PrefixOf(number), absl::StrJoin({std::string(kPage), absl::StrCat(report.pid), absl::StrCat(report.uid),
                                       absl::StrCat(report.mapped_bytes), model, report.name},
                                      kSeparator));
  // The end of a long name of a reader is left out.
  return kept.Keep(words.substr(0, KeptStore::kMaxNameBytes), page);
}

absl::Status KeepProcess(KeptStore& kept, int64_t number, int pidfd) {
  return kept.Keep(absl::StrCat(PrefixOf(number), kProcess), pidfd);
}

absl::Status DropProcess(KeptStore& kept, int64_t number) {
  return kept.DropPrefix(absl::StrCat(PrefixOf(number), kProcess));
}

absl::Status DropReader(KeptStore& kept, int64_t number) { return kept.DropPrefix(PrefixOf(number)); }

std::vector<KeptReader> TakeReaders(KeptStore::Descriptors& all) {
  std::map<int64_t, KeptReader> readers;
  std::map<int64_t, std::shared_ptr<const wire::FileDescriptor>> processes;
  for (auto it = all.lower_bound(std::string(kPrefix)); it != all.end() && absl::StartsWith(it->first, kPrefix);) {
    std::vector<std::string> words = absl::StrSplit(absl::string_view(it->first).substr(kPrefix.size()), '\0');
    int64_t number = 0;
    const bool has_number = absl::SimpleAtoi(words[0], &number) && number > 0;
    words.erase(words.begin());
    KeptReader reader{.number = number};
    if (has_number && words == std::vector<std::string>{kProcess}) {
      processes[number] = std::make_shared<const wire::FileDescriptor>(std::move(it->second));
    } else if (has_number && ParsePage(words, reader)) {
      reader.page = std::move(it->second);
      readers.insert_or_assign(number, std::move(reader));
    } else {
      ++it;  // a stranger
      continue;
    }
    it = all.erase(it);
  }
  std::vector<KeptReader> taken;
  for (auto& [number, reader] : readers) {
    if (const auto process = processes.find(number); process != processes.end()) {
      reader.report.process = process->second;
    }
    taken.push_back(std::move(reader));
  }
  return taken;
}

}  // namespace paramshard::server
