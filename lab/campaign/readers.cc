#include "lab/campaign/readers.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include <grpcpp/client_context.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/internal/companion.h"
#include "client/internal/mapped_memory.h"
#include "client/internal/sockets.h"
#include "client/reader.h"
#include "common/shared_memory/publication_page.h"
#include "kernels/base/float_bits.h"
#include "kernels/base/status_macros.h"
#include "kernels/formats/bfloat16.h"
#include "lab/campaign/moments.h"
#include "lab/campaign/readable_training.h"
#include "paramshard/v1/reader.grpc.pb.h"

namespace paramshard::test {
namespace {

constexpr absl::Duration kAcquireTimeout = absl::Seconds(2);
constexpr absl::Duration kLongestSleep = absl::Milliseconds(600);
constexpr int kHoard = 16;
constexpr int kCrowdSize = 200;
constexpr int kSpam = 10000;

// Takes and verifies snapshots, for every kind of reader.
class Verifier {
 public:
  Verifier(const ReaderPlan& plan, Board& board) : plan_(plan), board_(board), random_(plan.seed) {}

  bool stopped() const { return board_.numbers[kStop] != 0; }
  void Count(ReaderNumber number, uint32_t by = 1) { board_.numbers[number] += by; }
  std::mt19937_64& random() { return random_; }

  absl::StatusOr<std::unique_ptr<Reader>> MakeReader() const {
    return Reader::Create({.model = plan_.model, .socket_dir = plan_.socket_dir, .name = NameOf(plan_.kind)});
  }

  // Null if there is none now.
  absl::StatusOr<std::unique_ptr<Snapshot>> Take(Reader& reader) {
    absl::StatusOr<Snapshot> snapshot = reader.Acquire({.timeout = kAcquireTimeout});
    if (snapshot.ok()) return std::make_unique<Snapshot>(*std::move(snapshot));
    // The daemon is away, the model is deleted or written, or the crowd has taken all seats.
    if (!absl::IsDeadlineExceeded(snapshot.status()) && !absl::IsResourceExhausted(snapshot.status())) {
      return Failure("acquire", snapshot.status().ToString());
    }
    Count(kNoSnapshot);
    return nullptr;
  }

  // Reads and checks all parameters, sleeping before one of them for up to `sleep`.
  absl::Status Verify(const Snapshot& snapshot, absl::Duration sleep = absl::ZeroDuration()) {
    const std::vector<ReadParameter>& parameters = snapshot.parameters();
    const size_t late = random_() % parameters.size();
    for (size_t i = 0; i < parameters.size(); ++i) {
      if (i == late && sleep > absl::ZeroDuration()) absl::SleepFor(UpTo(sleep, random_));
      ASSIGN_OR_RETURN(const bool whole, ReadOne(snapshot, parameters[i]));
      if (!whole) return absl::OkStatus();
    }
    const ModelVersion& version = snapshot.version();
    if (version.applied_commits != version.commit_number) {
      return Failure("applied commits",
                     absl::StrCat("want ", version.commit_number, ", got ", version.applied_commits));
    }
    Count(kAccepted);
    if (!(version == last_)) Count(kVersions);
    last_ = version;
    board_.numbers[kLastCommit] = static_cast<uint32_t>(version.commit_number);
    // The first life's parameter begins the sequence.
    if (!absl::EndsWith(parameters.front().name, ".0")) Count(kNewLife);
    return absl::OkStatus();
  }

  absl::Status Failure(absl::string_view what, absl::string_view why) const {
    return absl::InternalError(absl::StrCat(NameOf(plan_.kind), " of seed ", plan_.seed, ": ", what, ": ", why));
  }

 private:
  // Returns false if the snapshot has ended.
  absl::StatusOr<bool> ReadOne(const Snapshot& snapshot, const ReadParameter& parameter) {
    const auto elements = static_cast<size_t>(parameter.rows * parameter.columns);
    const float want = ValueAt(parameter.name, snapshot.version().commit_number);
    values_.resize(elements);
    absl::Status status;
    const auto way = static_cast<int>(random_() % 3);
    board_.numbers[kInside] = 1;
    if (way == 0) {
      status = snapshot.Read(parameter.name, absl::MakeSpan(values_));
    } else if (way == 1) {
      rounded_.resize(elements);
      status = snapshot.ReadBFloat16(parameter.name, absl::MakeSpan(rounded_));
      std::transform(rounded_.begin(), rounded_.end(), values_.begin(), DecodeBFloat16);
    } else {
      status = Copy(snapshot, parameter);
    }
    board_.numbers[kInside] = 0;
    if (absl::IsAborted(status) || absl::IsUnavailable(status)) {
      Count(absl::IsAborted(status) ? kAborted : kLost);
      return false;
    }
    if (!status.ok()) return Failure(absl::StrCat("read ", parameter.name), status.ToString());
    const auto wrong = std::find_if(values_.begin(), values_.end(), [&](float value) { return !(value == want); });
    if (wrong == values_.end()) return true;
    return Failure(
        absl::StrCat("commit ", snapshot.version().commit_number, ", parameter ", parameter.name),
        absl::StrCat("want ", want, ", got ", *wrong, " at element ", wrong - values_.begin(), " of ", elements, ", ",
                     std::count(values_.begin(), values_.end(), want), " are right; way ", way));
  }

