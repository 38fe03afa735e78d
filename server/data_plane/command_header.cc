#include "server/data_plane/command_header.h"

#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "server/terms/equal_commands_hint.h"

namespace paramshard::server {
namespace {

auto Fields(const CommandHeader& header) {
  return std::tie(header.kind, header.number, header.unit, header.phase, header.slot);
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

absl::Status MismatchError(const Mesh& mesh, const CommandHeader& own, int peer, const CommandHeader& header,
                           const ModelSpec& model) {
  return absl::FailedPreconditionError(absl::StrCat("ranks disagree: ", MemberName(mesh.member(mesh.self())), " is at ",
                                                    HeaderText(own, model), ", ", MemberName(mesh.member(peer)), " at ",
                                                    HeaderText(header, model), kEqualCommandsHint));
}

// Returns the headers of all members, which are equal but for what is each rank's own.
absl::StatusOr<std::vector<CommandHeader>> ExchangeHeaders(Mesh& mesh, const CommandHeader& header,
                                                           const ModelSpec& model, SteadyTime deadline) {
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
  return headers;
}

}  // namespace

CommandHeader CommandHeader::Of(const GatherCall& call) {
  return {kGather, call.number, call.unit, static_cast<int64_t>(call.phase), call.slot, 0};
}

CommandHeader CommandHeader::Of(const ReduceCall& call) { return {kReduce, call.number, call.unit, 0, call.slot, 0}; }

bool operator==(const CommandHeader& a, const CommandHeader& b) { return Fields(a) == Fields(b); }

std::string HeaderText(const CommandHeader& header, const ModelSpec& model) {
  const std::string unit = UnitText(header.unit, model);
  if (header.kind == CommandHeader::kReduce) {
    return absl::StrCat("command ", header.number, " push(", unit, ", gradient slot ", header.slot, ")");
  }
  return absl::StrCat("command ", header.number, " gather(", unit, ", ", PhaseText(header.phase), ", slot ",
                      header.slot, ")");
}

absl::Status AgreeOnCommand(Mesh& mesh, const CommandHeader& header, const ModelSpec& model, SteadyTime deadline) {
  return ExchangeHeaders(mesh, header, model, deadline).status();
}

absl::StatusOr<AbsentGradients> AgreeOnPush(Mesh& mesh, const ReduceCall& call, absl::Span<const int32_t> absent,
                                            const ModelSpec& model, SteadyTime deadline) {
  CommandHeader own = CommandHeader::Of(call);
  own.has_absent = absent.empty() ? 0 : 1;
  ASSIGN_OR_RETURN(const std::vector<CommandHeader> headers, ExchangeHeaders(mesh, own, model, deadline));
  AbsentGradients all(mesh.size(), static_cast<int>(model.units[call.unit].parameters.size()));
  all.Add(mesh.self(), absent);
  const auto bitmap_of = [&](int member) -> std::vector<Bytes> {
    if (headers[member].has_absent == 0) return {};
    const absl::Span<uint8_t> bitmap = all.bitmap(member);
    return {{bitmap.data(), static_cast<int64_t>(bitmap.size())}};
  };
  std::vector<PeerTransfer> transfers;
  for (int peer = 0; peer < mesh.size(); ++peer) {
    if (peer == mesh.self()) continue;
    PeerTransfer transfer{peer, bitmap_of(mesh.self()), bitmap_of(peer)};
    if (!transfer.sends.empty() || !transfer.receives.empty()) transfers.push_back(std::move(transfer));
  }
  if (!transfers.empty()) RETURN_IF_ERROR(mesh.host_mesh().Exchange(transfers, deadline, [](int) {}));
  return all;
}

absl::Status InCommand(const absl::Status& status, const CommandHeader& header, const ModelSpec& model) {
  return absl::Status(status.code(), absl::StrCat(HeaderText(header, model), ": ", status.message()));
}

}  // namespace paramshard::server
