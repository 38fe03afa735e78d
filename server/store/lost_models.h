// Models that were lost with the server before this one.
#ifndef PARAMSHARD_SERVER_STORE_LOST_MODELS_H_
#define PARAMSHARD_SERVER_STORE_LOST_MODELS_H_

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
#include "server/log/log_throttle.h"

namespace paramshard::server {

// A name is lost from Add on, until a model of that name is made anew or it is deleted. What is left of the model stays
// kept until then, or until it makes room for the one that is made anew. From then on a piece that is kept, its mark,
// says why it was lost, so that the next server says so too, whenever this one dies: it is there before anything else
// goes, and goes when the journal of the new model says that it is there.
//
//   lost.Add("m", "an import was cut off, and whoever sent it is gone");
//   RETURN_IF_ERROR(lost.Check("m"));   // whoever asks for it is told
//
//   RETURN_IF_ERROR(lost.Free("m"));    // before it is made anew, and again where that has failed
//   lost.End("m");                      // it was made
//
//   RETURN_IF_ERROR(lost.FreeAll("m"));  // or it is deleted
//   lost.Forget("m");
//
// Thread-safe. Of one name one thread at a time frees, ends and forgets.
class LostModels {
 public:
  struct Options {
    KeptStore* kept = nullptr;       // outlives this; null: nothing is kept, and nothing lost
    bool is_one_of_several = false;  // daemons: none of them restores a model on its own
    std::shared_ptr<ThrottledLog> log;
  };
  explicit LostModels(Options options) : options_(std::move(options)) {}

  // What Check says of a model that is lost: DATA_LOSS.
  absl::Status Describe(absl::string_view name, absl::string_view why) const;
  // `source`: what was being restored meanwhile, if that is known. It ends with this server.
  // `was_restored`: in a restore of all daemons.
  void Add(const std::string& name, absl::string_view why, std::optional<ChangeSource> source = std::nullopt,
           bool was_restored = false);
  // OK, or DATA_LOSS: it is lost, why, and what is to be done.
  absl::Status Check(absl::string_view name) const;
  bool Contains(absl::string_view name) const { return !Check(name).ok(); }
  std::optional<ChangeSource> SourceOf(absl::string_view name) const;
  bool WasBeingRestored(absl::string_view name) const;
  // As Add was told; empty where it is not lost.
  std::string WhyOf(absl::string_view name) const;
  // What Check says, by name.
  std::map<std::string, absl::Status, std::less<>> List() const;

  // Frees all that is kept under the name but the mark, which is made. Does nothing where it is not lost. Errors of
  // KeptStore; it may be called again.
  absl::Status Free(const std::string& name);
  // A model of that name is made. A mark that stays says nothing beside its journal.
  void End(const std::string& name);
  // Frees all that is kept under the name, which is lost and stays so until Forget. Errors of KeptStore.
  absl::Status FreeAll(const std::string& name);
  void Forget(const std::string& name);

  // What the mark among a model's pieces says. Whatever it holds: it is shown, and nothing else.
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

#endif  // PARAMSHARD_SERVER_STORE_LOST_MODELS_H_
