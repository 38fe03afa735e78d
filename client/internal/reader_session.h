// A reader's attachment to one server process of the daemon: the memory that it maps, and its leases.
#ifndef PARAMSHARD_CLIENT_INTERNAL_READER_SESSION_H_
#define PARAMSHARD_CLIENT_INTERNAL_READER_SESSION_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "client/internal/companion.h"
#include "client/internal/deadline.h"
#include "client/internal/interruption.h"
#include "client/internal/mapped_memory.h"
#include "client/internal/owner_process.h"
#include "client/internal/tensor_memory.h"
#include "client/reader.h"
#include "common/model/layout.h"
#include "common/model/name_index.h"
#include "common/shared_memory/publication_page.h"
#include "paramshard/v1/reader.pb.h"

namespace paramshard::internal {

// Returns NOT_FOUND with similar names. `model` is "model m", or what else is known of it.
absl::Status ParameterNotFound(absl::string_view model, absl::Span<const ReadParameter> parameters,
                               absl::string_view name);

// Thread-safe. Memory stays mapped for as long as the object lives, also after the daemon has died. A forked child asks
// CheckProcess before it calls what reads or writes the pages, and never destroys the object.
class ReaderSession {
 public:
  // Results of opening.
  struct Parts {
    Companion companion;
    ReaderMemory memory;
    v1::OpenReaderResponse opened;
    std::function<decltype(MapPlanes)> map_planes = &MapPlanes;
  };

  // Connects, and opens a reader. Errors of FindSockets, Companion::Connect, ReaderService.OpenReader and Create.
  static absl::StatusOr<std::shared_ptr<ReaderSession>> Open(const Reader::Options& options, const Deadline& deadline,
                                                             const Interruption& interruption);

  // Computes the layout and maps the memory. INTERNAL or FAILED_PRECONDITION when the daemon has a different layout, or
  // memory of other sizes.
  static absl::StatusOr<std::shared_ptr<ReaderSession>> Create(Parts parts);
  ReaderSession(const ReaderSession&) = delete;
  ReaderSession& operator=(const ReaderSession&) = delete;

  const std::string& model() const { return layout_.spec().name; }
  // In the order of the units.
  const std::vector<ReadParameter>& parameters() const { return parameters_; }
  // Returns an index of parameters(). Error of ParameterNotFound.
  absl::StatusOr<int> Find(absl::string_view name) const;
  // Number of copies of the planes, which generations take in turn.
  int copies() const { return copies_; }
  // Returns the rows of a parameter's row-wise plane in a generation, ascending.
  std::vector<PlaneRows> RowsOf(int parameter, uint64_t generation) const;

  absl::Status CheckProcess() const { return owner_.Check("reader"); }
  const wire::PublicationPage& publication() const { return publication_; }
  // Returns the page's text in a form for messages.
  std::string publication_text() const;
  // UNAVAILABLE when the daemon has died or has closed the connection: its gate then says nothing any more.
  absl::Status CheckConnected() const;
  // Returns the version of the gate's generation; null if that generation has ended. INTERNAL for numbers that no
  // daemon writes. `data`, where given, is set to the version's.
  absl::StatusOr<std::optional<ModelVersion>> VersionOf(const wire::Gate& gate, std::string* data = nullptr) const;

  // Takes a lease on the generation of a valid gate, which any number of callers share. Returns false if the gate has
  // changed. Each true needs a Release, which does nothing where a later generation has been leased since.
  bool Take(const wire::Gate& valid);
  void Release(uint64_t generation);

 private:
  struct Memory {
    MappedMemory publication;
    MappedMemory lease;
    std::vector<PlaneMemory> planes;  // by rank
  };

  ReaderSession(Companion companion, Layout layout, int copies, Memory memory);
  static absl::StatusOr<Memory> Map(const Parts& parts, const Layout& layout);

  // Constant after construction.
  const OwnerProcess owner_;
  const Companion companion_;  // ends after the memory, so that the daemon hears of it then
  const Layout layout_;
  const int copies_;
  const NameIndex names_;              // of the layout's spec
  std::vector<int> first_parameters_;  // of each unit, in parameters_
  std::vector<ParameterPlace> places_;
  std::vector<ReadParameter> parameters_;
  const Memory memory_;
  const wire::PublicationPage publication_;

  absl::Mutex mu_;
  const wire::LeasePage lease_;               // written under mu_
  uint64_t leased_ ABSL_GUARDED_BY(mu_) = 0;  // generation; 0: none
  int holders_ ABSL_GUARDED_BY(mu_) = 0;      // of the leased generation
};

}  // namespace paramshard::internal

#endif  // PARAMSHARD_CLIENT_INTERNAL_READER_SESSION_H_
