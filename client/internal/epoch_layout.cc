#include "client/internal/epoch_layout.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/model/layout_fingerprint.h"
#include "common/model/limits.h"
#include "common/model/model_spec_proto.h"
#include "common/model/names.h"
#include "kernels/base/status_macros.h"

namespace paramshard::internal {
namespace {

absl::Status OtherVersion(const v1::ModelSpec& spec, absl::string_view what) {
  return absl::FailedPreconditionError(
      absl::StrCat("attach ", DisplayName(spec.name()), ": ", what,
                   "; daemon and client library are of different versions: use the same one for both"));
}

}  // namespace

absl::StatusOr<ModelSpec> ParseDaemonsSpec(const v1::ModelSpec& proto) {
  absl::StatusOr<ModelSpec> spec = ParseModelSpec(proto);
  if (spec.ok()) return spec;
  return OtherVersion(
      proto, absl::StrCat("the daemon's spec is not supported by this library (\"", spec.status().message(), "\")"));
}

absl::StatusOr<Layout> ComputeLayout(const v1::ModelSpec& spec, int shard_size, uint64_t fingerprint) {
  ASSIGN_OR_RETURN(ModelSpec parsed, ParseDaemonsSpec(spec));
  if (shard_size < 1 || shard_size > kMaxShardSize) {
    return absl::InternalError(absl::StrCat("attach ", parsed.name, ": want a shard group of 1 to ", kMaxShardSize,
                                            " ranks, got ", shard_size));
  }
  Layout layout(std::move(parsed), shard_size);
  if (LayoutFingerprint(layout) == fingerprint) return layout;
  return OtherVersion(spec, "the daemon computes a different layout");
}

absl::StatusOr<Layout> ComputeLayout(const v1::EpochStarted& started) {
  const int ranks = started.shard_size();
  ASSIGN_OR_RETURN(Layout layout, ComputeLayout(started.spec(), ranks, started.layout_fingerprint()));
  if (started.group_rank() >= 0 && started.group_rank() < ranks) return layout;
  return absl::InternalError(absl::StrCat("attach ", layout.spec().name, ": want a rank of a shard group of ", ranks,
                                          ", got rank ", started.group_rank()));
}

}  // namespace paramshard::internal
