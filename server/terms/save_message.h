// Messages of a world's daemons about a save, as plain values.
//
// Node 0 leads, the others follow:
//
//   node 0 holds its state -> order: the others hold theirs at the same commit; all copy
//   node 0 makes the folder -> permission: all write into it -> a part of each other node
//   node 0 publishes it, or gives it up -> end
#ifndef PARAMSHARD_SERVER_TERMS_SAVE_MESSAGE_H_
#define PARAMSHARD_SERVER_TERMS_SAVE_MESSAGE_H_

#include <cstdint>
#include <string>
#include <variant>

#include "absl/numeric/int128.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/model/save_state.h"
#include "server/terms/wire_fields.h"

namespace paramshard::server {

// From node 0. A node that has made commit `step` holds its state until it is copied, and makes no later commit before.
struct SaveOrder {
  absl::uint128 id = 0;  // of the save
  int64_t step = 0;      // the commit number
  int64_t version = 0;
  std::string lineage = {};  // as in ModelReport
  std::string history_id = {};
  uint64_t spec_fingerprint = 0;
  SaveReason reason = SaveReason::kCall;
  absl::Duration timeout = absl::ZeroDuration();  // left for the whole save

  friend bool operator==(const SaveOrder&, const SaveOrder&) = default;
};
void Fields(ConstOr<SaveOrder> auto& m, const auto& f) {
  f("id", m.id)("commit_number", m.step)("version", m.version)("lineage", m.lineage)("history_id", m.history_id)(
      "spec_fingerprint", m.spec_fingerprint)("reason", m.reason)("timeout", m.timeout);
}

// From node 0: the folder exists.
struct SavePermission {
  absl::uint128 id = 0;
};
void Fields(ConstOr<SavePermission> auto& m, const auto& f) { f("id", m.id); }

// From another node: its part is on the disk, or has failed.
struct SavePart {
  absl::uint128 id = 0;
  int node = 0;            // the sender, set by the coordinator
  absl::uint128 hash = 0;  // of its part-NODE.json
  absl::Status status = absl::OkStatus();
};
void Fields(ConstOr<SavePart> auto& m, const auto& f) { f("id", m.id)("hash", m.hash)("error", m.status); }

// From node 0: the save's result. Also the answer to a request, without an id if there was nothing to do.
struct SaveEnd {
  absl::uint128 id = 0;
  SaveState state = SaveState::kAbandoned;
  std::string path = {};  // of the checkpoint, if there may be one
  int64_t size_bytes = 0;
  absl::Status why = absl::OkStatus();
};
void Fields(ConstOr<SaveEnd> auto& m, const auto& f) {
  f("id", m.id)("state", m.state)("path", m.path)("size_bytes", m.size_bytes)("error", m.why);
}

// From another node that drains: asks for a save of the state, unless a save has it.
struct SaveRequest {};
void Fields(ConstOr<SaveRequest> auto&, const auto&) {}

// Local message for all models: node 0 is lost.
struct SaveLeaderLost {
  absl::Status why;
};

struct SaveMessage {
  std::string model;
  std::variant<SaveOrder, SavePermission, SavePart, SaveEnd, SaveRequest, SaveLeaderLost> what;
};
void Fields(ConstOr<SaveMessage> auto& m, const auto& f) { f("model", m.model).Case(m.what); }

template <>
inline constexpr CaseNames<decltype(SaveMessage::what)> kCaseNames<decltype(SaveMessage::what)> = {
    "order", "permission", "part", "end", "request", nullptr};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_TERMS_SAVE_MESSAGE_H_
