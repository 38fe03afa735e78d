// Interface of a model to its saves, and plain values that describe saves.
#ifndef PARAMSHARD_SERVER_MODELS_MODEL_SAVER_H_
#define PARAMSHARD_SERVER_MODELS_MODEL_SAVER_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/model/layout.h"
#include "server/base/clock.h"
#include "server/terms/commit_log.h"
#include "server/terms/history.h"
#include "server/terms/save_message.h"

namespace paramshard::server {

class Model;
struct World;

struct SaveRecord {
  int64_t number = 0;  // counts the saves of a model from 1, those too that come to nothing
  SaveState state = SaveState::kWaiting;
  SaveReason reason = SaveReason::kCall;
  int64_t step = 0;  // the commit number; while it waits, the last commit when it fell due
  HistoryId history = {};
  int64_t size_bytes = 0;  // of the checkpoint; until it is published, of the ranks' files
  int64_t written_bytes = 0;
  absl::Time begun_at = absl::UnixEpoch();
  absl::Duration took = absl::ZeroDuration();   // until now, or until it was over
  absl::Duration copy = absl::ZeroDuration();   // time that copying the state took; 0 until it is copied
  absl::Duration stall = absl::ZeroDuration();  // that a step has waited for the copy
  std::string path = {};                        // of the checkpoint, where there is or may be one
  absl::Status status = absl::OkStatus();       // why it is not published, or what went wrong behind it
};

// Outcomes of the saves since the model was opened, without saves of a state that was already saved.
struct SaveCounts {
  int64_t published = 0;
  int64_t abandoned = 0;
  int64_t unknown = 0;
  int64_t skipped = 0;
  std::optional<absl::Time> last_published = {};  // when that was
  // Error about files that saves and deletions could not remove from the model's folder; OK without any.
  absl::Status leftovers = absl::OkStatus();
  // Error that lets saves fail until the model's folder is in order; OK without one.
  absl::Status folder = absl::OkStatus();
};

// Saves of one model, which owns it. Thread-safe. Calls methods of the model that take its mutex: must not be called
// with that held.
class ModelSaver {
 public:
  virtual ~ModelSaver() = default;

  // Called by the model when a commit is answered; the state stays in place until this returns. `asked`: by the
  // trainers.
  virtual void OnCommitted(const CommitAnswer& answer, bool asked) = 0;
  // Called by the model when an epoch is over: whatever its last commit came to, the state is in place.
  virtual void OnSettled() = 0;
  // Called by the store with a message from another daemon about a save of this model. An order may also come with a
  // decision.
  virtual void OnMessage(const SaveMessage& message) = 0;
  // Abandons a save that is under way and waits for its end; no other save begins. Idempotent.
  virtual void Stop() = 0;

  // Begins a save of the state of the last commit, and returns its record; a save of a state that has a checkpoint ends
  // as kAlreadySaved. UNAVAILABLE while another save is under way; FAILED_PRECONDITION where another daemon leads the
  // saves of the world.
  virtual absl::StatusOr<SaveRecord> Request() = 0;
  // Returns the record of a save once it is over, the deadline has come, or the file system keeps it beyond its time,
  // which its status then says. NOT_FOUND for a save of long ago.
  virtual absl::StatusOr<SaveRecord> Await(int64_t number, SteadyTime deadline) const = 0;
  // Returns UNAVAILABLE while a save is under way.
  virtual absl::Status CheckIdle(absl::string_view operation) const = 0;
  // Waits for a save under way as the model drains, and then saves what has no checkpoint, if the configuration says
  // so. Returns at the deadline at the latest.
  virtual void Drain(SteadyTime deadline) = 0;
  // Returns true if a drain has nothing to save: a checkpoint has the state of the last commit, there was no commit, or
  // the configuration says so.
  virtual bool IsDrained() const = 0;

  // Returns recent records, the oldest first.
  virtual std::vector<SaveRecord> records() const = 0;
  virtual SaveCounts counts() const = 0;
  // Returns the host memory that is kept for copies.
  virtual int64_t image_bytes() const = 0;
};

// Makes savers. Constant; thread-safe.
class SaverSource {
 public:
  virtual ~SaverSource() = default;

  // Returns the host memory that a saver will take for each rank of this daemon.
  virtual absl::StatusOr<std::vector<int64_t>> ImageBytes(const Layout& layout, const World& world) const = 0;
  // Returns how long saves may take when the daemon stops, including a save that is under way by then.
  virtual absl::Duration drain_timeout() const = 0;

  // Effect on Make of a folder of checkpoints that is not in order.
  enum class FolderTrouble : uint8_t {
    kIsRefused,
    kEndsSaves,  // none: saves fail, and say why, until one finds the folder in order
  };
  // Makes the saver of a model, which outlives it and is complete except for it.
  virtual absl::StatusOr<std::unique_ptr<ModelSaver>> Make(Model& model, FolderTrouble trouble) const = 0;
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_MODELS_MODEL_SAVER_H_
