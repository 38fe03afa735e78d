// All metrics of a daemon, as text.
#ifndef PARAMSHARD_SERVER_EDGE_METRICS_PAGE_H_
#define PARAMSHARD_SERVER_EDGE_METRICS_PAGE_H_

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "server/mirrors/mirror.h"
#include "server/models/model_store.h"
#include "server/observe/exposition.h"

namespace paramshard::server {

// Metrics of the registry, and state of the daemon, which is read for each page. Clients cannot raise the number of
// labels: the first kMostModels models have their own, the others share one. Thread-safe.
class MetricsPage {
 public:
  static constexpr size_t kMostModels = 16;
  // The label of all models beyond them.
  static constexpr absl::string_view kOtherModels = "other";

  struct Options {
    const ModelStore* store = nullptr;     // outlives the page; its world's registry is the page's
    const Mirror* mirror = nullptr;        // likewise; null: the daemon is none
    std::string tls_cert = {};             // path; empty: the daemon has no certificate
    int insecure_addresses = 0;            // off loopback, in the clear
    std::optional<int64_t> restarts = {};  // number of servers before this one; unset: not known
  };
  explicit MetricsPage(Options options) : options_(std::move(options)) {}

  // Returns the page, in kExpositionContentType.
  std::string Text();

 private:
  using Samples = std::vector<MetricSample>;

  void AddDaemon(Samples& samples) const;
  void AddModels(Samples& samples);
  void AddMirror(Samples& samples);
  std::string LabelOf(const std::string& model);

  const Options options_;
  absl::Mutex mu_;
  std::set<std::string> named_models_ ABSL_GUARDED_BY(mu_);  // the first models of this server, deleted ones too
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_EDGE_METRICS_PAGE_H_
