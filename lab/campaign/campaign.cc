#include "lab/campaign/campaign.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <iterator>
#include <random>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "kernels/base/status_macros.h"
#include "lab/campaign/assaults.h"
#include "lab/campaign/world.h"
#include "nlohmann/json.hpp"
#include "tests/support/child_process.h"

namespace paramshard::test {
namespace {

using Count = CampaignResult::Count;

// Reports the counts of a round's process through the numbers of its board.
void Write(const Count& count, Board& board) {
  const int64_t numbers[] = {count.trainers,
                             count.servers,
                             count.daemons,
                             count.errors,
                             count.finished,
                             count.torn,
                             absl::ToInt64Milliseconds(count.longest_notice),
                             absl::ToInt64Milliseconds(count.longest_recovery)};
  for (size_t i = 0; i < std::size(numbers); ++i) board.numbers[i] = static_cast<uint32_t>(numbers[i]);
}

Count Read(const Board& board) {
  return {.trainers = board.numbers[0],
          .servers = board.numbers[1],
          .daemons = board.numbers[2],
          .errors = board.numbers[3],
          .finished = board.numbers[4],
          .torn = board.numbers[5],
          .longest_notice = absl::Milliseconds(board.numbers[6].load()),
          .longest_recovery = absl::Milliseconds(board.numbers[7].load())};
}

// A round that kills may wait for each of its trainers.
constexpr absl::Duration kRoundTimeout = absl::Minutes(20);

struct PlannedRound {
  int64_t number = 0;
  const Assault* assault = nullptr;
};

std::string ModelOf(size_t place) { return absl::StrCat("victim-", place); }

Round Begin(const CampaignOptions& options, World& world, const PlannedRound& planned, size_t place) {
  std::seed_seq seeds{static_cast<uint32_t>(options.seed), static_cast<uint32_t>(options.seed >> 32),
                      static_cast<uint32_t>(planned.number)};
  return {.world = world,
          .model = ModelOf(place),
          .random = std::mt19937_64(seeds),
          .kills = options.kills,
          .number = planned.number};
}

// Plans the next rounds: several at once, unless one of them has to run alone.
absl::StatusOr<std::vector<PlannedRound>> Plan(const CampaignOptions& options, int64_t first, int64_t end) {
  const std::vector<std::string> names = options.assaults.empty() ? AssaultNames() : options.assaults;
  std::vector<PlannedRound> planned;
  for (int64_t number = first; number < std::min(end, first + options.at_once); ++number) {
    const std::string& name = names[number % names.size()];
    const Assault* const assault = FindAssault(name);
    if (assault == nullptr) return absl::InvalidArgumentError(absl::StrCat("unknown assault ", name));
    if (assault->alone && !planned.empty()) break;
    planned.push_back({number, assault});
    if (assault->alone) break;
  }
  return planned;
}

absl::Status Named(const PlannedRound& planned, const absl::Status& status) {
  if (status.ok()) return status;
  return absl::Status(status.code(),
                      absl::StrCat("round ", planned.number, " (", planned.assault->name, "): ", status.message()));
}

void Enter(const CampaignOptions& options, const PlannedRound& planned, const Count& count, CampaignResult& result) {
  Count& sum = result.counts[std::string(planned.assault->name)];
  ++sum.rounds;
  sum.Add(count);
  ++result.rounds;
  Tell(options, absl::StrCat("round ", planned.number, " (", planned.assault->name, ") has ended: ", count.kills(),
                             " kills, ", count.errors, " errors"));
}

absl::Status RunAlone(const CampaignOptions& options, World& world, const PlannedRound& planned,
                      CampaignResult& result) {
  Round round = Begin(options, world, planned, 0);
  const absl::Status status = planned.assault->run(round);
  Enter(options, planned, round.count, result);
  return status;
}

// Each in a process of its own: threads of one process could not fork.
absl::Status RunSideBySide(const CampaignOptions& options, World& world, const std::vector<PlannedRound>& wave,
                           CampaignResult& result) {
  std::vector<ChildProcess> processes;
  for (size_t place = 0; place < wave.size(); ++place) {
    processes.push_back(ChildProcess::Run([&, place](Board& board) {
      Round round = Begin(options, world, wave[place], place);
      const absl::Status status = wave[place].assault->run(round);
      Write(round.count, board);
      return status;
    }));
  }
  absl::Status first;
  for (size_t place = 0; place < wave.size(); ++place) {
    first.Update(Named(wave[place], processes[place].Await(kRoundTimeout)));
    Enter(options, wave[place], Read(processes[place].board()), result);
  }
  return first;
}

absl::Status RunRounds(const CampaignOptions& options, World& world, CampaignResult& result) {
  const absl::Time latest = absl::Now() + options.time;
  const int64_t end = options.first_round + options.rounds;
  Tell(options, absl::StrCat("seed ", options.seed));
  for (int64_t next = options.first_round; next < end && absl::Now() < latest;) {
    ASSIGN_OR_RETURN(const std::vector<PlannedRound> wave, Plan(options, next, end));
    next += static_cast<int64_t>(wave.size());
    absl::Status status =
        wave.size() == 1 ? RunAlone(options, world, wave[0], result) : RunSideBySide(options, world, wave, result);
    // That the daemon is gone says more than the error that a client was answered.
    if (const absl::Status alive = world.CheckAlive(); !alive.ok()) status = alive;
    std::vector<std::string> models;
    for (size_t place = 0; place < wave.size(); ++place) models.push_back(ModelOf(place));
    if (status.ok()) status = world.Check(models, result.before);
    if (!status.ok()) return wave.size() == 1 ? Named(wave[0], status) : status;
  }
  return absl::OkStatus();
}

}  // namespace

std::vector<std::string> AssaultNames() {
  std::vector<std::string> names;
  for (const Assault& assault : Assaults()) names.emplace_back(assault.name);
  return names;
}

void Tell(const CampaignOptions& options, const std::string& what) {
  if (!options.tells) return;
  absl::FPrintF(stderr, "%s %s\n", absl::FormatTime("%H:%M:%E3S", absl::Now(), absl::UTCTimeZone()), what);
}

void CampaignResult::Count::Add(const Count& other) {
  trainers += other.trainers;
  servers += other.servers;
  daemons += other.daemons;
  errors += other.errors;
  finished += other.finished;
  torn += other.torn;
  longest_notice = std::max(longest_notice, other.longest_notice);
  longest_recovery = std::max(longest_recovery, other.longest_recovery);
}

bool NeedsOneRank(const std::string& assault) { return FindAssault(assault)->ranks == 1; }

CampaignResult RunCampaign(const CampaignOptions& options) {
  CampaignResult result;
  result.seed = options.seed;
  result.nodes = options.nodes;
  result.node_devices = options.node_devices;
  const absl::Time begin = absl::Now();
  result.status = [&]() -> absl::Status {
    ASSIGN_OR_RETURN(World world, World::Start(options));
    result.state_hash = world.state_hash();
    ASSIGN_OR_RETURN(result.before, world.Count());
    const absl::Status status = RunRounds(options, world, result);
    if (!world.CheckAlive().ok()) return status;
    ASSIGN_OR_RETURN(result.after, world.Count());
    return status;
  }();
  result.time = absl::Now() - begin;
  return result;
}

std::string CampaignResult::Table() const {
  std::string text =
      absl::StrFormat("%-14s %8s %8s %8s %8s %8s\n", "ASSAULT", "ROUNDS", "KILLS", "ERRORS", "FINISHED", "TORN");
  for (const auto& [name, count] : counts) {
    absl::StrAppendFormat(&text, "%-14s %8d %8d %8d %8d %8d\n", name, count.rounds, count.kills(), count.errors,
                          count.finished, count.torn);
  }
  for (const auto& [name, count] : counts) {
    if (count.longest_recovery == absl::ZeroDuration()) continue;
    absl::StrAppendFormat(&text,
                          "%s: worlds of %d x %d; %d trainers, %d servers, %d daemons; at most %s until all were told, "
                          "%s until the next commit\n",
                          name, nodes, node_devices, count.trainers, count.servers, count.daemons,
                          absl::FormatDuration(count.longest_notice), absl::FormatDuration(count.longest_recovery));
  }
  absl::StrAppendFormat(
      &text,
      "seed %d, %d rounds in %d s; threads %d (%d of gRPC's pools) before, %d (%d) after; descriptors %d "
      "before, %d after",
      seed, rounds, absl::ToInt64Seconds(time), before.threads, before.pool_threads, after.threads, after.pool_threads,
      before.descriptors, after.descriptors);
  if (before.gpu_mebibytes > 0) {
    absl::StrAppendFormat(&text, "; MiB of GPUs %d before, %d after", before.gpu_mebibytes, after.gpu_mebibytes);
  }
  return absl::StrCat(text, "\n", status.ok() ? "everything held" : status.ToString(), "\n");
}

std::string CampaignResult::Json() const {
  nlohmann::ordered_json json = {{"seed", seed},
                                 {"rounds", rounds},
                                 {"seconds", std::round(absl::ToDoubleSeconds(time))},
                                 {"held", status.ok()},
                                 {"status", status.ToString()},
                                 {"threads", {{"before", before.threads}, {"after", after.threads}}},
                                 {"poolThreads", {{"before", before.pool_threads}, {"after", after.pool_threads}}},
                                 {"descriptors", {{"before", before.descriptors}, {"after", after.descriptors}}},
                                 {"gpuMebibytes", {{"before", before.gpu_mebibytes}, {"after", after.gpu_mebibytes}}},
                                 {"stateHash", state_hash},
                                 {"assaults", nlohmann::ordered_json::object()}};
  for (const auto& [name, count] : counts) {
    json["assaults"][name] = {
        {"rounds", count.rounds},
        {"kills", count.kills()},
        {"killed", {{"trainers", count.trainers}, {"servers", count.servers}, {"daemons", count.daemons}}},
        {"errors", count.errors},
        {"finished", count.finished},
        {"tornBands", count.torn}};
    if (count.longest_recovery == absl::ZeroDuration()) continue;
    json["assaults"][name]["nodes"] = nodes;
    json["assaults"][name]["nodeDevices"] = node_devices;
    json["assaults"][name]["longestNoticeSeconds"] = absl::ToDoubleSeconds(count.longest_notice);
    json["assaults"][name]["longestRecoverySeconds"] = absl::ToDoubleSeconds(count.longest_recovery);
  }
  return json.dump(2) + "\n";
}

}  // namespace paramshard::test
