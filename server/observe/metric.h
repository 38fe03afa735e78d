// Table of a daemon's metrics: names, help, and the values of labels.
#ifndef PARAMSHARD_SERVER_OBSERVE_METRIC_H_
#define PARAMSHARD_SERVER_OBSERVE_METRIC_H_

#include <array>
#include <cstddef>
#include <cstdint>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "kernels/base/check.h"

namespace paramshard::server {

// Metrics in the order of the page.
enum class Metric : uint8_t {
  kBuildInfo,
  kWorldNodes,
  kCutLinks,
  kLeftOutNodes,
  kHeldBackNodes,
  kCoordinatorReached,
  kDeviceHealthy,
  kMemoryBytes,
  kEpochsStarted,
  kEpochsEnded,
  kEpochAbsentNodes,
  kCommits,
  kCommitNumber,
  kLastCommitTimestamp,
  kCommitPhase,
  kGather,
  kPush,
  kMovedBytes,
  kRankWait,
  kSessions,
  kReaders,
  kReaderWait,
  kReadersEnded,
  kMirrorImage,
  kMirrorTransfers,
  kMirrorSentBytes,
  kMirrorVersion,
  kMirrorReceivedBytes,
  kMirrorActiveTimestamp,
  kSave,
  kSaves,
  kLastSaveTimestamp,
  kHeal,
  kPeerRoundTrip,
  kServerRestarts,
  kTlsNotAfter,
  kInsecureAddresses,
  kRpcFailures,
  kLogEvents,
  kProcessCpu,
  kProcessResidentMemory,
  kProcessVirtualMemory,
  kProcessOpenFds,
  kProcessMaxFds,
  kProcessStartTime,
};

// Values of labels, in the order of a metric's cells.
enum class CommitResult : uint8_t { kApplied, kSkipped, kGivenUp, kInDoubt, kFailed };
enum class CommitPhase : uint8_t { kSum, kVote, kApply, kShareAmaxes, kEncode, kAnswer };
enum class MovedBy : uint8_t { kMemcpy, kCopyEngine, kGloo, kNccl };
enum class MoveDirection : uint8_t { kSent, kReceived };
enum class MirrorTransfer : uint8_t { kSent, kMissed, kTimedOut, kGone, kFailed };
enum class MirrorPhase : uint8_t { kWait, kTransfer, kActivate };
enum class SaveResult : uint8_t { kPublished, kAlreadySaved, kAbandoned, kUnknown, kSkipped };

inline constexpr absl::string_view kCommitResults[] = {"applied", "skipped", "given_up", "in_doubt", "failed"};
inline constexpr absl::string_view kCommitPhases[] = {"sum", "vote", "apply", "share_amaxes", "encode", "answer"};
inline constexpr absl::string_view kEngines[] = {"memcpy", "copy_engine", "gloo", "nccl"};
inline constexpr absl::string_view kDirections[] = {"sent", "received"};
inline constexpr absl::string_view kMirrorTransfers[] = {"sent", "missed", "timed_out", "gone", "failed"};
inline constexpr absl::string_view kMirrorPhases[] = {"wait", "transfer", "activate"};
inline constexpr absl::string_view kSaveResults[] = {"published", "already_saved", "abandoned", "unknown", "skipped"};
// By absl::StatusCode. The first stands for OK.
inline constexpr absl::string_view kEpochEnds[] = {
    "detached",  "CANCELLED",      "UNKNOWN",           "INVALID_ARGUMENT",   "DEADLINE_EXCEEDED",
    "NOT_FOUND", "ALREADY_EXISTS", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION",
    "ABORTED",   "OUT_OF_RANGE",   "UNIMPLEMENTED",     "INTERNAL",           "UNAVAILABLE",
    "DATA_LOSS", "UNAUTHENTICATED"};
inline constexpr int kStatusCodes = 17;
// By LogLevel.
inline constexpr absl::string_view kLogLevels[] = {"debug", "info", "warning", "error"};

enum class MetricType : uint8_t { kCounter, kGauge, kHistogram };

struct MetricLabel {
  absl::string_view name = {};
  absl::Span<const absl::string_view> values = {};  // empty: known when the page is made
};

// Source of a value: the registry of observations, or a query when the page is made.
enum class MetricSource : uint8_t { kObserved, kAsked };

struct MetricTraits {
  Metric metric;
  absl::string_view name;
  MetricType type;
  MetricSource source;
  absl::string_view unit;  // "seconds", "bytes", or empty: a number
  absl::string_view help;
  std::array<MetricLabel, 2> labels = {};              // unused ones have no name
  absl::Span<const double> upper_bounds_seconds = {};  // of a histogram's buckets; the last bucket is unbounded
};

// Bucket bounds of the parts of a step, and of saves.
inline constexpr double kStepBounds[] = {0.00001, 0.00003, 0.0001, 0.0003, 0.001, 0.003, 0.01,
                                         0.03,    0.1,     0.3,    1,      3,     10,    30};
inline constexpr double kSaveBounds[] = {0.1, 0.3, 1, 3, 10, 30, 60, 120, 300, 600, 1800};

// Largest number of ranks with a cell of their own; several times the devices of a host.
inline constexpr int kMostRankCells = 64;
inline constexpr absl::string_view kRankCells[kMostRankCells] = {};  // named when the page is made

inline constexpr MetricTraits kMetrics[] = {
    {Metric::kBuildInfo,
     "paramshard_build_info",
     MetricType::kGauge,
     MetricSource::kAsked,
     "",
     "Always 1; the labels are the daemon's version and build type.",
     {{{"version"}, {"build_type"}}}},
    {Metric::kWorldNodes,
     "paramshard_world_nodes",
     MetricType::kGauge,
     MetricSource::kAsked,
     "",
     "Daemons of the world that are present (connected to node 0) and absent. Node 0 only.",
     {{{"state"}}}},
    {Metric::kCutLinks, "paramshard_cut_links", MetricType::kGauge, MetricSource::kAsked, "",
     "Pairs of daemons whose data addresses cannot reach each other. Node 0 only."},
    {Metric::kLeftOutNodes, "paramshard_left_out_nodes", MetricType::kGauge, MetricSource::kAsked, "",
     "Connected daemons excluded from epochs because of cut links. Node 0 only."},
    {Metric::kHeldBackNodes, "paramshard_held_back_nodes", MetricType::kGauge, MetricSource::kAsked, "",
     "Connected daemons excluded from epochs for a while after repeated failures. Node 0 only."},
    {Metric::kCoordinatorReached, "paramshard_coordinator_reached", MetricType::kGauge, MetricSource::kAsked, "",
     "1 while the daemon is connected to node 0, which decides commits, and always at node 0; otherwise 0."},
    {Metric::kDeviceHealthy,
     "paramshard_device_healthy",
     MetricType::kGauge,
     MetricSource::kAsked,
     "",
     "1 while the device works; 0 for good once it is broken.",
     {{{"device"}}}},
    {Metric::kMemoryBytes,
     "paramshard_memory_bytes",
     MetricType::kGauge,
     MetricSource::kAsked,
     "bytes",
     "Memory of all models by device (host: shared by all devices) and class.",
     {{{"device"}, {"class"}}}},
    {Metric::kEpochsStarted, "paramshard_epochs_started_total", MetricType::kCounter, MetricSource::kObserved, "",
     "Epochs of models started on this daemon."},
    {Metric::kEpochsEnded,
     "paramshard_epochs_ended_total",
     MetricType::kCounter,
     MetricSource::kObserved,
     "",
     "Epochs ended, by reason: detached, or the code of the error.",
     {{{"reason", kEpochEnds}}}},
    {Metric::kEpochAbsentNodes,
     "paramshard_epoch_absent_nodes",
     MetricType::kGauge,
     MetricSource::kAsked,
     "",
     "Daemons of the world that are not in the model's running epoch.",
     {{{"model"}}}},
    {Metric::kCommits,
     "paramshard_commits_total",
     MetricType::kCounter,
     MetricSource::kObserved,
     "",
     "Commits by result.",
     {{{"result", kCommitResults}}}},
    {Metric::kCommitNumber,
     "paramshard_commit_number",
     MetricType::kGauge,
     MetricSource::kAsked,
     "",
     "Number of the model's last commit.",
     {{{"model"}}}},
    {Metric::kLastCommitTimestamp,
     "paramshard_last_commit_timestamp_seconds",
     MetricType::kGauge,
     MetricSource::kAsked,
     "seconds",
     "Unix time at which this server answered the model's last commit.",
     {{{"model"}}}},
    {Metric::kCommitPhase,
     "paramshard_commit_phase_seconds",
     MetricType::kHistogram,
     MetricSource::kObserved,
     "seconds",
     "Duration of phases of commits: sum, apply and encode for each rank, others for the daemon.",
     {{{"phase", kCommitPhases}}},
     kStepBounds},
    {Metric::kGather,
     "paramshard_gather_seconds",
     MetricType::kHistogram,
     MetricSource::kObserved,
     "seconds",
     "Duration of gathers of each rank, from the moment they can begin to the last byte.",
     {},
     kStepBounds},
    {Metric::kPush,
     "paramshard_push_seconds",
     MetricType::kHistogram,
     MetricSource::kObserved,
     "seconds",
     "Duration of pushes of each rank, from the moment they can begin until the slot is read.",
     {},
     kStepBounds},
    {Metric::kMovedBytes,
     "paramshard_moved_bytes_total",
     MetricType::kCounter,
     MetricSource::kObserved,
     "bytes",
     "Bytes of planes and gradients that engines of this daemon moved to or from other ranks.",
     {{{"engine", kEngines}, {"direction", kDirections}}}},
    {Metric::kRankWait,
     "paramshard_rank_wait_seconds_total",
     MetricType::kCounter,
     MetricSource::kObserved,
     "seconds",
     "Time during which the other ranks of the daemon waited for this rank alone.",
     {{{"rank", kRankCells}}}},
    {Metric::kSessions,
     "paramshard_sessions",
     MetricType::kGauge,
     MetricSource::kAsked,
     "",
     "Trainers attached to the model on this daemon.",
     {{{"model"}}}},
    {Metric::kReaders,
     "paramshard_readers",
     MetricType::kGauge,
     MetricSource::kAsked,
     "",
     "Processes that read the model's weights from this daemon.",
     {{{"model"}}}},
    {Metric::kReaderWait,
     "paramshard_reader_wait_seconds",
     MetricType::kHistogram,
     MetricSource::kObserved,
     "seconds",
     "Time for which a step, or another change of weights, waited for readers.",
     {},
     kStepBounds},
    {Metric::kReadersEnded, "paramshard_readers_ended_total", MetricType::kCounter, MetricSource::kObserved, "",
     "Readers that --end-stuck-readers has ended."},
    {Metric::kMirrorImage,
     "paramshard_mirror_image_seconds",
     MetricType::kHistogram,
     MetricSource::kObserved,
     "seconds",
     "Time to copy this daemon's planes for mirrors, which a step waits for as for a reader.",
     {},
     kStepBounds},
    {Metric::kMirrorTransfers,
     "paramshard_mirror_transfers_total",
     MetricType::kCounter,
     MetricSource::kObserved,
     "",
     "Transfers of planes to mirrors by result.",
     {{{"result", kMirrorTransfers}}}},
    {Metric::kMirrorSentBytes, "paramshard_mirror_sent_bytes_total", MetricType::kCounter, MetricSource::kObserved,
     "bytes", "Bytes of planes sent to mirrors."},
    {Metric::kMirrorVersion,
     "paramshard_mirror_version_seconds",
     MetricType::kHistogram,
     MetricSource::kObserved,
     "seconds",
     "Time from a version's naming until readers beside this mirror may read it, by phase.",
     {{{"phase", kMirrorPhases}}},
     kStepBounds},
    {Metric::kMirrorReceivedBytes, "paramshard_mirror_received_bytes_total", MetricType::kCounter,
     MetricSource::kObserved, "bytes", "Bytes of planes that this mirror received."},
    {Metric::kMirrorActiveTimestamp,
     "paramshard_mirror_active_timestamp_seconds",
     MetricType::kGauge,
     MetricSource::kAsked,
     "seconds",
     "Unix time at which this mirror's active version of the model became active.",
     {{{"model"}}}},
    {Metric::kSave,
     "paramshard_save_seconds",
     MetricType::kHistogram,
     MetricSource::kObserved,
     "seconds",
     "Duration of published saves.",
     {},
     kSaveBounds},
    {Metric::kSaves,
     "paramshard_saves_total",
     MetricType::kCounter,
     MetricSource::kObserved,
     "",
     "Saves by result.",
     {{{"result", kSaveResults}}}},
    {Metric::kLastSaveTimestamp,
     "paramshard_last_save_timestamp_seconds",
     MetricType::kGauge,
     MetricSource::kAsked,
     "seconds",
     "Unix time at which this server's last save of the model was published.",
     {{{"model"}}}},
    {Metric::kHeal,
     "paramshard_heal_seconds",
     MetricType::kHistogram,
     MetricSource::kObserved,
     "seconds",
     "Time to copy a model's state from a replica in another daemon.",
     {},
     kSaveBounds},
    {Metric::kPeerRoundTrip,
     "paramshard_peer_round_trip_seconds",
     MetricType::kHistogram,
     MetricSource::kObserved,
     "seconds",
     "Round trip of votes on commits to node 0, without the time that node 0 held them. Not at node 0.",
     {},
     kStepBounds},
    {Metric::kServerRestarts, "paramshard_server_restarts_total", MetricType::kCounter, MetricSource::kAsked, "",
     "Servers that the daemon's keeper started after the first one."},
    {Metric::kTlsNotAfter, "paramshard_tls_not_after_timestamp_seconds", MetricType::kGauge, MetricSource::kAsked,
     "seconds", "Unix time at which the daemon's certificate expires, from its present file."},
    {Metric::kInsecureAddresses, "paramshard_insecure_addresses", MetricType::kGauge, MetricSource::kAsked, "",
     "Addresses off loopback that are served or called without encryption."},
    {Metric::kRpcFailures,
     "paramshard_rpc_failures_total",
     MetricType::kCounter,
     MetricSource::kObserved,
     "",
     "Calls of trainers and tools that ended with an error.",
     {{{"code", absl::Span<const absl::string_view>(kEpochEnds + 1, kStatusCodes - 1)}}}},
    {Metric::kLogEvents,
     "paramshard_log_events_total",
     MetricType::kCounter,
     MetricSource::kAsked,
     "",
     "Events in this server's log, including dropped lines.",
     {{{"level", kLogLevels}}}},
    {Metric::kProcessCpu, "process_cpu_seconds_total", MetricType::kCounter, MetricSource::kAsked, "seconds",
     "User and system CPU time of the process."},
    {Metric::kProcessResidentMemory, "process_resident_memory_bytes", MetricType::kGauge, MetricSource::kAsked, "bytes",
     "Resident memory of the process."},
    {Metric::kProcessVirtualMemory, "process_virtual_memory_bytes", MetricType::kGauge, MetricSource::kAsked, "bytes",
     "Virtual memory of the process."},
    {Metric::kProcessOpenFds, "process_open_fds", MetricType::kGauge, MetricSource::kAsked, "",
     "Open file descriptors."},
    {Metric::kProcessMaxFds, "process_max_fds", MetricType::kGauge, MetricSource::kAsked, "",
     "Limit of open file descriptors."},
    {Metric::kProcessStartTime, "process_start_time_seconds", MetricType::kGauge, MetricSource::kAsked, "seconds",
     "Unix time at which the process started."},
};
inline constexpr int kMetricCount = sizeof(kMetrics) / sizeof(kMetrics[0]);

constexpr bool MetricsAreInOrder() {
  for (int i = 0; i < kMetricCount; ++i) {
    if (static_cast<int>(kMetrics[i].metric) != i) return false;
  }
  return static_cast<int>(Metric::kProcessStartTime) == kMetricCount - 1;
}
static_assert(MetricsAreInOrder(), "kMetrics has a row for each Metric, in their order");

constexpr const MetricTraits& TraitsOf(Metric metric) { return kMetrics[static_cast<int>(metric)]; }

// Returns how many series an observed metric has.
constexpr int SeriesOf(const MetricTraits& traits) {
  int series = 1;
  for (const MetricLabel& label : traits.labels) {
    if (!label.name.empty()) series *= static_cast<int>(label.values.size());
  }
  return series;
}

// Returns the number of cells of one series: a histogram has one for each bucket, and one for the sum.
constexpr int CellsOf(const MetricTraits& traits) {
  return traits.type == MetricType::kHistogram ? static_cast<int>(traits.upper_bounds_seconds.size()) + 2 : 1;
}

// Returns where the cells of each metric begin, then their total; queried metrics have none.
constexpr std::array<int, kMetricCount + 1> CountMetricCells() {
  std::array<int, kMetricCount + 1> cells{};
  for (int i = 0; i < kMetricCount; ++i) {
    const bool observed = kMetrics[i].source == MetricSource::kObserved;
    cells[i + 1] = cells[i] + (observed ? SeriesOf(kMetrics[i]) * CellsOf(kMetrics[i]) : 0);
  }
  return cells;
}
inline constexpr std::array<int, kMetricCount + 1> kMetricCells = CountMetricCells();

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_OBSERVE_METRIC_H_
