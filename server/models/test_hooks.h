// Points at which tests steer the models of a daemon. Nothing else sets them.
#ifndef PARAMSHARD_SERVER_MODELS_TEST_HOOKS_H_
#define PARAMSHARD_SERVER_MODELS_TEST_HOOKS_H_

#include <functional>

#include "absl/status/status.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "server/terms/history.h"

namespace paramshard::server {

struct ModelTestHooks {
  HistoryIdSource draw_history = RandomHistoryId;
  // Called before an answer is written to a model's journal, which returns its error.
  std::function<absl::Status()> before_answer = [] { return absl::OkStatus(); };
  // Waits between two attempts to take over a model for which there is no memory.
  std::function<void(absl::Duration pause)> pause = [](absl::Duration pause) { absl::SleepFor(pause); };
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_MODELS_TEST_HOOKS_H_
