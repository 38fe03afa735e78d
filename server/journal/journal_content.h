// Content of a model's journal, as plain values.
#ifndef PARAMSHARD_SERVER_JOURNAL_JOURNAL_CONTENT_H_
#define PARAMSHARD_SERVER_JOURNAL_JOURNAL_CONTENT_H_

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "kernels/optim/hyperparameters.h"
#include "kernels/optim/state_bands.h"
#include "server/terms/commit_log.h"
#include "server/terms/history.h"

namespace paramshard::server {

// The arrays of a rank's state, by their numbers in a journal: masters (0); remainders (1) and upper halves (2) of
// masters that are split; elements and scales of the first moment (3, 4) and of the second one (5, 6).
inline constexpr int kJournalArrays = 7;

// Layout of a rank's state, as written by the program that made the model; another program may place it otherwise.
struct JournalRank {
  // Piece of memory, by its name in KeptMemory without the rank: "master".
  struct Piece {
    std::string name;
    int64_t size_bytes = 0;
    friend bool operator==(const Piece&, const Piece&) = default;
  };
  // Rows of a parameter that the rank owns.
  struct Extent {
    int32_t unit = 0;
    int32_t parameter = 0;  // within the unit
    int64_t first_row = 0;  // of the parameter
    int64_t end_row = 0;
    std::array<int64_t, kJournalArrays> offsets = {};  // in the array's piece, at position 0
    int64_t gradient_offset = 0;
    friend bool operator==(const Extent&, const Extent&) = default;
  };
  // A band begins with a row of a parameter, and ends where the next one begins.
  struct Band {
    int32_t unit = 0;
    int32_t parameter = 0;
    int64_t row = 0;  // of the parameter
    friend bool operator==(const Band&, const Band&) = default;
  };

  int32_t rank = 0;  // in the world
  std::vector<Piece> pieces;
  std::vector<Extent> extents;  // trainable ones first, each part in the order of the model
  int32_t trainable_count = 0;
  std::vector<Band> bands;  // in the order of memory; empty: steps stay in place
  int64_t distance = 0;     // bytes by which a step moves the state; 0 without bands
  friend bool operator==(const JournalRank&, const JournalRank&) = default;
};

// Constant part of a model's journal.
struct JournalIdentity {
  // Parameter of the scaling book.
  struct BookParameter {
    int32_t unit = 0;
    int32_t parameter = 0;
    int64_t history_length = 0;  // 0: no history
    friend bool operator==(const BookParameter&, const BookParameter&) = default;
  };

  std::string spec;  // canonical bytes of the message
  uint64_t spec_fingerprint = 0;
  int32_t node = 0;
  std::vector<int32_t> device_counts;  // of all nodes
  int32_t shard_size = 1;
  int32_t parameters = 0;
  int32_t groups = 0;               // largest number of a commit
  int64_t client_state_bytes = 0;   // largest size of a rank's client state
  std::vector<BookParameter> book;  // in the order of the model
  std::vector<JournalRank> ranks;   // of this daemon
  friend bool operator==(const JournalIdentity&, const JournalIdentity&) = default;
};

// Identity of the state that the numbers count from, and the last started epoch.
struct JournalEpoch {
  HistoryId history;
  Lineage lineage;
  std::optional<HistoryParent> parent = {};
  int64_t history_begin = 0;  // the commit number that the history began with
  int64_t generation = 0;     // of changes on this daemon
  int64_t epoch = 0;
  absl::uint128 run = 0;       // History::run
  bool values_follow = false;  // History::values_follow
  int64_t deletion = 0;        // DeletionMarks, as of the creation
  friend bool operator==(const JournalEpoch&, const JournalEpoch&) = default;
};

// Scaling book's values of one parameter between two commits (ScalingBook::Record, and values not settled yet).
struct JournalScaling {
  struct History {
    float scale = 1.0f;         // of the next step
    std::vector<float> amaxes;  // newest first, history_length of them
    friend bool operator==(const History&, const History&) = default;
  };

