// Readers: processes that read a model's weights while it trains, without a checkpoint and without the trainer's help.
//
//   ASSIGN_OR_RETURN(std::unique_ptr<Reader> reader, Reader::Create({.model = "my-model"}));
//   ASSIGN_OR_RETURN(Snapshot snapshot, reader->Acquire());
//   std::vector<float> values(rows * columns);
//   RETURN_IF_ERROR(snapshot.Read("layers.0.q.weight", absl::MakeSpan(values)));
//
// A snapshot has the bytes that the next forward of the trainers computes with. A step of the trainers
// waits for open snapshots, for the daemon's --reader-hold at most (250 ms); then the snapshot ends, and its next call
// returns ABORTED. So take a snapshot, copy, and release it.
#ifndef PARAMSHARD_CLIENT_READER_H_
#define PARAMSHARD_CLIENT_READER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "client/client.h"
#include "kernels/reduce/position_digest.h"

struct CUstream_st;

namespace paramshard {

namespace internal {
class ReaderSession;
class Lease;
}  // namespace internal

class Plan;
enum class BoxContent : uint8_t;  // client/plan.h has both

// A state of a model. Commit numbers count within a history, which begins with a creation, an import or a restore. Python
// calls the commit number of a snapshot its version.
struct ModelVersion {
  std::string history_id = {};  // 32 hexadecimal digits
  int64_t commit_number = 0;    // the last answered commit
  int64_t applied_commits = 0;  // without those that were skipped

  friend bool operator==(const ModelVersion&, const ModelVersion&) = default;
};

// A parameter as readers see it: a matrix, whose columns are its last dimension, and whose rows are all others.
struct ReadParameter {
  std::string name = {};
  std::vector<int64_t> shape = {};
  int64_t rows = 0;
  int64_t columns = 0;
  Encoding encoding = {};
};

// Rows of a parameter's row-wise plane, as one rank of the daemon has them.
struct PlaneRows {
  int64_t first_row = 0;
  Matrix matrix = {};  // of these rows alone
};

// A lease on one version of a model. Move-only; the destructor releases it. Used by one thread at a time. It may outlive
// its Reader.
class Snapshot {
 public:
  Snapshot(Snapshot&&) noexcept;
  Snapshot& operator=(Snapshot&&) noexcept;
  ~Snapshot();

  const ModelVersion& version() const;
  // Bytes that the trainers gave with the commit (CommitOptions::reader_data); empty: they gave none, or a creation, an
  // import or a restore began the history here.
  const std::string& data() const;
  // All parameters, in the order of the model's units. Valid as long as the snapshot.
  const std::vector<ReadParameter>& parameters() const;
  // NOT_FOUND with similar names.
  absl::StatusOr<const ReadParameter*> Find(absl::string_view name) const;

  // Decodes a parameter into host memory, row-major: rows x columns float32, or these rounded to the nearest even BF16
  // (bit patterns). Values are whole if the call returns OK. INVALID_ARGUMENT for an `out` of another size; NOT_FOUND;
  // ABORTED the snapshot has ended: take another one.
  absl::Status Read(absl::string_view name, absl::Span<float> out) const;
  absl::Status ReadBFloat16(absl::string_view name, absl::Span<uint16_t> out) const;

  // Copies the boxes of a plan (client/plan.h), or compares their memory with the snapshot, bit by bit. FAILED_PRECONDITION
  // where the model was made anew with other parameters; DATA_LOSS names the first parameter that differs, and where;
  // ABORTED as above, and the memory of boxes is then half new. Both are done on return. In memory of a GPU
  // they begin after the work so far of the CUDA stream `after`, a cudaStream_t; null: the default stream.
  absl::Status CopyTo(const Plan& plan, CUstream_st* after = nullptr) const;
  absl::Status Verify(const Plan& plan, CUstream_st* after = nullptr) const;

  // Returns the digest of a parameter's values, or of what lies in its row-wise plane, by which a program finds later
  // that it has the same bits: see DigestElements. An element's position counts from the first of the whole, row-major;
  // NVFP4_2D has two codes in an element. NOT_FOUND; INVALID_ARGUMENT the format has no such content; ABORTED.
  absl::StatusOr<PositionDigest> Digest(absl::string_view name, BoxContent content) const;

  // Returns the plane where it lies, in rows ascending, read-only. Bytes change without notice once the snapshot has
  // ended: what was made of them counts if Check() returns OK afterwards. NOT_FOUND; ABORTED.
  absl::StatusOr<std::vector<PlaneRows>> Map(absl::string_view name) const;

  // Returns OK while the snapshot's bytes are those of version(). ABORTED after its end, naming both versions;
  // UNAVAILABLE the daemon has died: what was read before may be whole, and nothing can tell.
  absl::Status Check() const;

  // Releases the lease early. The snapshot ends; later calls return FAILED_PRECONDITION.
  void Release();

 private:
  friend class Reader;
  explicit Snapshot(std::unique_ptr<internal::Lease> lease);
  std::unique_ptr<internal::Lease> lease_;
};

// Reads one model of the daemon on this machine, across restarts of the daemon and deletions of the model. Thread-safe.
// It takes no thread and no CPU between calls. A forked child's calls return FAILED_PRECONDITION.
class Reader {
 public:
  struct Options {
    std::string model = {};
    std::string socket_dir = {};  // as Client::Options
    // For people: shown by `paramshardctl readers`. At most 64 bytes; empty: the name of the program.
    std::string name = {};
    absl::Duration connect_timeout = absl::Seconds(10);  // of one attempt, > 0
    // Asked while a call waits or copies, as Client::Options::interrupted.
    std::function<absl::Status()> interrupted = {};
  };

  // Asks no daemon: the first Acquire connects. INVALID_ARGUMENT.
  static absl::StatusOr<std::unique_ptr<Reader>> Create(Options options);
  ~Reader();

  struct AcquireOptions {
    // Least commit number; 0: any. It counts in the present history: see WaitNewer for another one.
    int64_t min_commit = 0;
    absl::Duration timeout = absl::Seconds(60);  // 0: looks once
  };
  // Waits for a readable version and takes a lease on it. It waits where the model is not there yet, is being written,
  // or its daemon is restarted. DEADLINE_EXCEEDED says what it waited for; FAILED_PRECONDITION and PERMISSION_DENIED as
  // ReaderService.OpenReader says; RESOURCE_EXHAUSTED.
  absl::StatusOr<Snapshot> Acquire(const AcquireOptions& options);
  absl::StatusOr<Snapshot> Acquire() { return Acquire(AcquireOptions()); }

  // Waits until there is a readable version that is newer than `than`: a larger commit number of its history, or any
  // version of another history. Takes no lease. Errors of Acquire.
  absl::StatusOr<ModelVersion> WaitNewer(const ModelVersion& than, absl::Duration timeout);

  const std::string& model() const;

 private:
  class Impl;
  explicit Reader(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace paramshard

#endif  // PARAMSHARD_CLIENT_READER_H_
