#include "server/world/decision_log.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/checkpoint/step_folder.h"
#include "common/safetensors/regular_file.h"
#include "common/shared_memory/crc32c.h"
#include "kernels/base/status_macros.h"
#include "server/base/own_folder.h"
#include "server/observe/log.h"
#include "server/terms/healing_plan.h"
#include "server/world/cluster_messages.h"

namespace paramshard::server {
namespace {

namespace fs = std::filesystem;

constexpr char kSuffix[] = ".decisions";
constexpr char kNewSuffix[] = ".decisions.new";
constexpr char kLockName[] = "lock";

// Smallest size of a copy: room for names and for the device counts of a thousand nodes. Client states may need more.
constexpr int64_t kLeastCopyBytes = 16384;
constexpr int kCopies = 2;
constexpr int64_t kMostFileBytes = int64_t{1} << 30;

constexpr char kWithoutIt[] =
    "the disk has lost data. Without the file daemons may stay in doubt of a commit: remove it to go on";

// First bytes of a copy, little-endian as the machine.
struct CopyHeader {
  uint32_t payload_bytes = 0;
  uint32_t crc = 0;  // CRC-32C of the payload
};

// Last bytes of the file: the last copy that is known to be on the disk. Written after that copy, so that a marked copy
// was whole once. Zero in files of an older version.
struct Mark {
  int64_t sequence = 0;
  uint32_t crc = 0;  // CRC-32C of the sequence
  uint32_t reserved = 0;
};
constexpr int64_t kMarkBytes = sizeof(Mark);

Mark MarkOf(int64_t sequence) {
  const absl::string_view bytes(reinterpret_cast<const char*>(&sequence), sizeof(sequence));
  return {.sequence = sequence, .crc = wire::Crc32c(bytes)};
}

absl::Span<const uint8_t> BytesOf(const Mark& mark) {
  return absl::MakeConstSpan(reinterpret_cast<const uint8_t*>(&mark), sizeof(mark));
}

// Returns nothing if the copy is torn or was never written.
std::optional<v1::KeptEpoch> ReadCopy(absl::string_view bytes) {
  CopyHeader header;
  if (bytes.size() < sizeof(header)) return std::nullopt;
  std::memcpy(&header, bytes.data(), sizeof(header));
  const absl::string_view payload = bytes.substr(sizeof(header)).substr(0, header.payload_bytes);
  v1::KeptEpoch message;
  if (header.payload_bytes == 0 || payload.size() != header.payload_bytes || wire::Crc32c(payload) != header.crc ||
      !message.ParseFromArray(payload.data(), static_cast<int>(payload.size()))) {
    return std::nullopt;
  }
  return message;
}

// Returns true if a copy of an older version reaches into the place of the mark.
bool ReachesMark(absl::string_view copy) {
  CopyHeader header;
  std::memcpy(&header, copy.data(), sizeof(header));
  return sizeof(header) + header.payload_bytes > copy.size() - kMarkBytes;
}

struct NewerCopy {
  v1::KeptEpoch message;
  bool is_marked = false;  // the mark names it
  bool has_mark = true;    // there is room for a mark
};

absl::StatusOr<NewerCopy> ReadNewer(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string file, safetensors::ReadWholeFile(path, kMostFileBytes));
  const size_t copy_bytes = file.size() / kCopies;
  if (copy_bytes < static_cast<size_t>(kLeastCopyBytes) || !std::has_single_bit(copy_bytes) ||
      file.size() % kCopies != 0) {
    return absl::DataLossError(absl::StrCat(path, ": want ", kCopies, " copies of ", kLeastCopyBytes,
                                            " bytes each or of a larger power of two, got ", file.size(),
                                            " bytes: ", kWithoutIt));
  }
  Mark mark;
  std::memcpy(&mark, file.data() + file.size() - kMarkBytes, kMarkBytes);
  const bool has_mark = mark.crc == MarkOf(mark.sequence).crc;
  NewerCopy read;
  std::optional<v1::KeptEpoch> newer;
  bool is_torn = false;
  for (int copy = 0; copy < kCopies; ++copy) {
    const absl::string_view bytes = absl::string_view(file).substr(copy * copy_bytes, copy_bytes);
    std::optional<v1::KeptEpoch> message = ReadCopy(bytes);
    // The second copy's room ends with the mark.
    if (!message.has_value()) {
      is_torn = is_torn || bytes.substr(0, copy_bytes - kMarkBytes).find_first_not_of('\0') != bytes.npos;
    } else if (ReachesMark(bytes)) {
      read.has_mark = false;
    }
    if (message.has_value() && (!newer.has_value() || message->sequence() > newer->sequence())) {
      newer = std::move(message);
    }
  }
  if (!newer.has_value()) {
    return absl::DataLossError(absl::StrCat(path, ": want one intact copy of two, got none: ", kWithoutIt));
  }
  if (is_torn) {
    // A damaged mark names no copy. One crash does not tear both the mark and a copy.
    const bool is_damaged = read.has_mark && (has_mark ? newer->sequence() < mark.sequence : mark.sequence != 0);
    if (is_damaged) {
      return absl::DataLossError(absl::StrCat(path, ": the last copy of decisions fails its checksum, though it was ",
                                              "written whole: ", kWithoutIt));
    }
    Log(LogLevel::kWarning, "decision log copy is damaged; using the other copy", {{"path", path}});
  }
  read.is_marked = has_mark && mark.sequence == newer->sequence();
  read.message = *std::move(newer);
  return read;
}

bool SayTheSame(const ClosedEpoch& a, const ClosedEpoch& b) {
  return a.epoch == b.epoch && a.commit_number == b.commit_number &&
         a.last_decision.has_value() == b.last_decision.has_value() &&
         (!a.last_decision.has_value() || (a.last_decision->epoch == b.last_decision->epoch &&
                                           a.last_decision->commit_number == b.last_decision->commit_number));
}

}  // namespace

