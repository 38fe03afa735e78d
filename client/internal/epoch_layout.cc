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

absl::StatusOr<Layout> ComputeLayout(const v1::EpochStarted& started) {
  ASSIGN_OR_RETURN(ModelSpec spec, ParseDaemonsSpec(started.spec()));
  const int ranks = started.shard_size();
  if (ranks < 1 || ranks > kMaxShardSize || started.group_rank() < 0 || started.group_rank() >= ranks) {
    return absl::InternalError(absl::StrCat("attach ", spec.name, ": want a rank of a shard group of 1 to ",
                                            kMaxShardSize, ", got rank ", started.group_rank(), " of ", ranks));
  }
  Layout layout(std::move(spec), ranks);
  if (LayoutFingerprint(layout) == started.layout_fingerprint()) return layout;
  return OtherVersion(started.spec(), "the daemon computes a different layout");
}

}  // namespace paramshard::internal
