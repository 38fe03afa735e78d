#include "client/demo/demo.h"

#include <signal.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <limits>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "client/demo/report_tail.h"
#include "client/demo/server_kills.h"
#include "client/demo/trainer.h"
#include "kernels/base/status_macros.h"

namespace paramshard::demo {
namespace {

constexpr char kUninterrupted[] = "digits-uninterrupted";
constexpr char kInterrupted[] = "digits-interrupted";
constexpr char kServerKilled[] = "digits-server-killed";
constexpr int kSavesBeforeTheKill = 4;  // about
constexpr double kMinAccuracy = 0.97;
constexpr absl::Duration kTrainingTimeout = absl::Minutes(5);
constexpr absl::Duration kLeaveTimeout = absl::Seconds(30);
constexpr absl::Duration kPollInterval = absl::Milliseconds(5);

void Say(const std::string& text) { std::cout << text << std::endl; }

void SayHeading(const std::string& text) { Say(absl::StrCat("\n== ", text)); }

// Reports store numbers that are not finite as null.
double RealOf(const nlohmann::json& value) {
  return value.is_number() ? value.get<double>() : std::numeric_limits<double>::quiet_NaN();
}

void SayProgress(const nlohmann::json& event, int64_t epochs) {
  const int64_t gathered = event["gathered_bytes_per_step"];
  const int64_t bf16 = event["bf16_bytes_per_step"];
  Say(absl::StrFormat(
      "epoch %2.0f/%d  loss %.4f  accuracy %.4f  gathered %d bytes/step (BF16: %d, "
      "%.0f %%)  %.0f steps/s",
      event["epoch"].get<double>(), epochs, RealOf(event["loss"]), event["accuracy"].get<double>(), gathered, bf16,
      100.0 * static_cast<double>(gathered) / static_cast<double>(bf16), event["steps_per_second"].get<double>()));
}

const nlohmann::json* FindEvent(const std::vector<nlohmann::json>& events, const std::string& name, double after) {
  const auto found = std::find_if(events.begin(), events.end(), [&](const nlohmann::json& event) {
    return event["event"] == name && event["time"].get<double>() > after;
  });
  return found == events.end() ? nullptr : &*found;
}

}  // namespace

absl::Status Demo::Run() {
  const absl::Time begin = absl::Now();
  RETURN_IF_ERROR(CheckOptions());
  RETURN_IF_ERROR(ClearOutput());
  SayHeading(absl::StrFormat("%d daemon%s, %d %s device%s, weights in %s", options_.nodes,
                             options_.nodes == 1 ? "" : "s", options_.world_size, options_.device,
                             options_.world_size == 1 ? "" : "s", options_.storage.format));
  if (options_.nodes == 1) {
    options_.save_dir = std::filesystem::absolute(SaveDir(options_.out_dir));
    options_.save_every = KillStep() / kSavesBeforeTheKill + 1;
  }
  ASSIGN_OR_RETURN(DemoWorld world, DemoWorld::Start(options_));
  Results results;
  ASSIGN_OR_RETURN(results.uninterrupted, TrainUninterrupted(world));
  ASSIGN_OR_RETURN(results.interrupted, TrainInterrupted(world));
  ASSIGN_OR_RETURN(results.recovery_seconds, RecoverySeconds(world, results.interrupted));
  if (options_.nodes == 1) {
    ASSIGN_OR_RETURN(results.comeback, TrainThroughServersDeaths(world));
  }
  RETURN_IF_ERROR(world.Stop());
  if (results.comeback.has_value()) RETURN_IF_ERROR(RestoreElsewhere(*results.comeback));
  RETURN_IF_ERROR(WriteReport(results));
  RETURN_IF_ERROR(Conclude(results));
  Say(absl::StrFormat("%.0f seconds in total; all figures are in %s/report.json",
                      absl::ToDoubleSeconds(absl::Now() - begin), options_.out_dir));
  return absl::OkStatus();
}

absl::Status Demo::CheckOptions() const {
  RETURN_IF_ERROR(ParseStorage(options_.storage).status());
  if (options_.device != "cpu" && options_.device != "cuda") {
    return absl::InvalidArgumentError(absl::StrCat("--device: want cpu or cuda, got ", options_.device));
  }
  if (options_.nodes >= 1 && options_.world_size >= options_.nodes && options_.world_size % options_.nodes == 0) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("--world-size: want a positive multiple of the ", options_.nodes,
                                                 " nodes, got ", options_.world_size));
}

// Removes what an earlier run has left: trainers append to their reports. Other files in the folder stay.
absl::Status Demo::ClearOutput() const {
  const std::string run_dir = RunDir(options_.out_dir);
  std::error_code error;
  std::filesystem::remove_all(run_dir, error);
  std::filesystem::remove(absl::StrCat(options_.out_dir, "/report.json"), error);
  std::filesystem::create_directories(SaveDir(options_.out_dir), error);
  if (!error) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("--out ", options_.out_dir, ": ", error.message()));
}

