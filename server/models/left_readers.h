// Readers that still map memory that nobody publishes any more: of deleted models, and of earlier servers.
#ifndef PARAMSHARD_SERVER_MODELS_LEFT_READERS_H_
#define PARAMSHARD_SERVER_MODELS_LEFT_READERS_H_

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "server/base/kept_store.h"
#include "server/base/steady_cond_var.h"
#include "server/base/steady_time.h"
#include "server/models/kept_readers.h"
#include "server/observe/log_throttle.h"
#include "server/observe/metric_registry.h"
#include "server/state/publication.h"

namespace paramshard::server {

struct LeftReader {
  std::string model;
  ReaderReport report;
  bool is_of_earlier_server = false;  // else of a deleted model
};

// Planes take memory until the last reader has unmapped them, which it does with its next call, at its end, or never: of
// a deleted model before it closes its companion connection, of a server that has ended at any time. A reader that has
// not let go after the grace is named in the log, so that a person knows where the memory is, or is ended.
//
// A reader is ended only if it runs as the daemon's user, and has not been a trainer since it reads. Its process is
// known by the pidfd of its companion connection, which the keeper keeps for the next server, so that no other process
// of its number is hit. Thread-safe. A thread runs from the first reader on.
class LeftReaders {
 public:
  static constexpr absl::Duration kGrace = absl::Seconds(5);

  struct Options {
    std::shared_ptr<ThrottledLog> log;
    KeptStore* kept = nullptr;  // outlives this; null: there is no next server
    bool ends = false;          // else they are named only
    // Returns true if the process is attached to a model.
    std::function<bool(pid_t pid)> is_trainer = [](pid_t) { return false; };
    MetricRegistry* metrics = &MetricRegistry::Unread();  // outlives this
    absl::Duration grace = kGrace;
  };

  explicit LeftReaders(Options options) : options_(std::move(options)) {}
  ~LeftReaders();

  // Takes the readers of earlier servers out of what is kept, before any other call, and watches them.
  void TakeOver(KeptStore::Descriptors& all);
  // Remembers a reader that is opened: a moment later the keeper knows it, and until it has left.
  void Remember(const std::string& model, const Publication::ReaderInfo& info,
                const std::shared_ptr<const Publication::Reader>& reader);
  // Notes that a process has attached to a model: it is not ended.
  void NoteTrainer(pid_t pid);
  // Watches the readers of a model whose publication has ended.
  void Watch(const std::string& model, const std::shared_ptr<Publication>& publication);
  // Returns those that have not let go yet, in the order in which they were left.
  std::vector<LeftReader> List() const;
  // For tests: waits until all graces are over, and all readers are remembered.
  void AwaitIdle();

 private:
  // Readers that were left at one time: of a deleted model, or those that are kept.
  struct Group {
    std::string model = {};
    std::weak_ptr<Publication> publication = {};
    std::vector<KeptReader> kept = {};
    SteadyTime deadline;
    bool is_over = false;  // the grace

    std::vector<LeftReader> Readers() const;
  };
  struct Remembered {
    int64_t number = 0;
    std::string model;
    ReaderReport report;
    std::weak_ptr<const Publication::Reader> reader;
    bool has_trained = false;
  };
  // Work for the thread.
  struct Work {
    std::vector<Remembered> opened = {};
    std::vector<pid_t> trainers = {};
    std::vector<int64_t> closed = {};  // readers of earlier servers that have let go
    bool ends = false;
  };

  void StartThread() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The thread.
  void Run();
  Work AwaitWork();
  // Returns true if there is work, which it takes, or a grace is over.
  bool TakeWork(Work& work) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Keep(Remembered reader);
  void KeepTrainer(pid_t pid);
  // Lets the keeper forget these, and the remembered ones that have left.
  void DropClosed(std::vector<int64_t> numbers);
  // Returns the readers whose grace has ended since the last call, and that still have not let go.
  std::vector<LeftReader> TakeLate();
  // Ends a reader. Returns why it has not; empty: it has.
  std::string End(const ReaderReport& report) const;
  // Returns why a reader must not be ended; empty: it may.
  std::string WhyNotEnded(const ReaderReport& report) const;
  void Name(const LeftReader& reader, const std::string& why_not) const;

  const Options options_;
  // Used by the thread alone.
  std::list<Remembered> remembered_;

  mutable absl::Mutex mu_;
  SteadyCondVar changed_;
  std::list<Group> groups_ ABSL_GUARDED_BY(mu_);  // by deadline
  Work work_ ABSL_GUARDED_BY(mu_);                // that is not taken yet
  int64_t last_number_ ABSL_GUARDED_BY(mu_) = 0;  // of a reader
  bool sweeps_ ABSL_GUARDED_BY(mu_) = false;      // there are readers that the keeper knows
  bool is_busy_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_ ABSL_GUARDED_BY(mu_);
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_MODELS_LEFT_READERS_H_