  // Copies mapped planes, asks whether the copy counts, and only then decodes it.
  absl::Status Copy(const Snapshot& snapshot, const ReadParameter& parameter) {
    ASSIGN_OR_RETURN(const std::vector<PlaneRows> planes, snapshot.Map(parameter.name));
    std::vector<std::vector<uint8_t>> copies;
    for (const PlaneRows& rows : planes) {
      copies.emplace_back(rows.matrix.data.begin(), rows.matrix.data.end());
      copies.back().insert(copies.back().end(), rows.matrix.scales.begin(), rows.matrix.scales.end());
    }
    const absl::Status counts = snapshot.Check();
    for (size_t i = 0; i < planes.size(); ++i) {
      Matrix matrix = planes[i].matrix;
      const size_t data = matrix.data.size();
      matrix.data = absl::MakeConstSpan(copies[i]).subspan(0, data);
      matrix.scales = absl::MakeConstSpan(copies[i]).subspan(data);
      RETURN_IF_ERROR(matrix.Decode(values_.data() + planes[i].first_row * parameter.columns));
    }
    // Shows that there is something to refuse.
    const bool is_mixed = std::any_of(values_.begin(), values_.end(), [&](float value) { return value != values_[0]; });
    if (!counts.ok() && is_mixed) Count(kTorn);
    return counts;
  }