int64_t Demo::KillStep() const {
  // An epoch has four fifths of 1,797 samples, in batches.
  const int64_t steps = 1438 / TrainerOptions().batch_size + 1;
  return options_.epochs / 2 * steps + steps / 2;
}

absl::StatusOr<std::vector<ChildProcess>> Demo::StartTrainers(DemoWorld& world, const std::string& model,
                                                              const std::vector<std::string>& victims_flags) {
  std::vector<ChildProcess> trainers;
  for (int rank = 0; rank < options_.world_size; ++rank) {
    ASSIGN_OR_RETURN(ChildProcess trainer,
                     world.StartTrainer(model, rank, rank == victim() ? victims_flags : std::vector<std::string>{}));
    trainers.push_back(std::move(trainer));
  }
  return trainers;
}

absl::StatusOr<Demo::Training> Demo::Follow(DemoWorld& world, const std::string& model,
                                            std::vector<ChildProcess>& trainers, const Hooks& hooks) {
  Training training;
  ReportTail tail(world.ReportFile(model, 0));
  const absl::Time deadline = absl::Now() + kTrainingTimeout;
  bool finished = false;
  while (!finished) {
    for (nlohmann::json& event : tail.Read()) {
      if (event["event"] == "progress") {
        SayProgress(event, options_.epochs);
        if (std::exchange(training.last_progress, event).is_null()) RETURN_IF_ERROR(hooks.on_first_progress());
      }
      finished = finished || event["event"] == "finished";
      training.events.push_back(std::move(event));
    }
    RETURN_IF_ERROR(world.CheckRunning());
    RETURN_IF_ERROR(hooks.on_poll());
    for (int rank = 0; rank < options_.world_size; ++rank) {
      const std::optional<ExitState> exit = trainers[rank].Poll();
      if (exit.has_value() && !exit->ok()) RETURN_IF_ERROR(hooks.on_failure(rank, *exit));
    }
    if (absl::Now() > deadline) {
      return absl::DeadlineExceededError(
          absl::StrCat("train ", model, ": timed out after ", absl::FormatDuration(kTrainingTimeout)));
    }
    absl::SleepFor(kPollInterval);
  }
  for (ChildProcess& trainer : trainers) RETURN_IF_ERROR(trainer.WaitForSuccess(kLeaveTimeout));
  ASSIGN_OR_RETURN(training.state_hash, world.StateHash(model));
  return training;
}

absl::StatusOr<Demo::Training> Demo::TrainUninterrupted(DemoWorld& world) {
  SayHeading("uninterrupted training");
  ASSIGN_OR_RETURN(std::vector<ChildProcess> trainers, StartTrainers(world, kUninterrupted, {}));
  return Follow(world, kUninterrupted, trainers,
                {.on_first_progress = [&] { return PrintTables(world, kUninterrupted); },
                 .on_failure = [&](int rank, const ExitState&) { return trainers[rank].CheckRunning(); }});
}

absl::StatusOr<Demo::Training> Demo::TrainInterrupted(DemoWorld& world) {
  SayHeading(
      absl::StrFormat("the same training; rank %d is killed with -9 in the middle of step %d", victim(), KillStep()));
  ASSIGN_OR_RETURN(std::vector<ChildProcess> trainers,
                   StartTrainers(world, kInterrupted, {absl::StrCat("--kill-at-step=", KillStep())}));
  const auto start_again = [&](int rank, const ExitState& exit) -> absl::Status {
    if (rank != victim() || exit.signal != SIGKILL) return trainers[rank].CheckRunning();
    Say(absl::StrFormat("rank %d ended with %s; starting it again", rank, exit.ToString()));
    ASSIGN_OR_RETURN(trainers[rank], world.StartTrainer(kInterrupted, rank));
    return absl::OkStatus();
  };
  return Follow(world, kInterrupted, trainers,
                {.on_first_progress = [] { return absl::OkStatus(); }, .on_failure = start_again});
}

