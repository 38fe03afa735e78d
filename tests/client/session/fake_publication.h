// The daemon's side of readers, played by a test: a model's planes and publication page, and a server that opens readers.
#ifndef PARAMSHARD_TESTS_CLIENT_SESSION_FAKE_PUBLICATION_H_
#define PARAMSHARD_TESTS_CLIENT_SESSION_FAKE_PUBLICATION_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <grpcpp/server.h>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "client/internal/companion.h"
#include "client/internal/mapped_memory.h"
#include "common/model/layout.h"
#include "common/shared_memory/publication_page.h"
#include "paramshard/v1/reader.grpc.pb.h"

namespace paramshard {

// Memory of the daemon that a test has mapped too.
struct SharedMemory {
  explicit SharedMemory(int64_t size_bytes);
  wire::FileDescriptor Duplicate() const;

  wire::FileDescriptor fd;
  internal::MappedMemory mapping;
};

// History ids are one digit, repeated.
wire::PublishedVersion VersionAt(int64_t commit_number, char history = 'a');

// Scale of planes of FP8_TENSOR_DELAYED.
inline constexpr float kDelayedScale = 4.0f;

class FakePublication {
 public:
  FakePublication(const ModelSpec& spec, int ranks, int copies = 1);

  const Layout& layout() const { return layout_; }
  // Returns the copy of the present generation.
  uint8_t* arena(int rank) const;
  const wire::PublicationPage& page() const { return page_; }

  // The gate's steps. Publish begins to write if that has not been done, so that BeginWriting is for tests that look at
  // a model while it is written.
  void Ask() const;
  void BeginWriting(absl::string_view text = "commit 51 is applied") const;
  void Publish(const wire::PublishedVersion& version) const;
  void End(absl::string_view text) const;

  // Writes the planes of a parameter, each rank's rows by themselves.
  void Encode(int unit, int parameter, const std::vector<float>& values) const;

  // The daemon's answer, and the memory that it sends. The lease page is new.
  v1::OpenReaderResponse Answer() const;
  internal::ReaderMemory Memory();
  // Lease page of the last Memory().
  wire::LeasePage lease() const { return wire::LeasePage(leases_.back().mapping.data()); }

 private:
  const Layout layout_;
  const int copies_;
  std::vector<SharedMemory> arenas_;
  const SharedMemory page_memory_;
  const wire::PublicationPage page_;
  std::vector<SharedMemory> leases_;
};

// Listens in a directory, and opens readers of one model. Thread-safe.
class FakeReaderDaemon final : public v1::ReaderService::Service {
 public:
  explicit FakeReaderDaemon(const std::string& directory);
  // Ends as a killed process does.
  ~FakeReaderDaemon() override;

  // Null: there is no model. It outlives the daemon, or the next call.
  void SetModel(FakePublication* model);
  // Answers so in place of opening a reader.
  void SetAnswer(const grpc::Status& answer);

  // Waits until OpenReader is asked so often from now on; false if it is not within half a minute.
  bool AwaitAsked(int64_t times);
  int64_t opened() const;
  std::string reader_name() const;

  grpc::Status OpenReader(grpc::ServerContext* context, const v1::OpenReaderRequest* request,
                          v1::OpenReaderResponse* response) override;

 private:
  void Accept(int listener);

  const wire::FileDescriptor end_;  // an eventfd, which clients get in place of a pidfd: readable at the end
  std::unique_ptr<grpc::Server> server_;
  std::thread acceptor_;

  mutable absl::Mutex mu_;
  std::map<std::string, wire::FileDescriptor> connections_ ABSL_GUARDED_BY(mu_);  // by token
  FakePublication* model_ ABSL_GUARDED_BY(mu_) = nullptr;
  grpc::Status answer_ ABSL_GUARDED_BY(mu_);
  int64_t asked_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t opened_ ABSL_GUARDED_BY(mu_) = 0;
  std::string reader_name_ ABSL_GUARDED_BY(mu_);
};

}  // namespace paramshard

#endif  // PARAMSHARD_TESTS_CLIENT_SESSION_FAKE_PUBLICATION_H_
