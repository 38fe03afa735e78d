#include "server/data_plane/nccl_key.h"

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/safetensors/regular_file.h"

namespace paramshard::server {
namespace {

constexpr int64_t kMostBytes = 4096;

absl::Status KeyError(const std::string& path, absl::string_view why) {
  return absl::FailedPreconditionError(absl::StrCat("--nccl-psk-file ", path, ": ", why));
}

}  // namespace

absl::StatusOr<std::string> ReadNcclKey(const std::string& path) {
  absl::StatusOr<std::string> key = safetensors::ReadSecretFile(path, kMostBytes);
  if (!key.ok()) return absl::FailedPreconditionError(absl::StrCat("--nccl-psk-file ", key.status().message()));
  absl::StripTrailingAsciiWhitespace(&*key);
  if (key->size() < kLeastNcclKeyBytes) {
    return KeyError(path, absl::StrCat("want a key of at least ", kLeastNcclKeyBytes, " bytes, got ", key->size()));
  }
  if (key->find('\0') != key->npos) return KeyError(path, "the key contains a zero byte");
  return key;
}

}  // namespace paramshard::server
