// Restores and imports that the server before this one was in the middle of.
#ifndef PARAMSHARD_SERVER_SERVICE_CUT_OFF_CHANGES_H_
#define PARAMSHARD_SERVER_SERVICE_CUT_OFF_CHANGES_H_

#include <atomic>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "server/store/model_store.h"

namespace paramshard::server {

// Makes them again, one after the other, on a thread of its own while the daemon serves: their models are there, and
// say what is done to them. A drain of the store gives up the one that is under way and those behind it, which the
// next server makes then. One that fails loses its model (ModelStore::FinishChange).
//
//   ASSIGN_OR_RETURN(auto cut_off, store.TakeOver());
//   ...  the daemon serves ...
//   ASSIGN_OR_RETURN(auto changes, CutOffChanges::Start(&store, std::move(cut_off)));
//   store.Drain(deadline, why);
//   changes.reset();
class CutOffChanges {
 public:
  // `store` outlives it. RESOURCE_EXHAUSTED for no thread.
  static absl::StatusOr<std::unique_ptr<CutOffChanges>> Start(ModelStore* store,
                                                              std::vector<ModelStore::CutOffChange> changes);
  // Waits for the one that is under way, and begins no other.
  ~CutOffChanges();

  // Returns when all are made, or given up. One caller.
  void Await();

 private:
  CutOffChanges(ModelStore* store, std::vector<ModelStore::CutOffChange> changes)
      : store_(store), changes_(std::move(changes)) {}
  void Run();
  absl::Status Make(const ModelStore::CutOffChange& change) const;

  ModelStore* const store_;
  std::vector<ModelStore::CutOffChange> changes_;  // the thread's
  std::atomic<bool> stopping_ = false;
  std::thread thread_;
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_SERVICE_CUT_OFF_CHANGES_H_
