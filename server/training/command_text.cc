#include "server/training/command_text.h"

#include <optional>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/model/group_hyperparameters.h"
#include "common/model/proto_enums.h"
#include "common/shared_memory/crc32c.h"

namespace paramshard::server {
namespace {

absl::string_view PhaseText(v1::Phase proto) {
  const std::optional<Phase> phase = PhaseFromProto(proto);
  return phase.has_value() ? PhaseName(*phase) : "in no phase";
}

// The index where there is no such name: commands are described before they are checked.
template <typename Named>
std::string NameAt(const std::vector<Named>& named, int index, absl::string_view kind) {
  return index >= 0 && index < static_cast<int>(named.size()) ? named[index].name : absl::StrCat(kind, " ", index);
}

// Nine digits tell all floats apart.
std::string FloatText(float value) { return absl::StrFormat("%.9g", value); }

std::string GroupText(const v1::GroupHyperparameters& group) {
  const Hyperparameters values = HyperparametersFromProto(group);
  return absl::StrJoin(kHyperparameters, ", ", [&](std::string* out, const HyperparameterTraits& each) {
    absl::StrAppend(out, each.name, " ", FloatText(values.*each.member));
  });
}

// Commits that differ in it alone look different: the hash tells apart what is cut off.
std::string DataText(absl::string_view data) {
  constexpr size_t kShown = 32;
  const std::string shown = absl::StrCat("\"", absl::CHexEscape(data.substr(0, kShown)), "\"");
  if (data.size() <= kShown) return shown;
  return absl::StrCat(shown, "... of ", data.size(), " bytes, CRC32C ", absl::Hex(wire::Crc32c(data)));
}

std::string CommitText(const ModelSpec& spec, const v1::Commit& commit) {
  std::string text;
  for (int i = 0; i < commit.groups_size(); ++i) {
    const std::string name = NameAt(spec.groups, i, "group");
    absl::StrAppend(&text, i == 0 ? " with " : "; ", name, name.empty() ? "" : ": ", GroupText(commit.groups(i)));
  }
  if (commit.has_max_grad_norm()) absl::StrAppend(&text, "; clipped to norm ", FloatText(commit.max_grad_norm()));
  if (commit.has_gradient_scale()) absl::StrAppend(&text, "; gradient scale ", FloatText(commit.gradient_scale()));
  if (commit.save()) text += "; saved";
  if (!commit.reader_data().empty()) absl::StrAppend(&text, "; data for readers ", DataText(commit.reader_data()));
  return text;
}

}  // namespace

std::string CommandName(const ModelSpec& spec, const v1::Command& command) {
  switch (command.kind_case()) {
    case v1::Command::kGather: {
      const v1::Gather& gather = command.gather();
      return absl::StrCat("gather ", NameAt(spec.units, gather.unit(), "unit"), " ", PhaseText(gather.phase()),
                          " into slot ", gather.slot());
    }
    case v1::Command::kPush: {
      const v1::Push& push = command.push();
      return absl::StrCat("push ", NameAt(spec.units, push.unit(), "unit"), " from gradient slot ", push.slot(),
                          push.own_slices_landed() ? ", own rows landed" : "");
    }
    case v1::Command::kCommit:
      return absl::StrCat("commit ", command.commit().commit_number());
    case v1::Command::kDiscard:
      return "discard";
    case v1::Command::KIND_NOT_SET:
      break;
  }
  return "nothing";
}

std::string CommandText(const ModelSpec& spec, const v1::Command& command) {
  const std::string name = CommandName(spec, command);
  return command.has_commit() ? absl::StrCat(name, CommitText(spec, command.commit())) : name;
}

}  // namespace paramshard::server
