// Marks of models that clients have deleted.
#ifndef PARAMSHARD_SERVER_MODELS_DELETION_MARKS_H_
#define PARAMSHARD_SERVER_MODELS_DELETION_MARKS_H_

#include <cstdint>
#include <deque>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "server/base/kept_store.h"

namespace paramshard::server {

// Tells a model that a client has deleted and another client has created again from a model that was lost. Deletions
// have serial numbers, from 1. A model records at its creation the last serial number of its name; a client that has
// seen a smaller one knows that its model was deleted. Marks outlive the server in one piece of kept memory.
//
//   DeletionMarks marks(kept);
//   marks.TakeOver(all);             // of what is kept, when a server starts
//   RETURN_IF_ERROR(marks.Add("m"));  // before the model goes
//   marks.SerialOf("m");             // when it is created again
//
// Thread-safe.
class DeletionMarks {
 public:
  // Largest number of marks; the oldest are dropped. A name whose mark is gone counts as never deleted.
  static constexpr size_t kMostMarks = 1024;

  // `kept` outlives this; null: marks end with the server.
  explicit DeletionMarks(KeptStore* kept) : kept_(kept) {}

  // Takes the marks out of all that is kept. Bytes that are not marks are logged and ignored.
  void TakeOver(KeptStore::Descriptors& all);
  // Adds a mark. Errors of KeptStore::Keep; then there is no mark.
  absl::Status Add(absl::string_view name);
  // Returns the serial number of the name's last deletion, 0 without a mark.
  int64_t SerialOf(absl::string_view name) const;

 private:
  struct Mark {
    int64_t serial = 0;
    std::string name;
  };
  using Marks = std::deque<Mark>;  // by serial number; the last one of each name

  // The bytes that are kept: "SERIAL NAME" of every mark, each with a NUL behind it.
  static std::string Serialize(const Marks& marks);
  static absl::Status Parse(absl::string_view bytes, Marks& marks);
  absl::Status Keep(const Marks& marks) const;

  KeptStore* const kept_;
  mutable absl::Mutex mu_;
  Marks marks_ ABSL_GUARDED_BY(mu_);
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_MODELS_DELETION_MARKS_H_
