// Amaxes and scales of whole tensors, which encoding needs.
#ifndef PARAMSHARD_SERVER_STATE_SCALING_BOOK_H_
#define PARAMSHARD_SERVER_STATE_SCALING_BOOK_H_

#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "common/model/model_spec.h"
#include "kernels/formats/codec.h"
#include "kernels/formats/delayed_scaling.h"
#include "server/journal/journal_content.h"

namespace paramshard::server {

// Holds, for every parameter of a model that NeedsAmax(), the amax of its master over all ranks and, for
// FP8_TENSOR_DELAYED, the history of amaxes with the scale that follows. All ranks of a daemon share one book; daemons
// bring theirs to the same values:
//
//   every rank:  book.AddStep(unit, parameter, amax) for what it stepped, book.AddMaster(...) for what it measured
//   one of them: values = book.Offer(); the largest over all daemons; book.Settle(values)
//   every rank:  encodes with book.Present(unit, parameter)
//
// A history begins with zeros and the amax of the master at creation, or after an import; until the first step it
// begins anew whenever amaxes are settled, on all daemons when it does on one. What was not offered keeps its values: a
// parameter without a gradient in a step, and all of them in a skipped one. A step whose amaxes could not be settled,
// because another daemon was lost, is made up for by the next ones that are: masters have not changed by then.
//
// Thread-safe.
class ScalingBook {
 public:
  // Record of one parameter between two commits: a book that begins with it goes on with the same bits. `offered` is
  // set only after commits whose amaxes were not exchanged, because a daemon was lost.
  struct Record {
    int unit = 0;
    int parameter = 0;
    float amax = 0.0f;
    float scale = 1.0f;     // of the present planes
    bool is_fresh = true;   // no step has entered the history
    float offered = -1.0f;  // as in ScalingChange
    bool stepped = false;
    struct History {
      float scale = 1.0f;              // of the next step
      std::vector<float> amaxes = {};  // newest first
      friend bool operator==(const History&, const History&) = default;
    };
    std::optional<History> history = {};  // of FP8_TENSOR_DELAYED, once settled

    friend bool operator==(const Record&, const Record&) = default;
  };

  explicit ScalingBook(const ModelSpec& spec);

  // Returns true if no parameter NeedsAmax(). Then all other methods do nothing.
  bool empty() const { return entries_.empty(); }

  // Host memory of the histories.
  int64_t history_bytes() const;

  // Returns the scaling with which the planes of the last settled master are encoded; for other parameters the default,
  // which no format of theirs reads.
  TensorScaling Present(int unit, int parameter) const;
  // Returns the scaling with which the coming step encodes FP8_TENSOR_DELAYED.
  TensorScaling Next(int unit, int parameter) const;

  // Adds the amax of one rank's extent: of the master that a step has made, or of the master as it is.
  void AddStep(int unit, int parameter, float amax);
  void AddMaster(int unit, int parameter, float amax);

  // Returns this daemon's part in the exchange; of the same size on every daemon.
  std::vector<float> Offer() const;
  // Takes over the largest of all daemons' offers, element by element.
  void Settle(absl::Span<const float> offers);

  // Returns true if Settle has taken over the amaxes of every step.
  bool is_settled() const;

  // Begins anew, as the masters are replaced.
  void Restart();

  // Returns all records, in the order of the model.
  std::vector<Record> records() const;
  // Returns how each record has changed since the last call, in the same order.
  std::vector<ScalingChange> TakeChanges();
  // Goes on with these records. Other parameters, and histories of another length, stay as they are.
  void Restore(absl::Span<const Record> records);

 private:
  struct Entry {
    DelayedScaling::Options options;
    float fp8_max = 0.0f;
    bool is_delayed = false;
    float amax = 0.0f;
    float scale = 1.0f;                     // of the present planes
    std::optional<DelayedScaling> delayed;  // set once settled
    float offered = -1.0f;                  // amax of this daemon's extents since the last Settle; -1: none
    bool stepped = false;                   // since then
    bool is_fresh = true;                   // no step has entered the history
    ScalingChange::History change = ScalingChange::History::kSame;  // since TakeChanges

    void Begin(float amax);
    void Roll(float amax);
  };

  // Null for parameters that are not in the book.
  const Entry* Find(int unit, int parameter) const ABSL_SHARED_LOCKS_REQUIRED(mu_);
  Entry* Find(int unit, int parameter) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  mutable absl::Mutex mu_;
  std::map<std::pair<int, int>, Entry> entries_;  // by unit and parameter; keys constant, entries guarded by mu_
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_STATE_SCALING_BOOK_H_
