// Takes over the models that another server has left in kept memory.
#ifndef PARAMSHARD_SERVER_MODELS_MODEL_TAKEOVER_H_
#define PARAMSHARD_SERVER_MODELS_MODEL_TAKEOVER_H_

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/model/model_spec.h"
#include "server/base/clock.h"
#include "server/base/kept_store.h"
#include "server/journal/journal_content.h"
#include "server/models/lost_models.h"
#include "server/models/model.h"
#include "server/models/state_recovery.h"
#include "server/observe/log_throttle.h"
#include "server/training/world.h"

namespace paramshard::server {

// A change that was cut off, to be made again: its model is ModelState::unfinished().
struct InterruptedChange {
  std::shared_ptr<Model> model;
  ChangeSource source;
};

// A model goes on from its last commit, or from the decided one. A lost one is told to LostModels and to the cluster.
// A failed attempt leaves what is kept such that the next one comes to the same state, as a server's death does.
class ModelTakeover {
 public:
  struct Options {
    const World& world;
    KeptStore& kept;
    LostModels& lost;
    ThrottledLog& log;
    const Clock& clock;
    SteadyTime deadline;  // until which it retries without free memory
    const std::function<void(absl::Duration pause)>& pause;
    absl::FunctionRef<Model::Options(ModelSpec spec)> options_for;
  };
  explicit ModelTakeover(const Options& options) : options_(options) {}

  struct Taken {
    std::shared_ptr<Model> model = nullptr;  // null: it is lost, or was dropped
    std::optional<ChangeSource> interrupted = {};
  };
  // `pieces` are all that is kept under the name. Errors of ModelStore::TakeOver.
  absl::StatusOr<Taken> TakeOver(const std::string& name, KeptStore::Descriptors pieces) const;

 private:
  absl::StatusOr<Taken> TakeOverOnce(const std::string& name, KeptStore::Descriptors pieces) const;
  // Returns true if a restore was cut off that this daemon cannot make again on its own.
  bool IsOfSeveral(const RecoveryPlan& plan) const;
  absl::StatusOr<std::shared_ptr<Model>> Resume(const std::string& name, InheritedModel inherited) const;

  const Options options_;
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_MODELS_MODEL_TAKEOVER_H_
