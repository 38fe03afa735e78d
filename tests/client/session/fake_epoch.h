// The daemon's side of a session, played by a test: memory, words and a process that can die.
#ifndef PARAMSHARD_TESTS_CLIENT_SESSION_FAKE_EPOCH_H_
#define PARAMSHARD_TESTS_CLIENT_SESSION_FAKE_EPOCH_H_

#include <sys/types.h>

#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "client/client.h"
#include "client/internal/mapped_memory.h"
#include "client/internal/session.h"
#include "common/model/layout.h"
#include "common/shared_memory/ring.h"
#include "common/shared_memory/words.h"
#include "paramshard/v1/trainer.pb.h"

namespace paramshard {

struct FakeEpochOptions {
  int ranks = 2;
  int group_rank = 0;
  bool client_lands_own_pieces = true;
  bool client_lands_own_gradients = false;
  bool prefetch = true;
  int64_t commit_number = 0;
  // Added to the true size in the memory's messages.
  int64_t extra_planes_bytes = 0;
  // Added to the fingerprint, as from a daemon of another version.
  uint64_t extra_fingerprint = 0;
  // UUID of the GPU for the tensors, and the function that maps them.
  std::string gpu_uuid = {};
  internal::TensorMapper map_tensors = &internal::MapTensors;
  internal::Interruption interruption = {};
};

// Three units "a", "b" and "c" of one 64 x 32 MXFP8 matrix "a.w" ... and one small FP32 vector
// "a.bias" ...
ModelSpec ThreeUnits();

class FakeEpoch {
 public:
  FakeEpoch(const ModelSpec& spec, const FakeEpochOptions& options);
  ~FakeEpoch();

  // The trainer's end; once.
  absl::StatusOr<std::shared_ptr<internal::Session>> Attach();

  const wire::Words& words() const { return words_; }
  const Layout& layout() const { return layout_; }
  uint8_t* planes() const { return planes_.data(); }
  uint8_t* slots() const { return slots_.data(); }
  // All of the words page.
  std::string PageBytes() const { return {page_.data(), page_.data() + page_.size_bytes()}; }

  // The trainer's next command; nullopt when there is none.
  std::optional<v1::Command> NextCommand();

  // Waits until the trainer sleeps on a word; false when it does not in half a minute.
  bool AwaitTrainerAsleep() const;

  // The words that the daemon would write.
  void PublishReady(const v1::Command& gather);  // from all other ranks, and from this one unless the client lands
  void PublishDrained(const v1::Command& push);
  void PublishCommitted(int64_t commit_number, int64_t version);

  void KillDaemon();
  void CloseCompanion() { companion_.Reset(); }

 private:
  struct SharedMemory {
    wire::FileDescriptor fd;
    internal::MappedMemory mapping;
  };
  static wire::FileDescriptor MakeFile(int64_t size_bytes);

  const FakeEpochOptions options_;
  const Layout layout_;
  wire::FileDescriptor planes_file_, slots_file_, words_file_;
  internal::MappedMemory planes_, slots_, page_;
  wire::Words words_;
  std::unique_ptr<wire::RingReader> ring_;
  wire::FileDescriptor companion_;
  pid_t daemon_ = -1;
};

}  // namespace paramshard

#endif  // PARAMSHARD_TESTS_CLIENT_SESSION_FAKE_EPOCH_H_
