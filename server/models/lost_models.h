// Models that were lost with the server before this one.
#ifndef PARAMSHARD_SERVER_MODELS_LOST_MODELS_H_
#define PARAMSHARD_SERVER_MODELS_LOST_MODELS_H_

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "server/base/kept_store.h"
#include "server/device/kept_memory.h"
#include "server/journal/journal_content.h"
#include "server/observe/log_throttle.h"
#include "server/terms/cluster.h"

namespace paramshard::server {

// A model is lost from Add until a model of its name is made anew or it is deleted. Its memory is kept until then, or
// until it makes room for the new model. While the new model is being made a kept piece, the mark, says why the old one
// was lost, so that the next server says so too, whenever this one dies: the mark is written before anything else is
// freed, and freed when the journal of the new model says that it is made.
//
//   lost.Add("m", "an import was interrupted, and its sender disconnected");
//   RETURN_IF_ERROR(lost.Check("m"));   // callers that ask for it are told
//
//   RETURN_IF_ERROR(lost.Free("m"));    // before it is made anew, and again where that has failed
//   lost.End("m");                      // it was made
//
//   RETURN_IF_ERROR(lost.FreeAll("m"));  // or it is deleted
//   lost.Forget("m");
//
// Thread-safe. One thread at a time frees, ends and forgets a name.
class LostModels {
 public:
  struct Options {
    KeptStore* kept = nullptr;       // outlives this; null: nothing is kept, and nothing lost
    bool is_one_of_several = false;  // daemons: none of them restores a model on its own
    std::shared_ptr<ThrottledLog> log;
  };
  explicit LostModels(Options options) : options_(std::move(options)) {}

  // Returns the error of Check for a lost model: DATA_LOSS.
  absl::Status Describe(absl::string_view name, absl::string_view why) const;
  // Tells the cluster that the model is lost, so that trainers of other daemons do not wait for it. Called before any
  // other call here learns of it: node 0 hears of the loss before it hears of what follows.
  void Report(Cluster& cluster, const std::string& name, absl::string_view why) const;
  // `source`: source of the change that was cut off, if that is known; it ends with this server. `was_restored`: lost
  // in a restore of all daemons.
  void Add(const std::string& name, absl::string_view why, std::optional<ChangeSource> source = std::nullopt,
           bool was_restored = false);
  // Returns OK, or DATA_LOSS: the model is lost, why, and what to do about it.
  absl::Status Check(absl::string_view name) const;
  bool Contains(absl::string_view name) const { return !Check(name).ok(); }
  std::optional<ChangeSource> SourceOf(absl::string_view name) const;
  bool WasBeingRestored(absl::string_view name) const;
  // Returns the reason that Add was given; empty if the model is not lost.
  std::string WhyOf(absl::string_view name) const;
  // Returns the errors of Check by name.
  std::map<std::string, absl::Status, std::less<>> List() const;

  // Makes the mark and frees all else that is kept under the name. Does nothing if the model is not lost. Errors of
  // KeptStore; it may be called again.
  absl::Status Free(const std::string& name);
  // Ends the loss when a model of that name is made. A mark that cannot be removed says nothing beside its journal.
  void End(const std::string& name);
  // Frees all that is kept under the name, which stays lost until Forget. Errors of KeptStore.
  absl::Status FreeAll(const std::string& name);
  void Forget(const std::string& name);

  // Returns the text of the mark among a model's pieces. It may be any text: it is only shown.
  static std::string ReadMark(KeptMemory& memory);

 private:
  struct Loss {
    std::string why;
    std::optional<ChangeSource> source;
    bool was_restored = false;
  };

  absl::Status MakeMark(const std::string& name, absl::string_view why) const;
  void LogFreed(const std::string& name) const;

  const Options options_;
  mutable absl::Mutex mu_;
  std::map<std::string, Loss, std::less<>> losses_ ABSL_GUARDED_BY(mu_);  // by name
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_MODELS_LOST_MODELS_H_