v1::KeptEpoch DecisionLog::MessageOf(const Content& content, int64_t sequence) {
  const ClosedEpoch& epoch = content.epoch;
  v1::KeptEpoch message;
  message.set_model(epoch.model);
  message.set_history_id(epoch.history_id);
  message.set_epoch(epoch.epoch);
  message.set_commit_number(epoch.commit_number);
  message.mutable_device_counts()->Add(epoch.device_counts.begin(), epoch.device_counts.end());
  message.mutable_active()->Add(epoch.active.begin(), epoch.active.end());
  message.mutable_replaced_histories()->Assign(epoch.replaced.begin(), epoch.replaced.end());
  message.set_sequence(sequence);
  if (!epoch.last_decision.has_value()) return message;
  v1::KeptEpoch::Decided& decided = *message.mutable_last_decision();
  decided.set_epoch(epoch.last_decision->epoch);
  decided.set_commit_number(epoch.last_decision->commit_number);
  *decided.mutable_decision() = DecisionMessage(epoch.last_decision->decision);
  decided.mutable_active()->Add(content.decided_by.begin(), content.decided_by.end());
  for (const std::string& state : content.client_states) decided.mutable_client_states()->add_states(state);
  return message;
}

DecisionLog::Content DecisionLog::ContentOf(const v1::KeptEpoch& message) {
  Content content{.epoch = {.model = message.model(),
                            .history_id = message.history_id(),
                            .epoch = message.epoch(),
                            .commit_number = message.commit_number(),
                            .active = {message.active().begin(), message.active().end()},
                            .device_counts = {message.device_counts().begin(), message.device_counts().end()},
                            .replaced = {message.replaced_histories().begin(), message.replaced_histories().end()},
                            .may_be_old = true}};
  if (!message.has_last_decision()) return content;
  const v1::KeptEpoch::Decided& decided = message.last_decision();
  content.epoch.last_decision = {
      .epoch = decided.epoch(), .commit_number = decided.commit_number(), .decision = DecisionOf(decided.decision())};
  content.decided_by = {decided.active().begin(), decided.active().end()};
  content.client_states = {decided.client_states().states().begin(), decided.client_states().states().end()};
  return content;
}

std::vector<uint8_t> DecisionLog::CopyOf(const Content& content, int64_t sequence) {
  const std::string payload = MessageOf(content, sequence).SerializeAsString();
  const CopyHeader header{static_cast<uint32_t>(payload.size()), wire::Crc32c(payload)};
  std::vector<uint8_t> bytes(sizeof(header) + payload.size());
  std::memcpy(bytes.data(), &header, sizeof(header));
  std::memcpy(bytes.data() + sizeof(header), payload.data(), payload.size());
  return bytes;
}

absl::StatusOr<Disk::Descriptor> DecisionLog::Lock(DiskCalls* calls, const std::string& folder, int lent) {
  const Disk disk(calls);
  RETURN_IF_ERROR(CheckOwnFolder(disk, folder));
  absl::StatusOr<Disk::Descriptor> lock = disk.Lock((fs::path(folder) / kLockName).string(), lent);
  if (lock.ok()) return lock;
  return absl::Status(lock.status().code(),
                      absl::StrCat(lock.status().message(), ": only one node 0 may use a folder, and no other daemon"));
}