absl::StatusOr<Demo::Comeback> Demo::TrainThroughServersDeaths(DemoWorld& world) {
  Comeback comeback;
  comeback.kill_seed = options_.kill_seed.value_or(std::random_device()());
  SayHeading(absl::StrFormat(
      "the same training; the server is killed with -9 in the middle of step %d, then at random times (--kill-seed=%d)",
      KillStep(), comeback.kill_seed));
  ASSIGN_OR_RETURN(std::vector<ChildProcess> trainers,
                   StartTrainers(world, kServerKilled, {absl::StrCat("--hold-at-step=", KillStep())}));
  ServerKills kills(
      &world, {.model = kServerKilled, .victim = victim(), .epochs = options_.epochs, .seed = comeback.kill_seed});
  ASSIGN_OR_RETURN(comeback.training,
                   Follow(world, kServerKilled, trainers,
                          {.on_first_progress = [] { return absl::OkStatus(); },
                           .on_failure = [&](int rank, const ExitState&) { return trainers[rank].CheckRunning(); },
                           .on_poll = [&] { return kills.Poll(kPollInterval); }}));
  RETURN_IF_ERROR(MeasureRecoveries(kills.times(), comeback));
  comeback.save_stall_seconds = kills.save_stall_seconds();
  comeback.finished_steps = world.FinishedSteps(kServerKilled);
  ASSIGN_OR_RETURN(comeback.saved, world.Save(kServerKilled));
  return comeback;
}

absl::Status Demo::MeasureRecoveries(const std::vector<double>& kills, Comeback& comeback) const {
  if (kills.empty()) return absl::InternalError("the server was not killed");
  comeback.kills = static_cast<int>(kills.size());
  for (const double killed_at : kills) {
    const nlohmann::json* committed = FindEvent(comeback.training.events, "committed", killed_at);
    if (committed == nullptr) return absl::InternalError("no commit after the server was killed");
    const double seconds = (*committed)["time"].get<double>() - killed_at;
    if (killed_at == kills.front()) comeback.recovery_seconds = seconds;
    comeback.longest_recovery_seconds = std::max(comeback.longest_recovery_seconds, seconds);
  }
  return absl::OkStatus();
}

// Worlds of CPUs or of one GPU are restored by one rank more, on CPUs; other worlds by one rank less.
DemoOptions Demo::OtherWorld() const {
  DemoOptions other = options_;
  other.run_name = "restored-";
  other.shard_size.reset();
  if (options_.device == "cpu" || options_.world_size == 1) {
    other.device = "cpu";
    ++other.world_size;
  } else {
    --other.world_size;
  }
  return other;
}

absl::Status Demo::RestoreElsewhere(Comeback& comeback) {
  const DemoOptions other = OtherWorld();
  SayHeading(absl::StrFormat("step %d, saved by %d rank%s, is restored by %d", comeback.saved.step, options_.world_size,
                             options_.world_size == 1 ? "" : "s", other.world_size));
  ASSIGN_OR_RETURN(DemoWorld world, DemoWorld::Start(other));
  // These trainers find that the training is done.
  std::vector<ChildProcess> trainers;
  for (int rank = 0; rank < other.world_size; ++rank) {
    ASSIGN_OR_RETURN(ChildProcess trainer, world.StartTrainer(kServerKilled, rank));
    trainers.push_back(std::move(trainer));
  }
  for (ChildProcess& trainer : trainers) RETURN_IF_ERROR(trainer.WaitForSuccess(kLeaveTimeout));
  ASSIGN_OR_RETURN(const DemoWorld::SavedStep again, world.Save(kServerKilled));
  ASSIGN_OR_RETURN(const nlohmann::json saved_hashes, world.ContentHashes(comeback.saved.path));
  ASSIGN_OR_RETURN(const nlohmann::json restored_hashes, world.ContentHashes(again.path));
  comeback.restored_world_size = other.world_size;
  comeback.restored_state_equal = again.step == comeback.saved.step && saved_hashes == restored_hashes;
  Say(absl::StrFormat("%d tensors, %d bytes", restored_hashes.size(), again.size_bytes));
  return world.Stop();
}

absl::Status Demo::PrintTables(DemoWorld& world, const std::string& model) {
  const std::vector<std::vector<std::string>> commands = {{"models"}, {"shards", model}, {"sessions"}, {"memory"}};
  for (const std::vector<std::string>& command : commands) {
    ASSIGN_OR_RETURN(const std::string table, world.Control(0, command));
    Say(absl::StrCat("\n$ paramshardctl ", absl::StrJoin(command, " "), "\n",
                     absl::StripTrailingAsciiWhitespace(table)));
  }
  return absl::OkStatus();
}

absl::StatusOr<double> Demo::RecoverySeconds(DemoWorld& world, const Training& interrupted) const {
  const std::vector<nlohmann::json> victims_events = ReportTail(world.ReportFile(kInterrupted, victim())).Read();
  const nlohmann::json* kill = FindEvent(victims_events, "kill", 0);
  if (kill == nullptr) return absl::InternalError(absl::StrCat("rank ", victim(), " was not killed"));
  const double killed_at = (*kill)["time"];
  const nlohmann::json* committed = FindEvent(interrupted.events, "committed", killed_at);
  if (committed == nullptr) return absl::InternalError(absl::StrCat("no commit after rank ", victim(), " was killed"));
  return (*committed)["time"].get<double>() - killed_at;
}

