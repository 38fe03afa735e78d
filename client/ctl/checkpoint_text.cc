#include "client/ctl/checkpoint_text.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/checkpoint/content_hash.h"

namespace paramshard::ctl {

std::string SavedAtCell(absl::Time time) { return absl::FormatTime("%Y-%m-%d %H:%M:%SZ", time, absl::UTCTimeZone()); }

nlohmann::ordered_json CheckpointJson(const std::string& folder, const checkpoint::Manifest& manifest) {
  nlohmann::ordered_json json = {
      {"folder", folder},
      {"model", manifest.model},
      {"step", absl::StrCat(manifest.step)},
      {"version", absl::StrCat(manifest.version)},
      {"history", checkpoint::HashText(manifest.history)},
      {"saveSerial", absl::StrCat(manifest.save_serial)},
      {"savedAt", absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", manifest.saved_at, absl::UTCTimeZone())},
      {"worldSize", manifest.world.size},
      {"shardSize", manifest.world.shard_size},
      {"sizeBytes", absl::StrCat(manifest.size_bytes())},
      {"specFingerprint", absl::StrFormat("%016x", manifest.spec_fingerprint)}};
  if (manifest.parent.has_value()) {
    json["parent"] = {{"history", checkpoint::HashText(manifest.parent->history)},
                      {"step", absl::StrCat(manifest.parent->step)}};
  }
  return json;
}

}  // namespace paramshard::ctl
