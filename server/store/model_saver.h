// What a model knows of its saves, and what is known of them outside: plain values.
#ifndef PARAMSHARD_SERVER_STORE_MODEL_SAVER_H_
#define PARAMSHARD_SERVER_STORE_MODEL_SAVER_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "proto/model/layout.h"
#include "server/base/clock.h"
#include "server/terms/commit_log.h"
#include "server/terms/history.h"
#include "server/terms/save_news.h"

namespace paramshard::server {

class Model;
struct World;

struct SaveRecord {
  int64_t number = 0;  // counts the saves of a model from 1, those too that come to nothing
  SaveState state = SaveState::kWaiting;
  SaveReason reason = SaveReason::kCall;
  int64_t step = 0;  // the commit number; where it waits, that of the last commit when it fell due
  HistoryId history = {};
  int64_t size_bytes = 0;  // of the checkpoint; until it is published, of the ranks' files
  int64_t written_bytes = 0;
  absl::Time begun_at = absl::UnixEpoch();
  absl::Duration took = absl::ZeroDuration();   // until now, or until it was over
  absl::Duration copy = absl::ZeroDuration();   // of which the state was copied; 0 until it was
  absl::Duration stall = absl::ZeroDuration();  // that a step has waited for the copy
  std::string path = {};                        // of the checkpoint, where there is or may be one
  absl::Status status = absl::OkStatus();       // why it is not published, or what went wrong behind it
};

// How the saves since the model was opened have ended. Those of a state that was saved already are not counted.
struct SaveCounts {
  int64_t published = 0;
  int64_t abandoned = 0;
  int64_t unknown = 0;
  int64_t skipped = 0;
  std::optional<absl::Time> last_published = {};  // when that was
  // What saves and deletions have left in the model's folder and could not be removed; OK where nothing is known of.
  absl::Status leftovers = absl::OkStatus();
  // Why saves come to nothing until the model's folder is in order; OK where that is not so.
  absl::Status folder = absl::OkStatus();
};

// The saves of one model, which owns it. Thread-safe. Calls model methods that take its mutex: never called with that.
class ModelSaver {
 public:
  virtual ~ModelSaver() = default;

  // For the model. A commit is answered and its state in place, until this returns; `asked`: by the trainers.
  virtual void OnCommitted(const CommitAnswer& answer, bool asked) = 0;
  // An epoch is over: whatever its last commit came to, the state is in place.
  virtual void OnSettled() = 0;
  // For the store. Another daemon has said something of a save of this model. An order may come by a decision too.
  virtual void OnNews(const SaveNews& news) = 0;
  // Abandons a save that is under way and waits for its end; no other one begins. Idempotent.
  virtual void Stop() = 0;

  // Begins a save of the state of the last commit, and returns its record: one of a state that has a checkpoint ends as
  // kAlreadySaved. UNAVAILABLE while another one is under way; FAILED_PRECONDITION where another daemon leads the saves
  // of the world.
  virtual absl::StatusOr<SaveRecord> Request() = 0;
  // The record of a save, once it is over or the deadline has come, or the file system keeps it beyond its time: then its
  // status says so. NOT_FOUND for one of long ago.
  virtual absl::StatusOr<SaveRecord> Await(int64_t number, SteadyTime deadline) const = 0;
  // UNAVAILABLE while a save is under way.
  virtual absl::Status CheckIdle(absl::string_view operation) const = 0;
  // The model drains: waits for a save under way, and then saves what no save has, where the configuration says so.
  // Returns at the deadline at the latest.
  virtual void Drain(SteadyTime deadline) = 0;
  // Whether a drain has nothing to save: a checkpoint has the state of the last commit, there was none, or the
  // configuration says so.
  virtual bool IsDrained() const = 0;

  // Recent ones, the oldest first.
  virtual std::vector<SaveRecord> records() const = 0;
  virtual SaveCounts counts() const = 0;
  // Host memory that is kept for copies.
  virtual int64_t image_bytes() const = 0;
};

// Makes savers. Constant; thread-safe.
class SaverSource {
 public:
  virtual ~SaverSource() = default;

  // The host memory that a saver will take for each rank of this daemon.
  virtual absl::StatusOr<std::vector<int64_t>> ImageBytes(const Layout& layout, const World& world) const = 0;
  // How long saves may take when the daemon stops, one that is under way by then too, whatever else is saved.
  virtual absl::Duration drain_timeout() const = 0;

  // What of the model's folder of checkpoints keeps a saver from being made.
  enum class FolderTrouble : uint8_t {
    kIsRefused,
    kEndsSaves,  // nothing: saves come to nothing, and say why, until one finds the folder in order
  };
  // The model outlives its saver, and is all there but for it.
  virtual absl::StatusOr<std::unique_ptr<ModelSaver>> Make(Model& model, FolderTrouble trouble) const = 0;
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_STORE_MODEL_SAVER_H_
