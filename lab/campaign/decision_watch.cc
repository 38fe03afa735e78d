#include "lab/campaign/decision_watch.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <ctime>
#include <filesystem>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/types/span.h"
#include "common/shared_memory/file_descriptor.h"
#include "paramshard/v1/trainer.pb.h"
#include "server/journal/journal_layout.h"
#include "server/journal/journal_reader.h"

namespace paramshard::test {
namespace {

// Returns true if the reader has a journal of the model.
bool IsOf(const absl::StatusOr<server::JournalReader>& reader, const std::string& model) {
  v1::ModelSpec spec;
  return reader.ok() && reader->begun() && spec.ParseFromString(reader->identity().spec) && spec.name() == model;
}

}  // namespace

absl::StatusOr<DecisionWatch> DecisionWatch::Open(pid_t keeper, const std::string& model) {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(absl::StrCat("/proc/", keeper, "/fd"), error)) {
    if (!absl::StartsWith(std::filesystem::read_symlink(entry.path(), error).string(), "/memfd:")) continue;
    const wire::FileDescriptor fd(open(entry.path().c_str(), O_RDONLY | O_CLOEXEC));
    struct stat info;
    if (!fd.valid() || fstat(fd.get(), &info) != 0 || info.st_size == 0) continue;
    void* const memory = mmap(nullptr, info.st_size, PROT_READ, MAP_SHARED, fd.get(), 0);
    if (memory == MAP_FAILED) continue;
    DecisionWatch watch(memory, info.st_size);
    // A journal begins with it.
    if (watch.size_bytes_ < sizeof(server::JournalHeader) || watch.word() != server::kJournalMagic) continue;
    const auto reader = server::JournalReader::Open({static_cast<const uint8_t*>(memory), watch.size_bytes_});
    if (!IsOf(reader, model)) continue;
    watch.word_ = reader->layout().of(server::JournalRecord::kDecided).word;
    return watch;
  }
  return absl::NotFoundError(absl::StrCat("no journal of model ", model, " in process ", keeper));
}

DecisionWatch::~DecisionWatch() {
  if (memory_ != nullptr) munmap(memory_, size_bytes_);
}

uint64_t DecisionWatch::word() const {
  return __atomic_load_n(reinterpret_cast<const uint64_t*>(static_cast<const uint8_t*>(memory_) + word_),
                         __ATOMIC_ACQUIRE);
}

bool DecisionWatch::AwaitOther(uint64_t before, absl::Duration timeout) const {
  constexpr absl::Duration kSpinning = absl::Milliseconds(100);
  constexpr timespec kNap{.tv_sec = 0, .tv_nsec = 10'000};
  const absl::Time begin = absl::Now();
  while (word() == before) {
    const absl::Duration waited = absl::Now() - begin;
    if (waited >= timeout) return false;
    // The processes whose decision is awaited need the processor, too.
    if (waited >= kSpinning) nanosleep(&kNap, nullptr);
  }
  return true;
}

}  // namespace paramshard::test
