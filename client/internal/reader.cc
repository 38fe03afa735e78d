// Reader: a public class on top of internal::ReaderSession and internal::Lease.
#include "client/reader.h"

#include <errno.h>  // program_invocation_short_name
#include <poll.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "client/internal/deadline.h"
#include "client/internal/interruption.h"
#include "client/internal/lease.h"
#include "client/internal/owner_process.h"
#include "client/internal/reader_session.h"
#include "client/internal/sockets.h"
#include "common/model/names.h"
#include "kernels/base/status_macros.h"

namespace paramshard {

using internal::Deadline;
using internal::Interruption;
using internal::Lease;
using internal::ReaderSession;
using wire::Gate;

namespace {

constexpr size_t kMaxReaderNameBytes = 64;
constexpr absl::Duration kFirstPause = absl::Milliseconds(10);
constexpr absl::Duration kLongestPause = absl::Milliseconds(250);

std::string ProgramName() {
  const std::string name = std::string(program_invocation_short_name).substr(0, kMaxReaderNameBytes);
  return IsUtf8(name) ? name : "";
}

absl::Status Check(const Reader::Options& options) {
  const auto refuse = [](const auto&... text) {
    return absl::InvalidArgumentError(absl::StrCat("create reader: ", text...));
  };
  if (const absl::Status model = CheckName(options.model); !model.ok()) return refuse("model: ", model.message());
  if (options.name.size() > kMaxReaderNameBytes || !IsUtf8(options.name)) {
    return refuse("want a name of at most ", kMaxReaderNameBytes, " bytes of UTF-8, got ", DisplayName(options.name));
  }
  if (options.connect_timeout > absl::ZeroDuration()) return absl::OkStatus();
  return refuse("want connect_timeout > 0, got ", absl::FormatDuration(options.connect_timeout));
}

}  // namespace

// Thread-safe.
class Reader::Impl {
 public:
  explicit Impl(Options options) : options_(std::move(options)), interruption_(options_.interrupted) {}

  const std::string& model() const { return options_.model; }
  const Interruption& interruption() const { return interruption_; }

  // Calls `attempt` with a session and its gate, and again after every change, until it returns an empty text: else the
  // text says what it waits for. Attaches anew where the session has ended.
  using Attempt = absl::FunctionRef<absl::StatusOr<std::string>(const std::shared_ptr<ReaderSession>&, const Gate&)>;
  absl::Status Await(absl::string_view call, absl::Duration timeout, Attempt attempt);

 private:
  // UNAVAILABLE also while another thread attaches.
  absl::StatusOr<std::shared_ptr<ReaderSession>> Attached(const Deadline& deadline);
  // The same with one session. UNAVAILABLE where it has ended; DEADLINE_EXCEEDED with the attempt's last text.
  absl::Status AwaitWith(const std::shared_ptr<ReaderSession>& session, const Deadline& deadline, Attempt attempt);
  void Drop(const std::shared_ptr<ReaderSession>& session);
  // Returns the interruption.
  absl::Status Pause(absl::Duration pause) const;

  const internal::OwnerProcess owner_;
  const Options options_;
  const Interruption interruption_;

