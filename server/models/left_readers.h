// Readers that still map the memory of deleted models.
#ifndef PARAMSHARD_SERVER_MODELS_LEFT_READERS_H_
#define PARAMSHARD_SERVER_MODELS_LEFT_READERS_H_

#include <list>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "server/base/steady_cond_var.h"
#include "server/base/steady_time.h"
#include "server/observe/log_throttle.h"
#include "server/state/publication.h"

namespace paramshard::server {

struct LeftReader {
  std::string model;
  ReaderReport report;
};

// A deleted model's planes take memory until the last reader has unmapped them, which it does before it closes its
// companion connection: with its next call, at its end, or never. A reader that has not let go after the grace is named
// in the log, so that a person knows where the memory is. Thread-safe. A thread runs while there are graces.
class LeftReaders {
 public:
  static constexpr absl::Duration kGrace = absl::Seconds(5);

  explicit LeftReaders(std::shared_ptr<ThrottledLog> log, absl::Duration grace = kGrace)
      : log_(std::move(log)), grace_(grace) {}
  ~LeftReaders();

  // Watches the readers of a model whose publication has ended.
  void Watch(const std::string& model, const std::shared_ptr<Publication>& publication);
  // Returns those that have not let go yet, in the order of the deletions.
  std::vector<LeftReader> List() const;
  // For tests: waits until all graces are over.
  void AwaitGraces();

 private:
  struct Deleted {
    std::string model;
    std::weak_ptr<Publication> publication;
    SteadyTime deadline;
    bool is_over = false;  // the grace

    std::vector<LeftReader> Readers() const;
  };

  void Run();
  void Log(const std::vector<LeftReader>& readers) const;

  // Constant after construction.
  const std::shared_ptr<ThrottledLog> log_;
  const absl::Duration grace_;

  mutable absl::Mutex mu_;
  SteadyCondVar changed_;
  std::list<Deleted> deleted_ ABSL_GUARDED_BY(mu_);  // by deadline
  std::thread thread_ ABSL_GUARDED_BY(mu_);
  bool runs_ ABSL_GUARDED_BY(mu_) = false;
  bool ends_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_MODELS_LEFT_READERS_H_
