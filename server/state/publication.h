// Publication of a model's planes to readers: which version stands, and who reads it.
#ifndef PARAMSHARD_SERVER_STATE_PUBLICATION_H_
#define PARAMSHARD_SERVER_STATE_PUBLICATION_H_

#include <sys/types.h>

#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/shared_memory/file_descriptor.h"
#include "common/shared_memory/publication_page.h"
#include "server/base/clock.h"
#include "server/base/steady_cond_var.h"
#include "server/device/memory.h"
#include "server/observe/metric_registry.h"
#include "server/observe/trace.h"
#include "server/state/publication_count.h"

namespace paramshard::server {

// A reader as an operator sees it.
struct ReaderReport {
  int64_t number = 0;  // of this model, from 1
  std::string name;
  pid_t pid = 0;
  uid_t uid = 0;
  int64_t mapped_bytes = 0;  // planes
  bool is_reading = false;
  int64_t snapshots = 0;                                          // released by the reader
  int64_t ended_snapshots = 0;                                    // whose time was over
  absl::Duration held;                                            // time that writers have waited for the reader
  std::shared_ptr<const wire::FileDescriptor> process = nullptr;  // as ReaderInfo
};

// The one gate of all writers of a model's planes: commits, encoding at both ends of an epoch, imports, restores, healing.
// It says "writing" in the model's publication page before the first byte changes; Publish says "valid" afterwards, with
// the version's numbers.
//
//   const Publication::Writing writing(publication, Publication::Hold::kBounded);
//   ... planes change ...
//
// Writings may overlap, such as those of several ranks: planes are valid when none is left. A writer waits for readers'
// leases at most `reader_hold`, and all waits together take at most a hundredth of the time: what is not used up is kept
// for later, up to one hold, and a wait that ends late is taken from later ones. A reader whose lease was ended is not
// waited for until it has released 16 leases in time. Thread-safe.
class Publication : public std::enable_shared_from_this<Publication> {
 public:
  // Largest number of readers of a model.
  static constexpr int kMostReaders = 256;
  static constexpr int kReleasesAfterEnd = 16;
  static constexpr double kMostHeld = 0.01;  // of the time

  struct Options {
    absl::Duration reader_hold = absl::Milliseconds(250);
    const Clock* clock = &Clock::Steady();                // outlives the publication
    MetricRegistry* metrics = &MetricRegistry::Unread();  // likewise
    std::shared_ptr<PublicationCount> count = {};         // null: nobody waits for several publications
  };
  // RESOURCE_EXHAUSTED
  static absl::StatusOr<std::shared_ptr<Publication>> Create(Options options);

  enum class Hold : uint8_t {
    kBounded,  // waits for open leases
    kNone,     // ends them at once
  };
  // A span in which planes change.
  class Writing {
   public:
    Writing(Publication& publication, Hold hold) : publication_(publication) { publication_.BeginWriting(hold); }
    ~Writing() { publication_.EndWriting(); }
    Writing(const Writing&) = delete;
    Writing& operator=(const Writing&) = delete;

   private:
    Publication& publication_;
  };

  // Begins the writing of a commit, unless it has begun; each rank calls it before its step. EndCommit ends it, once for
  // all ranks, and is idempotent.
  void BeginCommit();
  void EndCommit();

  // Says that planes are whole, with the version that `present` returns; it is called under this object's lock. An error
  // is what readers are told while they wait. Nothing happens while planes are written, or if they are valid already.
  void Publish(absl::FunctionRef<absl::StatusOr<wire::PublishedVersion>()> present);
  // Returns the generation that will be published next.
  uint64_t next_generation() const;
  // Ends the publication: the model is gone. Readers are told why.
  void End(absl::string_view why);

  // Returns true if planes may change now. Takes no lock.
  bool is_writing() const;
  // Returns the version that was published last; nothing before the first one, and once the publication has ended.
  std::optional<wire::PublishedVersion> last_published() const;

  // --- Readers

