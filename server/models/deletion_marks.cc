#include "server/models/deletion_marks.h"

#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "kernels/base/status_macros.h"
#include "server/device/memory.h"
#include "server/observe/log.h"

namespace paramshard::server {
namespace {

// Name under which the marks are kept; no model can have it.
constexpr absl::string_view kKeptName("\0deletions", 10);
constexpr char kMemoryName[] = "deletions";

absl::StatusOr<std::string> ReadKept(wire::FileDescriptor fd) {
  struct stat info {};
  if (fstat(fd.get(), &info) != 0) info.st_size = -1;
  ASSIGN_OR_RETURN(const Memory memory, Memory::Adopt(kMemoryName, info.st_size, std::move(fd)));
  return std::string(reinterpret_cast<const char*>(memory.data()), memory.size_bytes());
}

}  // namespace

void DeletionMarks::TakeOver(KeptStore::Descriptors& all) {
  auto found = all.extract(std::string(kKeptName));
  if (found.empty()) return;
  absl::StatusOr<std::string> bytes = ReadKept(std::move(found.mapped()));
  Marks marks;
  const absl::Status parsed = bytes.ok() ? Parse(*bytes, marks) : bytes.status();
  if (!parsed.ok()) {
    Log(LogLevel::kWarning, "failed to read marks of deleted models", {{"why", parsed.ToString()}});
    return;
  }
  absl::MutexLock lock(&mu_);
  marks_ = std::move(marks);
}

absl::Status DeletionMarks::Add(absl::string_view name) {
  absl::MutexLock lock(&mu_);
  const int64_t serial = marks_.empty() ? 1 : marks_.back().serial + 1;
  Marks marks = marks_;
  std::erase_if(marks, [name](const Mark& mark) { return mark.name == name; });
  if (marks.size() >= kMostMarks) marks.pop_front();
  marks.push_back({.serial = serial, .name = std::string(name)});
  RETURN_IF_ERROR(Keep(marks));
  marks_ = std::move(marks);
  return absl::OkStatus();
}

int64_t DeletionMarks::SerialOf(absl::string_view name) const {
  absl::MutexLock lock(&mu_);
  const auto found = std::find_if(marks_.begin(), marks_.end(), [name](const Mark& mark) { return mark.name == name; });
  return found == marks_.end() ? 0 : found->serial;
}

std::string DeletionMarks::Serialize(const Marks& marks) {
  std::string bytes;
  for (const Mark& mark : marks) {
    absl::StrAppend(&bytes, mark.serial, " ", mark.name);
    bytes.push_back('\0');
  }
  return bytes;
}

absl::Status DeletionMarks::Parse(absl::string_view bytes, Marks& marks) {
  for (const absl::string_view text : absl::StrSplit(bytes, '\0', absl::SkipEmpty())) {
    const std::pair<absl::string_view, absl::string_view> parts = absl::StrSplit(text, absl::MaxSplits(' ', 1));
    Mark mark{.name = std::string(parts.second)};
    const int64_t last = marks.empty() ? 0 : marks.back().serial;
    if (!absl::SimpleAtoi(parts.first, &mark.serial) || mark.serial <= last || mark.name.empty() ||
        marks.size() >= kMostMarks) {
      return absl::DataLossError(absl::StrCat("mark ", marks.size() + 1, " is damaged"));
    }
    marks.push_back(std::move(mark));
  }
  return absl::OkStatus();
}

absl::Status DeletionMarks::Keep(const Marks& marks) const {
  if (kept_ == nullptr) return absl::OkStatus();
  const std::string bytes = Serialize(marks);
  ASSIGN_OR_RETURN(Memory memory, Memory::Allocate(kMemoryName, static_cast<int64_t>(bytes.size()), Sharing::kKept));
  std::memcpy(memory.data(), bytes.data(), bytes.size());
  return kept_->Keep(kKeptName, memory.fd());
}

}  // namespace paramshard::server
