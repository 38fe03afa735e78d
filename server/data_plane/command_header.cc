#include "server/data_plane/command_header.h"

#include <xxhash.h>

#include <algorithm>
#include <limits>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/base/status_macros.h"

namespace paramshard::server {
namespace {

auto Fields(const CommandHeader& header) {
  return std::tie(header.kind, header.number, header.unit, header.phase, header.slot, header.absent);
}

std::string UnitText(int64_t unit, const ModelSpec& model) {
  if (unit < 0 || unit >= static_cast<int64_t>(model.units.size())) return absl::StrCat("unit ", unit);
  return model.units[unit].name;
}

std::string PhaseText(int64_t phase) {
  for (const Phase known : kPhases) {
    if (static_cast<int64_t>(known) == phase) return std::string(PhaseName(known));
  }
  return absl::StrCat("phase ", phase);
}

int64_t AbsentOf(absl::Span<const int32_t> absent) {
  const auto has_bit = [](int32_t parameter) { return parameter < std::numeric_limits<int64_t>::digits; };
  if (!std::all_of(absent.begin(), absent.end(), has_bit)) {
    const uint64_t hash = XXH3_64bits(absent.data(), absent.size() * sizeof(int32_t));
    return static_cast<int64_t>(hash | uint64_t{1} << 63);
  }
  int64_t mask = 0;
  for (const int32_t parameter : absent) mask |= int64_t{1} << parameter;
  return mask;
}

std::string AbsentText(const CommandHeader& header, const ModelSpec& model) {
  if (header.absent == 0) return "";
  const bool known = header.unit >= 0 && header.unit < static_cast<int64_t>(model.units.size());
  if (header.absent < 0 || !known) return ", without some parameters";
  const std::vector<ParameterSpec>& parameters = model.units[header.unit].parameters;
  std::vector<std::string> names;
  for (size_t i = 0; i < parameters.size() && i < 63; ++i) {
    if ((header.absent >> i & 1) != 0) names.push_back(parameters[i].name);
  }
  return absl::StrCat(", without ", absl::StrJoin(names, ", "));
}

absl::Status MismatchError(const Mesh& mesh, const CommandHeader& own, int peer, const CommandHeader& header,
                           const ModelSpec& model) {
  return absl::FailedPreconditionError(absl::StrCat("ranks disagree: ", MemberName(mesh.member(mesh.self())), " is at ",
                                                    HeaderText(own, model), ", ", MemberName(mesh.member(peer)), " at ",
                                                    HeaderText(header, model)));
}

}  // namespace

CommandHeader CommandHeader::Of(const GatherCall& call) {
  return {kGather, call.number, call.unit, static_cast<int64_t>(call.phase), call.slot, 0};
}

CommandHeader CommandHeader::Of(const ReduceCall& call) {
  return {kReduce, call.number, call.unit, 0, call.slot, AbsentOf(call.absent)};
}

bool operator==(const CommandHeader& a, const CommandHeader& b) { return Fields(a) == Fields(b); }

std::string HeaderText(const CommandHeader& header, const ModelSpec& model) {
  const std::string unit = UnitText(header.unit, model);
  if (header.kind == CommandHeader::kReduce) {
    return absl::StrCat("command ", header.number, " push(", unit, ", gradient slot ", header.slot,
                        AbsentText(header, model), ")");
  }
  return absl::StrCat("command ", header.number, " gather(", unit, ", ", PhaseText(header.phase), ", slot ",
                      header.slot, ")");
}

absl::Status AgreeOnCommand(Mesh& mesh, const CommandHeader& header, const ModelSpec& model, SteadyTime deadline) {
  CommandHeader own = header;
  std::vector<CommandHeader> headers(mesh.size(), header);
  std::vector<PeerTransfer> transfers;
  for (int peer = 0; peer < mesh.size(); ++peer) {
    if (peer == mesh.self()) continue;
    transfers.push_back({peer, {{&own, sizeof(own)}}, {{&headers[peer], sizeof(CommandHeader)}}});
  }
  RETURN_IF_ERROR(mesh.host_mesh().Exchange(transfers, deadline, [](int) {}));
  for (int peer = 0; peer < mesh.size(); ++peer) {
    if (!(headers[peer] == header)) return MismatchError(mesh, header, peer, headers[peer], model);
  }
  return absl::OkStatus();
}

absl::Status InCommand(const absl::Status& status, const CommandHeader& header, const ModelSpec& model) {
  return absl::Status(status.code(), absl::StrCat(HeaderText(header, model), ": ", status.message()));
}

}  // namespace paramshard::server
