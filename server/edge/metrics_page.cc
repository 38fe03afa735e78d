#include "server/edge/metrics_page.h"

#include <algorithm>
#include <map>
#include <memory>
#include <utility>

#include "absl/time/clock.h"
#include "common/rpc/durations.h"
#include "common/tls/files.h"
#include "server/base/version.h"
#include "server/models/inspection.h"
#include "server/observe/log.h"
#include "server/observe/process_statistics.h"

namespace paramshard::server {
namespace {

double UnixSeconds(absl::Time time) { return absl::ToDoubleSeconds(time - absl::UnixEpoch()); }

// Values by labels.
using Values = std::map<std::vector<std::string>, double>;

// Keeps the largest value of a label.
void Raise(Values& values, const std::string& label, double value) {
  const auto [entry, added] = values.try_emplace({label}, value);
  if (!added) entry->second = std::max(entry->second, value);
}

void AddAll(Metric metric, const Values& values, std::vector<MetricSample>& samples) {
  for (const auto& [labels, value] : values) samples.push_back({metric, labels, value});
}

}  // namespace

std::string MetricsPage::Text() {
  Samples samples = ProcessSamples();
  AddDaemon(samples);
  AddModels(samples);
  if (options_.mirror != nullptr) AddMirror(samples);
  const World& world = options_.store->world();
  return ExpositionText(*world.metrics, {.first_rank = world.first_rank, .count = world.rank_count()},
                        std::move(samples));
}

void MetricsPage::AddDaemon(Samples& samples) const {
  const World& world = options_.store->world();
  samples.push_back({Metric::kBuildInfo, {kVersion, kBuildType}, 1});
  if (const std::optional<WorldView> view = world.cluster->ViewWorld()) {
    const size_t absent = view->absent.size(), nodes = world.cluster->nodes();
    samples.push_back({Metric::kWorldNodes, {"present"}, static_cast<double>(nodes - absent)});
    samples.push_back({Metric::kWorldNodes, {"absent"}, static_cast<double>(absent)});
    samples.push_back({Metric::kCutLinks, {}, static_cast<double>(view->cut_links.size())});
    samples.push_back({Metric::kLeftOutNodes, {}, static_cast<double>(view->left_out.size())});
    samples.push_back({Metric::kHeldBackNodes, {}, static_cast<double>(view->held_back.size())});
  }
  samples.push_back({Metric::kCoordinatorReached, {}, world.cluster->CheckCoordinator().ok() ? 1.0 : 0.0});
  for (ComputeDevice* const device : world.devices) {
    samples.push_back({Metric::kDeviceHealthy, {device->Name()}, device->health().status().ok() ? 1.0 : 0.0});
  }
  if (options_.restarts.has_value()) {
    samples.push_back({Metric::kServerRestarts, {}, static_cast<double>(*options_.restarts)});
  }
  // Reads the certificate on the disk: new connections use it.
  const auto certificate =
      options_.tls_cert.empty() ? absl::NotFoundError("") : tls::ReadCertificate(options_.tls_cert);
  if (certificate.ok()) samples.push_back({Metric::kTlsNotAfter, {}, UnixSeconds(certificate->not_after)});
  samples.push_back({Metric::kInsecureAddresses, {}, static_cast<double>(options_.insecure_addresses)});
  for (size_t level = 0; level < std::size(kLogLevels); ++level) {
    samples.push_back({Metric::kLogEvents,
                       {std::string(kLogLevels[level])},
                       static_cast<double>(LoggedEvents(static_cast<LogLevel>(level)))});
  }
}

// Adds up the sessions of models that share a label; numbers and times are the latest.
void MetricsPage::AddModels(Samples& samples) {
  Values sessions, readers, commits, commit_times, save_times, memory, absent_nodes;
  for (const std::shared_ptr<Model>& model : options_.store->List()) {
    const std::string label = LabelOf(model->spec().name);
    const ModelActivity activity = model->trainers().activity();
    sessions[{label}] += static_cast<double>(activity.trainers.size());
    readers[{label}] += static_cast<double>(model->publication().readers().size());
    const size_t nodes = options_.store->world().cluster->nodes();
    const size_t absent = activity.active_nodes.empty() ? 0 : nodes - activity.active_nodes.size();
    if (activity.running) Raise(absent_nodes, label, static_cast<double>(absent));
    Raise(commits, label, static_cast<double>(model->committed().commits.numbers().commit_number));
    if (const auto time = model->last_commit_time()) Raise(commit_times, label, UnixSeconds(*time));
    const ModelSaver* const saver = model->saver();
    const auto saved = saver == nullptr ? std::nullopt : saver->counts().last_published;
    if (saved.has_value()) Raise(save_times, label, UnixSeconds(*saved));
    for (const MemoryUse& use : CountMemory(*model)) {
      memory[{use.device.empty() ? "host" : use.device, use.memory_class}] += static_cast<double>(use.size_bytes);
    }
  }
  AddAll(Metric::kSessions, sessions, samples);
  AddAll(Metric::kReaders, readers, samples);
  AddAll(Metric::kEpochAbsentNodes, absent_nodes, samples);
  AddAll(Metric::kCommitNumber, commits, samples);
  AddAll(Metric::kLastCommitTimestamp, commit_times, samples);
  AddAll(Metric::kLastSaveTimestamp, save_times, samples);
  AddAll(Metric::kMemoryBytes, memory, samples);
}

void MetricsPage::AddMirror(Samples& samples) {
  Values times;
  for (const v1::MirrorReport& report : options_.mirror->Reports()) {
    if (!report.has_active()) continue;
    Raise(times, LabelOf(report.model()), UnixSeconds(absl::Now() - DurationFromProto(report.age())));
  }
  AddAll(Metric::kMirrorActiveTimestamp, times, samples);
}

std::string MetricsPage::LabelOf(const std::string& model) {
  absl::MutexLock lock(&mu_);
  if (named_models_.size() < kMostModels) named_models_.insert(model);
  return named_models_.contains(model) ? model : std::string(kOtherModels);
}

}  // namespace paramshard::server
