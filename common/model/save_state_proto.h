// Conversion between SaveState and SaveReason and those of messages. Their numbers are equal, which is asserted.
#ifndef PARAMSHARD_COMMON_MODEL_SAVE_STATE_PROTO_H_
#define PARAMSHARD_COMMON_MODEL_SAVE_STATE_PROTO_H_

#include <iterator>
#include <optional>

#include "common/model/save_state.h"
#include "paramshard/v1/admin.pb.h"

namespace paramshard {

static_assert(static_cast<int>(SaveState::kWaiting) == v1::SAVE_STATE_WAITING);
static_assert(static_cast<int>(SaveState::kCopying) == v1::SAVE_STATE_COPYING);
static_assert(static_cast<int>(SaveState::kWriting) == v1::SAVE_STATE_WRITING);
static_assert(static_cast<int>(SaveState::kPublished) == v1::SAVE_STATE_PUBLISHED);
static_assert(static_cast<int>(SaveState::kAbandoned) == v1::SAVE_STATE_ABANDONED);
static_assert(static_cast<int>(SaveState::kUnknown) == v1::SAVE_STATE_UNKNOWN);
static_assert(static_cast<int>(SaveState::kSkipped) == v1::SAVE_STATE_SKIPPED);
static_assert(static_cast<int>(SaveState::kAlreadySaved) == v1::SAVE_STATE_ALREADY_SAVED);
static_assert(std::size(kSaveStates) == v1::SaveState_MAX);
static_assert(static_cast<int>(SaveReason::kCommits) == v1::SAVE_REASON_COMMITS);
static_assert(static_cast<int>(SaveReason::kTime) == v1::SAVE_REASON_TIME);
static_assert(static_cast<int>(SaveReason::kTrainer) == v1::SAVE_REASON_TRAINER);
static_assert(static_cast<int>(SaveReason::kCall) == v1::SAVE_REASON_CALL);
static_assert(static_cast<int>(SaveReason::kDrain) == v1::SAVE_REASON_DRAIN);
static_assert(std::size(kSaveReasons) == v1::SaveReason_MAX);

inline v1::SaveState SaveStateToProto(SaveState state) { return static_cast<v1::SaveState>(state); }
inline v1::SaveReason SaveReasonToProto(SaveReason reason) { return static_cast<v1::SaveReason>(reason); }

// Return nullopt for an unknown or unspecified number.
inline std::optional<SaveState> SaveStateFromProto(int number) {
  if (number < 1 || number > v1::SaveState_MAX) return std::nullopt;
  return static_cast<SaveState>(number);
}
inline std::optional<SaveReason> SaveReasonFromProto(int number) {
  if (number < 1 || number > v1::SaveReason_MAX) return std::nullopt;
  return static_cast<SaveReason>(number);
}

}  // namespace paramshard

#endif  // PARAMSHARD_COMMON_MODEL_SAVE_STATE_PROTO_H_
