#include "server/collective/nccl_key.h"

#include <sys/stat.h>
#include <unistd.h>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "proto/safetensors/regular_file.h"

namespace paramshard::server {
namespace {

constexpr int64_t kMostBytes = 4096;

absl::Status KeyError(const std::string& path, absl::string_view why) {
  return absl::FailedPreconditionError(absl::StrCat("--nccl-psk-file ", path, ": ", why));
}

absl::Status CheckIsOwn(const std::string& path) {
  struct stat info {};
  if (stat(path.c_str(), &info) != 0) return absl::OkStatus();  // reading it says why
  const bool is_own = info.st_uid == geteuid() || info.st_uid == 0;
  if (is_own && (info.st_mode & (S_IRWXG | S_IRWXO)) == 0) return absl::OkStatus();
  return KeyError(path, absl::StrCat("a key that its owner alone can read expected, the daemon's user or root: chmod "
                                     "go= ",
                                     path));
}

}  // namespace

absl::StatusOr<std::string> ReadNcclKey(const std::string& path) {
  if (const absl::Status is_own = CheckIsOwn(path); !is_own.ok()) return is_own;
  absl::StatusOr<std::string> key = safetensors::ReadWholeFile(path, kMostBytes);
  if (!key.ok()) return KeyError(path, key.status().message());
  absl::StripTrailingAsciiWhitespace(&*key);
  if (key->size() < kLeastNcclKeyBytes) {
    return KeyError(path, absl::StrCat("a key of at least ", kLeastNcclKeyBytes, " bytes expected, got ", key->size()));
  }
  if (key->find('\0') != key->npos) return KeyError(path, "a text without zeros expected as a key");
  return key;
}

}  // namespace paramshard::server
