// States of a save and reasons for it, with their names in Python and in tables of paramshardctl.
#ifndef PARAMSHARD_COMMON_MODEL_SAVE_STATE_H_
#define PARAMSHARD_COMMON_MODEL_SAVE_STATE_H_

#include <cstdint>
#include <utility>

namespace paramshard {

// Progress of a save. The numbers are sent.
enum class SaveState : uint8_t {
  kWaiting = 1,  // for the answer of the commit in progress
  kCopying = 2,
  kWriting = 3,
  kPublished = 4,
  kAbandoned = 5,     // there is no such checkpoint
  kUnknown = 6,       // it has its name, but may lose it if the power fails
  kSkipped = 7,       // it fell due while another save was in progress
  kAlreadySaved = 8,  // nothing was written: the state has a checkpoint
};

// In the order of their numbers.
inline constexpr std::pair<SaveState, const char*> kSaveStates[] = {
    {SaveState::kWaiting, "waiting"},     {SaveState::kCopying, "copying"},           {SaveState::kWriting, "writing"},
    {SaveState::kPublished, "published"}, {SaveState::kAbandoned, "abandoned"},       {SaveState::kUnknown, "unknown"},
    {SaveState::kSkipped, "skipped"},     {SaveState::kAlreadySaved, "already_saved"}};

// Returns true if the save has ended.
inline constexpr bool IsOver(SaveState state) { return state >= SaveState::kPublished; }
// Returns true if there is a durable checkpoint of the state.
inline constexpr bool HasCheckpoint(SaveState state) {
  return state == SaveState::kPublished || state == SaveState::kAlreadySaved;
}

// Reason for a save. The numbers are sent.
enum class SaveReason : uint8_t {
  kCommits = 1,  // --save-every=N
  kTime = 2,     // --save-every=DURATION
  kTrainer = 3,  // a commit asks for it
  kCall = 4,     // SaveModel
  kDrain = 5,
};

// In the order of their numbers.
inline constexpr std::pair<SaveReason, const char*> kSaveReasons[] = {{SaveReason::kCommits, "commits"},
                                                                      {SaveReason::kTime, "time"},
                                                                      {SaveReason::kTrainer, "trainer"},
                                                                      {SaveReason::kCall, "call"},
                                                                      {SaveReason::kDrain, "drain"}};

// Return the name.
inline constexpr const char* SaveStateName(SaveState state) { return kSaveStates[static_cast<int>(state) - 1].second; }
inline constexpr const char* SaveReasonName(SaveReason reason) {
  return kSaveReasons[static_cast<int>(reason) - 1].second;
}

}  // namespace paramshard

#endif  // PARAMSHARD_COMMON_MODEL_SAVE_STATE_H_
