// Kills the server of a training again and again: first in the middle of a step, then at random times.
#ifndef PARAMSHARD_CLIENT_DEMO_SERVER_KILLS_H_
#define PARAMSHARD_CLIENT_DEMO_SERVER_KILLS_H_

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/demo/demo_world.h"
#include "client/demo/report_tail.h"
#include "nlohmann/json.hpp"

namespace paramshard::demo {

// Kills of the server during a training in a world of one daemon. Not thread-safe.
//
//   ServerKills kills(world, {.model = "digits", .victim = 1, .epochs = 20, .seed = 7});
//   while (TrainingGoesOn()) RETURN_IF_ERROR(kills.Poll(absl::Milliseconds(5)));
class ServerKills {
 public:
  struct Options {
    std::string model = {};
    int victim = 0;      // the rank that holds a step for the first kill
    int64_t epochs = 0;  // of the training
    int at_random = 6;   // kills after the first one, at most
    uint64_t seed = 0;
  };

  // The world outlives this.
  ServerKills(const DemoWorld* world, Options options)
      : world_(world),
        options_(std::move(options)),
        random_(options_.seed),
        victims_events_(world->ReportFile(options_.model, options_.victim)),
        events_(world->ReportFile(options_.model, 0)) {}

  // Kills the server if a kill is due before the next call, in about `interval`.
  absl::Status Poll(absl::Duration interval);

  // Times of kills in seconds since the Unix epoch, like times of events. The first kill is in the middle of a step.
  const std::vector<double>& times() const { return times_; }
  // Longest time that a step has waited for the copy of a save, until the first kill.
  double save_stall_seconds() const { return save_stall_seconds_; }

 private:
  absl::Status KillWhenHeld();
  absl::Status Await(const nlohmann::json& event);
  bool IsNearEnd() const;
  void Kill(pid_t server);

  const DemoWorld* const world_;
  const Options options_;
  std::mt19937_64 random_;
  ReportTail victims_events_;
  ReportTail events_;  // of rank 0
  double epoch_ = 0;   // that rank 0 has ended
  std::optional<pid_t> server_;
  absl::Time due_ = absl::InfiniteFuture();
  std::vector<double> times_;
  double save_stall_seconds_ = 0;
};

}  // namespace paramshard::demo

#endif  // PARAMSHARD_CLIENT_DEMO_SERVER_KILLS_H_