  float amax = 0.0f;
  float scale = 1.0f;     // of the current planes
  float offered = -1.0f;  // amax of this daemon's extents since the last settlement; -1: none
  bool stepped = false;   // since the last settlement
  bool is_fresh = true;   // no step has entered the history
  std::optional<History> history = {};
  friend bool operator==(const JournalScaling&, const JournalScaling&) = default;
};

// Numbers of the answered commit and their accompanying values.
struct JournalNumbers {
  int64_t commit_number = 0;
  int64_t version = 0;
  int64_t skipped = 0;
  std::optional<CommitAnswer> last_answer = {};
  std::vector<std::string> client_states;  // by rank of this daemon
  std::string reader_data = {};            // CommitLog::State::reader_data
  std::vector<int64_t> steps;              // by parameter of the model: optimizer steps taken
  std::vector<int64_t> positions;          // by rank of this daemon: position of its state, 0 or the distance
  std::vector<JournalScaling> scalings;    // by parameter of the identity's book
  friend bool operator==(const JournalNumbers&, const JournalNumbers&) = default;
};

// A commit before its vote.
struct PreparedCommit {
  int64_t commit_number = 0;
  std::vector<Hyperparameters> groups;
  std::vector<bool> has_gradient;          // by parameter of the model
  std::vector<std::string> client_states;  // by rank of this daemon
  std::string reader_data = {};
  bool save = false;            // trainers ask for a save of its state
  float gradient_scale = 1.0f;  // factor of the gradients
  std::optional<float> max_grad_norm = {};
  int32_t ranks = 1;  // number of ranks with gradients
};
bool operator==(const PreparedCommit& a, const PreparedCommit& b);

// A commit after its vote: this daemon's action and answer.
struct DecidedCommit {
  int64_t commit_number = 0;
  bool apply = false;
  float gradient_scale = 1.0f;
  double gradient_norm = 0.0;
  int64_t non_finite_count = 0;
  double square_sum = 0.0;  // from node 0, the source of scale and norm
  friend bool operator==(const DecidedCommit&, const DecidedCommit&) = default;
};

// Values of a parameter of the scaling book after a commit. Its history only grows by `amax`.
struct ScalingChange {
  enum class History : uint8_t {
    kSame,
    kAppended,  // `amax` is its newest value
    kBegun,     // `amax` is its newest value, and all others are zeros
  };

  float amax = 0.0f;
  float scale = 1.0f;
  float next_scale = 1.0f;  // of the next step, if there is a history
  float offered = -1.0f;
  bool stepped = false;
  bool is_fresh = true;
  History history = History::kSame;
};

// The next commit to be answered.
struct AnsweredCommit {
  CommitAnswer answer;
  int64_t skipped = 0;
  absl::Span<const int64_t> steps;
  absl::Span<const int64_t> positions;
  absl::Span<const ScalingChange> scalings;
};

// Source of a change of the state.
struct ChangeSource {
  enum class Kind : uint8_t {
    kStream,      // an import from a client, which is gone
    kFiles,       // an import from files that this daemon reads; values that they lack stay
    kCheckpoint,  // a restore
    kReplica,     // a healing by another daemon, which may not have begun
  };

  Kind kind = Kind::kStream;
  // Text for repeating the change: for kFiles the serialized request, for kCheckpoint the checkpoint's folder. Empty if
  // this daemon cannot repeat it, as for a restore of several daemons that another one leads.
  std::string text;
  bool convert_moments = false;  // of a checkpoint's

  bool repeatable() const { return kind != Kind::kStream && !text.empty(); }
  friend bool operator==(const ChangeSource&, const ChangeSource&) = default;
};

// Numbers of a lane's bands that were begun and done. Without bands the whole step is the only band of lane 0.
struct LaneProgress {
  int32_t begun = 0;
  int32_t done = 0;
  friend bool operator==(const LaneProgress&, const LaneProgress&) = default;
};
using RankProgress = std::array<LaneProgress, kBandLanes>;

// Returns the number of a lane's bands in a step.
int LaneBands(const JournalRank& rank, int lane);

// INVALID_ARGUMENT invalid content, such as bands of rows that the rank does not have.
absl::Status CheckIdentity(const JournalIdentity& identity);
absl::Status CheckNumbers(const JournalIdentity& identity, const JournalNumbers& numbers);

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_JOURNAL_JOURNAL_CONTENT_H_