absl::Status Demo::WriteReport(const Results& results) const {
  const Training& uninterrupted = results.uninterrupted;
  nlohmann::json devices = nlohmann::json::array();
  for (int node = 0; node < options_.nodes; ++node) devices.push_back(DevicesOf(options_, node));
  nlohmann::json report = {{"test_accuracy", uninterrupted.last_progress["accuracy"]},
                           {"master_hash_uninterrupted", uninterrupted.state_hash},
                           {"master_hash_interrupted", results.interrupted.state_hash},
                           {"kill9_recovery_seconds", results.recovery_seconds},
                           {"gathered_bytes_per_step", uninterrupted.last_progress["gathered_bytes_per_step"]},
                           {"bf16_bytes_per_step", uninterrupted.last_progress["bf16_bytes_per_step"]},
                           {"format", options_.storage.format},
                           {"world_size", options_.world_size},
                           {"nodes", options_.nodes},
                           {"devices", devices},
                           {"shard_size", options_.shard_size.value_or(options_.world_size / options_.nodes)},
                           {"epochs", options_.epochs}};
  if (results.comeback.has_value()) {
    const Comeback& comeback = *results.comeback;
    report["master_hash_server_killed"] = comeback.training.state_hash;
    report["server_kill9_recovery_seconds"] = comeback.recovery_seconds;
    report["server_kill9_longest_recovery_seconds"] = comeback.longest_recovery_seconds;
    report["server_kills"] = comeback.kills;
    report["server_kill_seed"] = comeback.kill_seed;
    report["server_steps_finished"] = comeback.finished_steps;
    report["saved_bytes"] = comeback.saved.size_bytes;
    report["save_stall_seconds"] = comeback.save_stall_seconds;
    report["restored_world_size"] = comeback.restored_world_size;
    report["restored_state_equal"] = comeback.restored_state_equal;
  }
  const std::string file = absl::StrCat(options_.out_dir, "/report.json");
  std::ofstream out(file);
  out << report.dump(2) << std::endl;
  return out ? absl::OkStatus() : absl::InternalError(absl::StrCat("failed to write ", file));
}

absl::Status Demo::ConcludeComeback(const Results& results) const {
  const Comeback& comeback = *results.comeback;
  Say(absl::StrFormat("                                %s (server killed)", comeback.training.state_hash));
  Say(absl::StrFormat("server's kill -9 to next commit %.2f s; %d kills, the longest took %.2f s",
                      comeback.recovery_seconds, comeback.kills, comeback.longest_recovery_seconds));
  Say(absl::StrFormat("interrupted steps               %d, finished by the next server", comeback.finished_steps));
  Say(absl::StrFormat("saved                           %d bytes; steps waited for %.4f s at most",
                      comeback.saved.size_bytes, comeback.save_stall_seconds));
  Say(absl::StrFormat("restored into a world of %-2d     %s", comeback.restored_world_size,
                      comeback.restored_state_equal ? "the same bytes" : "different bytes"));
  if (comeback.training.state_hash != results.uninterrupted.state_hash) {
    return absl::InternalError("masters and moments differ after the server was killed");
  }
  if (comeback.restored_state_equal) return absl::OkStatus();
  return absl::InternalError("content hashes of the saved and the restored state differ");
}

absl::Status Demo::Conclude(const Results& results) const {
  const Training& uninterrupted = results.uninterrupted;
  const double accuracy = uninterrupted.last_progress["accuracy"];
  SayHeading("results");
  Say(absl::StrFormat("accuracy on held-out digits     %.4f, with weights gathered in %s", accuracy,
                      options_.storage.format));
  Say(absl::StrFormat("gathered per step               %d bytes; %d with BF16",
                      uninterrupted.last_progress["gathered_bytes_per_step"].get<int64_t>(),
                      uninterrupted.last_progress["bf16_bytes_per_step"].get<int64_t>()));
  Say(absl::StrFormat("kill -9 to the next commit      %.2f s", results.recovery_seconds));
  Say(absl::StrFormat("masters and moments             %s (uninterrupted)", uninterrupted.state_hash));
  Say(absl::StrFormat("                                %s (interrupted)", results.interrupted.state_hash));
  if (uninterrupted.state_hash != results.interrupted.state_hash) {
    return absl::InternalError("masters and moments differ between the uninterrupted and the interrupted training");
  }
  if (results.comeback.has_value()) RETURN_IF_ERROR(ConcludeComeback(results));
  if (accuracy < kMinAccuracy && options_.epochs >= TrainerOptions().epochs) {
    return absl::InternalError(absl::StrFormat("accuracy: want at least %.2f, got %.4f", kMinAccuracy, accuracy));
  }
  Say("All trainings ended in the same state, bit for bit.");
  return absl::OkStatus();
}

}  // namespace paramshard::demo