absl::StatusOr<std::unique_ptr<DecisionLog>> DecisionLog::Open(DiskCalls* calls, const std::string& folder, int lent) {
  ASSIGN_OR_RETURN(Disk::Descriptor lock, Lock(calls, folder, lent));
  ASSIGN_OR_RETURN(auto watch, DiskWatch::Start(absl::StrCat("--state-dir ", folder, ": all commits wait for it")));
  std::unique_ptr<DecisionLog> log(new DecisionLog(calls, folder, std::move(lock), std::move(watch)));
  RETURN_IF_ERROR(log->Read());
  return log;
}

absl::Status DecisionLog::Read() {
  std::error_code error;
  for (fs::directory_iterator it(folder_, error), end; !error && it != end; it.increment(error)) {
    const std::string path = it->path().string();
    // Left by a process that died before the file was whole: no node was told of its content.
    if (absl::EndsWith(path, kNewSuffix)) RETURN_IF_ERROR(disk_.RemoveFile(path));
    if (!absl::EndsWith(path, kSuffix)) continue;
    ASSIGN_OR_RETURN(const NewerCopy newer, ReadNewer(path));
    const v1::KeptEpoch& message = newer.message;
    if (PathOf(message.model()) != path) {
      return absl::DataLossError(absl::StrCat(path,
                                              ": want decisions of the model in the file's name, got those of model ",
                                              message.model(), ": rename the file to match, or remove it"));
    }
    Kept& kept = kept_[message.model()];
    kept = {.content = ContentOf(message), .sequence = message.sequence()};
    kept.copy_bytes = static_cast<int64_t>(fs::file_size(path, error)) / kCopies;
    if (error) break;
    if (!newer.has_mark) continue;
    ASSIGN_OR_RETURN(kept.file, disk_.Reopen(path));
    // Nodes are told only what is on the disk.
    if (!newer.is_marked && kept.file->Flush().ok()) WriteMark(kept);
  }
  if (!error) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(folder_, ": failed to read the folder: ", error.message()));
}

std::string DecisionLog::PathOf(absl::string_view model) const {
  return (fs::path(folder_) / (checkpoint::ModelFolderName(model) + kSuffix)).string();
}

absl::StatusOr<std::vector<ClosedEpoch>> DecisionLog::Reconcile(std::vector<ClosedEpoch> journals) {
  for (ClosedEpoch& journal : journals) {
    const auto found = kept_.find(journal.model);
    if (found == kept_.end() || found->second.content.epoch.history_id != journal.history_id) continue;
    const ClosedEpoch& known = found->second.content.epoch;
    if (known.epoch == journal.epoch) journal.active = known.active;
    journal.replaced = known.replaced;
    if (!SayTheSame(known, journal)) RETURN_IF_ERROR(Write({.epoch = journal}));
  }
  std::vector<ClosedEpoch> all = std::move(journals);
  for (const auto& [model, kept] : kept_) all.push_back(kept.content.epoch);
  return all;
}

absl::Status DecisionLog::BeginEpoch(ClosedEpoch begun) {
  Content next{.epoch = std::move(begun)};
  next.epoch.last_decision.reset();
  if (const auto found = kept_.find(next.epoch.model); found != kept_.end()) {
    const Content& before = found->second.content;
    const std::optional<ClosedEpoch::Decided>& last = before.epoch.last_decision;
    if (before.epoch.history_id == next.epoch.history_id && last.has_value() &&
        last->commit_number <= next.epoch.commit_number) {
      next.epoch.last_decision = last;
      next.decided_by = before.decided_by;
      next.client_states = before.client_states;
    }
  }
  return Write(std::move(next));
}

absl::Status DecisionLog::Decide(const std::string& model, int64_t commit_number, const CommitDecision& decision,
                                 std::vector<std::string> client_states) {
  Content next = kept_.at(model).content;
  next.epoch.commit_number = commit_number;
  // Save orders are not kept.
  next.epoch.last_decision = {
      .epoch = next.epoch.epoch,
      .commit_number = commit_number,
      .decision = {
          .apply = decision.apply, .square_sum = decision.square_sum, .non_finite_count = decision.non_finite_count}};
  next.decided_by = next.epoch.active;
  next.client_states = std::move(client_states);
  return Write(std::move(next));
}

std::optional<std::vector<std::string>> DecisionLog::SentByNode0(const CommitQuery& query, int node) const {
  const auto found = kept_.find(query.model);
  if (found == kept_.end()) return std::nullopt;
  const Content& content = found->second.content;
  const std::optional<ClosedEpoch::Decided>& last = content.epoch.last_decision;
  const bool is_asked = last.has_value() && content.epoch.history_id == query.history_id &&
                        last->epoch == query.epoch && last->commit_number == query.commit_number;
  const bool keeps =
      std::find(content.decided_by.begin(), content.decided_by.end(), node) != content.decided_by.end() &&
      PreviousNode(node, content.decided_by) == 0;
  if (!is_asked || !keeps || content.client_states.empty()) return std::nullopt;
  return content.client_states;
}