  const ReaderPlan& plan_;
  Board& board_;
  std::mt19937_64 random_;
  std::vector<float> values_;
  std::vector<uint16_t> rounded_;
  ModelVersion last_;
};

absl::Status ReadEach(Verifier& verifier, absl::Duration sleep, bool follows = false) {
  ASSIGN_OR_RETURN(const std::unique_ptr<Reader> reader, verifier.MakeReader());
  while (!verifier.stopped()) {
    ASSIGN_OR_RETURN(const std::unique_ptr<Snapshot> snapshot, verifier.Take(*reader));
    if (snapshot == nullptr) continue;
    RETURN_IF_ERROR(verifier.Verify(*snapshot, sleep));
    if (!follows) continue;
    const ModelVersion version = snapshot->version();
    snapshot->Release();
    // Its error is that of the next snapshot.
    (void)reader->WaitNewer(version, kAcquireTimeout);
  }
  return absl::OkStatus();
}

// Each of `count` readers takes a snapshot; all are verified, the last one first, and then released.
absl::Status ReadTogether(Verifier& verifier, int count) {
  std::vector<std::unique_ptr<Reader>> readers;
  for (int i = 0; i < count; ++i) {
    ASSIGN_OR_RETURN(readers.emplace_back(), verifier.MakeReader());
  }
  while (!verifier.stopped()) {
    std::vector<std::unique_ptr<Snapshot>> held;
    for (size_t i = 0; i < readers.size() && !verifier.stopped(); ++i) {
      ASSIGN_OR_RETURN(std::unique_ptr<Snapshot> snapshot, verifier.Take(*readers[i]));
      if (snapshot != nullptr) held.push_back(std::move(snapshot));
    }
    std::reverse(held.begin(), held.end());
    for (const auto& snapshot : held) RETURN_IF_ERROR(verifier.Verify(*snapshot));
  }
  return absl::OkStatus();
}

absl::Status Spam(Verifier& verifier) {
  ASSIGN_OR_RETURN(const std::unique_ptr<Reader> reader, verifier.MakeReader());
  while (!verifier.stopped()) {
    for (int i = 0; i < kSpam && !verifier.stopped(); ++i) {
      ASSIGN_OR_RETURN(const std::unique_ptr<Snapshot> snapshot, verifier.Take(*reader));
      if (snapshot != nullptr) verifier.Count(kReleased);
    }
    ASSIGN_OR_RETURN(const std::unique_ptr<Snapshot> snapshot, verifier.Take(*reader));
    if (snapshot != nullptr) RETURN_IF_ERROR(verifier.Verify(*snapshot));
  }
  return absl::OkStatus();
}

// A reader without the library's manners.
struct HostileSession {
  internal::Companion companion;
  internal::MappedMemory publication;
  internal::MappedMemory lease;
};

bool CanChange(const wire::FileDescriptor& fd, int64_t bytes) {
  void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (memory != MAP_FAILED) munmap(memory, bytes);
  const char byte = 0;
  return memory != MAP_FAILED || pwrite(fd.get(), &byte, 1, 0) == 1;
}

absl::StatusOr<HostileSession> OpenHostile(const ReaderPlan& plan, const Verifier& verifier) {
  ASSIGN_OR_RETURN(const internal::SocketPaths paths, internal::FindSockets(plan.socket_dir));
  ASSIGN_OR_RETURN(internal::Companion companion, internal::Companion::Connect(paths.companion, kAcquireTimeout));
  ASSIGN_OR_RETURN(const auto channel, internal::OpenChannel(paths, kAcquireTimeout));
  grpc::ClientContext context;
  context.AddMetadata(wire::kTokenMetadata, companion.token());
  context.set_deadline(absl::ToChronoTime(absl::Now() + kAcquireTimeout));
  v1::OpenReaderRequest request;
  request.set_model(plan.model);
  request.set_name(NameOf(plan.kind));
  v1::OpenReaderResponse opened;
  const grpc::Status answer = v1::ReaderService::NewStub(channel)->OpenReader(&context, request, &opened);
  if (!answer.ok()) return absl::UnavailableError(answer.error_message());
  ASSIGN_OR_RETURN(const internal::ReaderMemory memory, companion.ReceiveReader(kAcquireTimeout));
  for (const internal::ReaderMemory::Part& part : memory.planes) {
    if (CanChange(part.fd, part.bytes)) return verifier.Failure("planes", "can be written by a reader");
    if (ftruncate(part.fd.get(), 0) == 0) return verifier.Failure("planes", "can be cut by a reader");
  }
  if (CanChange(memory.publication.fd, memory.publication.bytes)) {
    return verifier.Failure("publication page", "can be written by a reader");
  }
  if (ftruncate(memory.lease.fd.get(), 0) == 0) return verifier.Failure("lease page", "can be cut by a reader");
  using Access = internal::MappedMemory::Access;
  ASSIGN_OR_RETURN(auto publication, internal::MappedMemory::Map("publication page", memory.publication.fd,
                                                                 memory.publication.bytes, Access::kRead));
  ASSIGN_OR_RETURN(auto lease,
                   internal::MappedMemory::Map("lease page", memory.lease.fd, memory.lease.bytes, Access::kReadWrite));
  return HostileSession{std::move(companion), std::move(publication), std::move(lease)};
}

// Writes a lease on the present generation with a number of releases that makes the daemon wait for it, or noise.
void WriteNoise(const HostileSession& session, std::mt19937_64& random) {
  auto* const words = reinterpret_cast<std::atomic<uint64_t>*>(session.lease.data());
  const uint64_t gate = wire::PublicationPage(session.publication.data()).gate().packed();
  switch (random() % 4) {
    case 0:
      words[random() % (session.lease.size_bytes() / sizeof(uint64_t))] = random();
      break;
    case 1:
      words[0] = gate + random() % 9 - 4;
      break;
    case 2:
      words[1] = words[1] + random() % 32;
      break;
    default:
      words[0] = gate & ~uint64_t{3};
      words[1] = uint64_t{1} << 40;
  }
}

absl::Status Assault(const ReaderPlan& plan, Verifier& verifier) {
  while (!verifier.stopped()) {
    absl::StatusOr<HostileSession> session = OpenHostile(plan, verifier);
    if (absl::IsInternal(session.status())) return session.status();
    if (!session.ok()) {
      verifier.Count(kNoSnapshot);
      absl::SleepFor(absl::Milliseconds(20));
      continue;
    }
    while (!verifier.stopped() && !session->companion.IsLost()) {
      for (uint64_t i = verifier.random()() % 100; i > 0; --i) {
        WriteNoise(*session, verifier.random());
        verifier.Count(kWrites);
      }
      absl::SleepFor(UpTo(absl::Milliseconds(5), verifier.random()));
    }
  }
  return absl::OkStatus();
}

}  // namespace

const char* NameOf(ReaderKind kind) {
  constexpr const char* kNames[kReaderKinds] = {"verifier", "sleeper", "hoarder", "spammer", "crowd", "hostile"};
  return kNames[static_cast<int>(kind)];
}

absl::Status ReadUntilStopped(const ReaderPlan& plan, Board& board) {
  Verifier verifier(plan, board);
  switch (plan.kind) {
    case ReaderKind::kVerifier:
      return ReadEach(verifier, absl::ZeroDuration(), plan.follows);
    case ReaderKind::kSleeper:
      return ReadEach(verifier, kLongestSleep);
    case ReaderKind::kHoarder:
      return ReadTogether(verifier, kHoard);
    case ReaderKind::kSpammer:
      return Spam(verifier);
    case ReaderKind::kCrowd:
      return ReadTogether(verifier, kCrowdSize);
    case ReaderKind::kHostile:
      return Assault(plan, verifier);
  }
}

}  // namespace paramshard::test