  absl::Mutex mu_;
  std::shared_ptr<ReaderSession> session_ ABSL_GUARDED_BY(mu_);
  bool attaching_ ABSL_GUARDED_BY(mu_) = false;  // a thread does, without the mutex
};

absl::StatusOr<std::shared_ptr<ReaderSession>> Reader::Impl::Attached(const Deadline& deadline) {
  {
    const absl::MutexLock lock(&mu_);
    if (session_ != nullptr) return session_;
    if (std::exchange(attaching_, true)) return absl::UnavailableError("another thread connects to the daemon");
  }
  absl::StatusOr<std::shared_ptr<ReaderSession>> session = ReaderSession::Open(options_, deadline, interruption_);
  const absl::MutexLock lock(&mu_);
  attaching_ = false;
  if (session.ok()) session_ = *session;
  return session;
}

void Reader::Impl::Drop(const std::shared_ptr<ReaderSession>& session) {
  const absl::MutexLock lock(&mu_);
  if (session_ == session) session_ = nullptr;
}

absl::Status Reader::Impl::Pause(absl::Duration pause) const {
  const Deadline end = Deadline::After(pause);
  while (!end.Passed()) {
    const absl::Duration slice = std::min(end.Left(), Interruption::kSlice);
    poll(nullptr, 0, static_cast<int>(absl::ToInt64Milliseconds(absl::Ceil(slice, absl::Milliseconds(1)))));
    RETURN_IF_ERROR(interruption_.Ask());
  }
  return absl::OkStatus();
}

absl::Status Reader::Impl::AwaitWith(const std::shared_ptr<ReaderSession>& session, const Deadline& deadline,
                                     Attempt attempt) {
  while (true) {
    const Gate gate = session->publication().gate();
    if (gate.state == Gate::State::kEnded) return absl::UnavailableError(session->publication_text());
    // The gate of a dead daemon stays as it was.
    RETURN_IF_ERROR(session->CheckConnected());
    ASSIGN_OR_RETURN(const std::string waits, attempt(session, gate));
    if (waits.empty()) return absl::OkStatus();
    if (deadline.Passed()) return absl::DeadlineExceededError(waits);
    RETURN_IF_ERROR(interruption_.Ask());
    session->publication().AwaitChange(gate, std::min(deadline.Left(), Interruption::kSlice));
  }
}

absl::Status Reader::Impl::Await(absl::string_view call, absl::Duration timeout, Attempt attempt) {
  RETURN_IF_ERROR(owner_.Check("reader"));
  const Deadline deadline = Deadline::After(timeout);
  absl::Duration pause = kFirstPause;
  std::string why;
  while (true) {
    const absl::StatusOr<std::shared_ptr<ReaderSession>> session = Attached(deadline);
    absl::Status status = session.status();
    if (session.ok()) {
      status = AwaitWith(*session, deadline, attempt);
      if (absl::IsUnavailable(status)) Drop(*session);
    }
    if (!absl::IsUnavailable(status) && !absl::IsNotFound(status) && !absl::IsDeadlineExceeded(status)) return status;
    // A try that the deadline has cut short knows less than the one before.
    if (session.ok() || why.empty() || !deadline.Passed()) why = std::string(status.message());
    if (deadline.Passed()) {
      // A caller that tries again passes what is left of its time, and names it in round numbers.
      const std::string waited = absl::FormatDuration(absl::Ceil(timeout, absl::Milliseconds(1)));
      return absl::DeadlineExceededError(absl::StrCat(call, " ", model(), ": timed out after ", waited, ": ", why));
    }
    RETURN_IF_ERROR(Pause(std::min(pause, deadline.Left())));
    pause = std::min(pause * 2, kLongestPause);
  }
}

Reader::Reader(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Reader::~Reader() = default;

absl::StatusOr<std::unique_ptr<Reader>> Reader::Create(Options options) {
  RETURN_IF_ERROR(Check(options));
  // The directory may come later; a path that is too long stays so.
  const absl::Status paths = internal::FindSockets(options.socket_dir).status();
  if (absl::IsInvalidArgument(paths)) return paths;
  if (options.name.empty()) options.name = ProgramName();
  return std::unique_ptr<Reader>(new Reader(std::make_unique<Impl>(std::move(options))));
}

const std::string& Reader::model() const { return impl_->model(); }

absl::StatusOr<Snapshot> Reader::Acquire(const AcquireOptions& options) {
  std::unique_ptr<Lease> lease;
  const auto attempt = [&](const std::shared_ptr<ReaderSession>& session,
                           const Gate& gate) -> absl::StatusOr<std::string> {
    const auto is_written = [&] {
      return absl::StrCat("the model is being written (", session->publication_text(), ")");
    };
    // A writer that has asked waits for snapshots: it need not wait for new ones.
    if (gate.state != Gate::State::kValid) return is_written();
    std::string data;
    ASSIGN_OR_RETURN(std::optional<ModelVersion> version, session->VersionOf(gate, &data));
    if (!version.has_value()) return is_written();
    if (version->commit_number < options.min_commit) {
      return absl::StrCat("want commit ", options.min_commit, " or later, got ", version->commit_number);
    }
    if (!session->Take(gate)) return is_written();
    lease =
        std::make_unique<Lease>(session, gate.generation, *std::move(version), std::move(data), impl_->interruption());
    return "";
  };
  RETURN_IF_ERROR(impl_->Await("acquire", options.timeout, attempt));
  return Snapshot(std::move(lease));
}

absl::StatusOr<ModelVersion> Reader::WaitNewer(const ModelVersion& than, absl::Duration timeout) {
  ModelVersion newer;
  const auto attempt = [&](const std::shared_ptr<ReaderSession>& session,
                           const Gate& gate) -> absl::StatusOr<std::string> {
    ASSIGN_OR_RETURN(std::optional<ModelVersion> version, session->VersionOf(gate));
    if (version.has_value() &&
        (version->history_id != than.history_id || version->commit_number > than.commit_number)) {
      newer = *std::move(version);
      return "";
    }
    return absl::StrCat("want a version newer than commit ", than.commit_number);
  };
  RETURN_IF_ERROR(impl_->Await("wait for", timeout, attempt));
  return newer;
}

}  // namespace paramshard