void DecisionLog::Forget(absl::string_view model) {
  const auto found = kept_.find(model);
  if (found == kept_.end()) return;
  kept_.erase(found);
  disk_.RemoveFile(PathOf(model)).IgnoreError();
}

absl::Status DecisionLog::Write(Content next) {
  const DiskWatch::Call call(watch_.get());
  Kept& kept = kept_[next.epoch.model];
  const std::vector<uint8_t> copy = CopyOf(next, kept.sequence + 1);
  const bool has_room = kept.file.has_value() && static_cast<int64_t>(copy.size()) <= kept.copy_bytes - kMarkBytes;
  const absl::Status written = has_room ? WriteCopy(kept, copy) : Replace(kept, next);
  if (written.ok()) {
    kept.content = std::move(next);
    return written;
  }
  // No node was told of the part that has reached the disk.
  if (kept.content.epoch.model.empty()) {
    kept_.erase(next.epoch.model);
  } else {
    TakeBack(kept, /*was_in_place=*/has_room);
  }
  return written;
}

void DecisionLog::TakeBack(Kept& kept, bool was_in_place) {
  std::optional<Disk::File> file = std::exchange(kept.file, std::nullopt);
  if (Replace(kept, kept.content).ok() || !was_in_place) return;
  // Overwrite the failed copy, with its number. If the disk refuses this too it may hold the failed copy, but all
  // voters of that commit are found without it.
  const std::vector<uint8_t> copy = CopyOf(kept.content, kept.sequence);
  if (file->WriteAt(kept.sequence % kCopies * kept.copy_bytes, copy).ok()) file->Flush().IgnoreError();
}

absl::Status DecisionLog::WriteCopy(Kept& kept, absl::Span<const uint8_t> copy) {
  const int64_t sequence = ++kept.sequence;
  RETURN_IF_ERROR(kept.file->WriteAt(sequence % kCopies * kept.copy_bytes, copy));
  RETURN_IF_ERROR(kept.file->Flush());
  WriteMark(kept);
  return absl::OkStatus();
}

// Without a mark, a copy that is damaged later is taken for a torn one. The next flush writes the mark to the disk.
void DecisionLog::WriteMark(Kept& kept) {
  const Mark mark = MarkOf(kept.sequence);
  kept.file->WriteAt(kCopies * kept.copy_bytes - kMarkBytes, BytesOf(mark)).IgnoreError();
}

absl::Status DecisionLog::Replace(Kept& kept, const Content& content) {
  const std::string path = PathOf(content.epoch.model);
  const std::string new_path = absl::StrCat(path.substr(0, path.size() - std::strlen(kSuffix)), kNewSuffix);
  const absl::Status removed = disk_.RemoveFile(new_path);
  if (!removed.ok() && !absl::IsNotFound(removed)) return removed;
  const int64_t sequence = kept.sequence + 1;
  const std::vector<uint8_t> copy = CopyOf(content, sequence);
  const int64_t copy_bytes = std::max<int64_t>(kLeastCopyBytes, 2 * std::bit_ceil(copy.size()));
  std::vector<uint8_t> bytes(kCopies * copy_bytes);
  std::copy(copy.begin(), copy.end(), bytes.begin() + sequence % kCopies * copy_bytes);
  // The file gets its name when it is whole.
  const Mark mark = MarkOf(sequence);
  std::copy_n(BytesOf(mark).begin(), kMarkBytes, bytes.end() - kMarkBytes);
  absl::StatusOr<Disk::File> file = MakeFile(new_path, path, bytes);
  if (!file.ok()) {
    disk_.RemoveFile(new_path).IgnoreError();  // frees its space
    return file.status();
  }
  kept.sequence = sequence;
  kept.copy_bytes = copy_bytes;
  kept.file = *std::move(file);
  return absl::OkStatus();
}

absl::StatusOr<Disk::File> DecisionLog::MakeFile(const std::string& new_path, const std::string& path,
                                                 absl::Span<const uint8_t> bytes) {
  ASSIGN_OR_RETURN(Disk::File file, disk_.Create(new_path));
  RETURN_IF_ERROR(file.WriteAt(0, bytes));
  RETURN_IF_ERROR(file.Flush());
  RETURN_IF_ERROR(disk_.Rename(new_path, path));
  RETURN_IF_ERROR(disk_.SyncFolder(folder_));
  return file;
}

}  // namespace paramshard::server
