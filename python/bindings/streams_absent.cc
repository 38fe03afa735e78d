#include "python/bindings/streams.h"

namespace paramshard::python {
namespace {

absl::Status Absent() {
  return absl::UnimplementedError("streams: not supported: this paramshard package was built without CUDA");
}

}  // namespace

absl::Status WaitOn(GatheredUnit&, StreamAddress) { return Absent(); }
absl::Status WaitAloneOn(GatheredUnit&, StreamAddress) { return Absent(); }
absl::Status ReleaseOn(GatheredUnit&, StreamAddress) { return Absent(); }
absl::Status DecodeOn(absl::Span<const DecodedOutput>, StreamAddress) { return Absent(); }
absl::Status CopyOperandsOn(absl::Span<const OperandOutput>, StreamAddress) { return Absent(); }
absl::StatusOr<UnitGradients> GradientsOn(Model&, const std::string&, bool, StreamAddress) { return Absent(); }
absl::Status PushGradientsOn(Model&, const std::string&, absl::Span<const ConstGradient>, StreamAddress) {
  return Absent();
}
absl::Status PushOn(UnitGradients&, StreamAddress) { return Absent(); }

}  // namespace paramshard::python