  struct ReaderInfo {
    std::string name;
    pid_t pid = 0;
    uid_t uid = 0;
    int64_t mapped_bytes = 0;  // planes that it is given
    // Its pidfd; null: it must not be ended.
    std::shared_ptr<const wire::FileDescriptor> process = nullptr;
  };
  // A reader, which leaves with this object. The publication's page lives as long.
  class Reader {
   public:
    Reader(std::shared_ptr<Publication> publication, int64_t number, Memory lease_page)
        : publication_(std::move(publication)), number_(number), lease_page_(std::move(lease_page)) {}
    ~Reader() { publication_->Remove(number_); }
    Reader(const Reader&) = delete;
    Reader& operator=(const Reader&) = delete;

    const Memory& publication_page() const { return publication_->page_; }
    const Memory& lease_page() const { return lease_page_; }

   private:
    const std::shared_ptr<Publication> publication_;
    const int64_t number_;
    const Memory lease_page_;
  };
  // RESOURCE_EXHAUSTED; UNAVAILABLE the publication has ended.
  absl::StatusOr<std::unique_ptr<Reader>> AddReader(ReaderInfo info);
  std::vector<ReaderReport> readers() const;
  // Returns the last waits for readers, the oldest first, as a trace shows them.
  std::vector<ReaderWait> waits() const;

  // A lease of a reader in the daemon itself, which leaves with it.
  struct Lease {
    std::unique_ptr<Reader> reader;
    uint64_t generation = 0;
    wire::PublishedVersion version = {};
  };
  // Takes a lease on one version in the moment in which it is published, so that no writer comes between. Only history
  // and commit number of `wanted` count. ABORTED another history, or a later commit, is published; DEADLINE_EXCEEDED;
  // CANCELLED, which is asked now and then; errors of AddReader.
  absl::StatusOr<Lease> TakeAt(ReaderInfo info, const wire::PublishedVersion& wanted, SteadyTime deadline,
                               absl::FunctionRef<bool()> is_cancelled);
  // Returns true while a lease on the generation holds.
  bool IsHeld(uint64_t generation) const;

 private:
  struct Seat {
    int64_t number = 0;
    ReaderInfo info;
    wire::LeasePage lease;
    int64_t ended = 0;
    absl::Duration held;
    uint64_t trusted_from = 0;                          // number of releases, of which the late ones do not count
    std::optional<wire::PublishedVersion> wanted = {};  // by TakeAt
    uint64_t granted = 0;                               // the generation of that version; 0: not yet
    wire::PublishedVersion granted_version = {};
  };

  Publication(Options options, Memory page);
  void BeginWriting(Hold hold);
  void EndWriting();
  void Enter(Hold hold) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Waits for leases on the present generation.
  void AwaitReleases() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Notes a wait that begins; one at a time is under way.
  void BeginWait(absl::Span<Seat* const> holders) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Returns the readers that hold such a lease and are waited for.
  std::vector<Seat*> Holders() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Notes the readers whose leases on the present generation are released late, if at all.
  void NoteLateReaders() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Returns how long a writer may wait now.
  absl::Duration Allowance(SteadyTime now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void SetGate(wire::Gate::State state) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Takes leases on the version that is published for the seats that want it.
  void Grant() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Adds the last seat.
  absl::StatusOr<std::unique_ptr<Reader>> Seated(ReaderInfo info) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Remove(int64_t number);

  // Constant after construction.
  const Options options_;
  const Memory page_;
  const wire::PublicationPage publication_;

  mutable absl::Mutex mu_;
  SteadyCondVar changed_;
  wire::Gate gate_ ABSL_GUARDED_BY(mu_);
  int writers_ ABSL_GUARDED_BY(mu_) = 0;
  bool commits_ ABSL_GUARDED_BY(mu_) = false;
  std::list<Seat> seats_ ABSL_GUARDED_BY(mu_);
  int64_t last_number_ ABSL_GUARDED_BY(mu_) = 0;
  absl::Duration allowance_ ABSL_GUARDED_BY(mu_);
  SteadyTime allowed_at_ ABSL_GUARDED_BY(mu_);
  std::deque<ReaderWait> waits_ ABSL_GUARDED_BY(mu_);
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_STATE_PUBLICATION_H_
