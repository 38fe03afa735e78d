// Readers of a readable training, of which some abuse the daemon. Each runs in a process of its own.
#ifndef PARAMSHARD_LAB_CAMPAIGN_READERS_H_
#define PARAMSHARD_LAB_CAMPAIGN_READERS_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "tests/support/child_process.h"

namespace paramshard::test {

enum class ReaderKind {
  kVerifier,  // reads every parameter of each snapshot
  kSleeper,   // sleeps between two parameters, for up to 600 ms
  kHoarder,   // 16 readers that release no snapshot before they have all they can have
  kSpammer,   // takes and releases a lease 10,000 times, without reading
  kCrowd,     // 200 readers at once
  kHostile,   // writes random words into its lease page, and tries to write where it may not
};
inline constexpr int kReaderKinds = 6;
const char* NameOf(ReaderKind kind);

// Numbers of a reader's board.
enum ReaderNumber : int {
  kStop,        // set by the parent
  kAccepted,    // whole snapshots, all values right
  kVersions,    // different versions of these, one after the other
  kNewLife,     // of a model that was created anew
  kAborted,     // snapshots that ended while they were read
  kTorn,        // copies of mapped planes with values of two versions, which the reader then refused
  kLost,        // snapshots whose daemon died
  kReleased,    // snapshots without a look
  kNoSnapshot,  // acquires that timed out or were refused
  kWrites,      // of random words
  kInside,      // 1 while a parameter is read
  kReaderNumbers,
};
// Another number of the board: the commit of the last whole snapshot. The parent may set it to 0.
inline constexpr int kLastCommit = kReaderNumbers;

struct ReaderPlan {
  ReaderKind kind = ReaderKind::kVerifier;
  std::string socket_dir = {};
  std::string model = {};
  uint64_t seed = 0;
  bool follows = false;  // a verifier: waits for a newer version after each
};

// Reads until kStop. INTERNAL names seed, commit and parameter of a wrong value that was accepted, and anything else
// that no reader may meet.
absl::Status ReadUntilStopped(const ReaderPlan& plan, Board& board);

}  // namespace paramshard::test

#endif  // PARAMSHARD_LAB_CAMPAIGN_READERS_H_
