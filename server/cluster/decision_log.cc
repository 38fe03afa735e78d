#include "server/cluster/decision_log.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "kernels/base/status_macros.h"
#include "paramshard/v1/cluster.pb.h"
#include "proto/checkpoint/step_folder.h"
#include "proto/safetensors/regular_file.h"
#include "proto/wire/crc32c.h"
#include "server/cluster/cluster_messages.h"
#include "server/disk/own_folder.h"

namespace paramshard::server {
namespace {

namespace fs = std::filesystem;

constexpr char kSuffix[] = ".decisions";
constexpr char kNewSuffix[] = ".decisions.new";
constexpr char kLockName[] = "lock";

// Room for a name, and for the device counts of a thousand nodes.
constexpr int64_t kCopyBytes = 16384;
constexpr int kCopies = 2;

// A copy begins with this, little-endian, as the machine is.
struct CopyHeader {
  uint32_t payload_bytes = 0;
  uint32_t crc = 0;  // CRC-32C of the payload
};

v1::KeptEpoch MessageOf(const ClosedEpoch& epoch, int64_t sequence) {
  v1::KeptEpoch message;
  message.set_model(epoch.model);
  message.set_history_id(epoch.history_id);
  message.set_epoch(epoch.epoch);
  message.set_commit_number(epoch.commit_number);
  message.mutable_device_counts()->Add(epoch.device_counts.begin(), epoch.device_counts.end());
  message.set_sequence(sequence);
  if (epoch.last_decision.has_value()) {
    v1::KeptEpoch::Decided& decided = *message.mutable_last_decision();
    decided.set_epoch(epoch.last_decision->epoch);
    decided.set_commit_number(epoch.last_decision->commit_number);
    *decided.mutable_decision() = DecisionMessage(epoch.last_decision->decision);
  }
  return message;
}

ClosedEpoch EpochOf(const v1::KeptEpoch& message) {
  ClosedEpoch epoch{.model = message.model(),
                    .history_id = message.history_id(),
                    .epoch = message.epoch(),
                    .commit_number = message.commit_number(),
                    .device_counts = {message.device_counts().begin(), message.device_counts().end()},
                    .may_be_old = true};
  if (message.has_last_decision()) {
    const v1::KeptEpoch::Decided& decided = message.last_decision();
    epoch.last_decision = {
        .epoch = decided.epoch(), .commit_number = decided.commit_number(), .decision = DecisionOf(decided.decision())};
  }
  return epoch;
}

absl::StatusOr<std::vector<uint8_t>> CopyOf(const ClosedEpoch& epoch, int64_t sequence) {
  const std::string payload = MessageOf(epoch, sequence).SerializeAsString();
  if (payload.size() + sizeof(CopyHeader) > kCopyBytes) {
    return absl::ResourceExhaustedError(absl::StrCat("decisions of model ", epoch.model, ": at most ", kCopyBytes,
                                                     " bytes expected, got ", payload.size()));
  }
  const CopyHeader header{static_cast<uint32_t>(payload.size()), wire::Crc32c(payload)};
  std::vector<uint8_t> bytes(sizeof(header) + payload.size());
  std::memcpy(bytes.data(), &header, sizeof(header));
  std::memcpy(bytes.data() + sizeof(header), payload.data(), payload.size());
  return bytes;
}

// Nothing where the copy is torn, or was never written.
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

absl::StatusOr<v1::KeptEpoch> ReadNewer(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string file, safetensors::ReadWholeFile(path, kCopies * kCopyBytes));
  std::optional<v1::KeptEpoch> newer;
  for (int copy = 0; copy < kCopies; ++copy) {
    const auto begin = std::min(file.size(), static_cast<size_t>(copy * kCopyBytes));
    std::optional<v1::KeptEpoch> message = ReadCopy(absl::string_view(file).substr(begin, kCopyBytes));
    if (message.has_value() && (!newer.has_value() || message->sequence() > newer->sequence())) {
      newer = std::move(message);
    }
  }
  if (newer.has_value()) return *std::move(newer);
  return absl::DataLossError(
      absl::StrCat(path, ": one whole copy of two expected, got none: the disk has lost what ",
                   "was on it. Without the file daemons may stay in doubt of a commit: remove it ", "to go on"));
}

bool SayTheSame(const ClosedEpoch& a, const ClosedEpoch& b) {
  return MessageOf(a, 0).SerializeAsString() == MessageOf(b, 0).SerializeAsString();
}

}  // namespace

absl::StatusOr<std::unique_ptr<DecisionLog>> DecisionLog::Open(DiskCalls* calls, const std::string& folder) {
  const Disk disk(calls);
  RETURN_IF_ERROR(CheckOwnFolder(disk, folder));
  absl::StatusOr<Disk::Descriptor> lock = disk.Lock((fs::path(folder) / kLockName).string());
  if (!lock.ok()) {
    return absl::Status(lock.status().code(),
                        absl::StrCat(lock.status().message(), ": one node 0 has a folder, and no other daemon"));
  }
  std::unique_ptr<DecisionLog> log(new DecisionLog(calls, folder, *std::move(lock)));
  RETURN_IF_ERROR(log->Read());
  return log;
}

absl::Status DecisionLog::Read() {
  std::error_code error;
  for (fs::directory_iterator it(folder_, error), end; !error && it != end; it.increment(error)) {
    const std::string path = it->path().string();
    // Of a process that died before the file was whole: what stands there was told to nobody.
    if (absl::EndsWith(path, kNewSuffix)) RETURN_IF_ERROR(disk_.RemoveFile(path));
    if (!absl::EndsWith(path, kSuffix)) continue;
    ASSIGN_OR_RETURN(const v1::KeptEpoch message, ReadNewer(path));
    if (PathOf(message.model()) != path) {
      return absl::DataLossError(absl::StrCat(path, ": decisions of that model expected, got those of model ",
                                              message.model(), ": give the file its name back, or remove it"));
    }
    kept_[message.model()] = {.epoch = EpochOf(message), .sequence = message.sequence()};
  }
  if (!error) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(folder_, ": a folder that can be read expected: ", error.message()));
}

std::string DecisionLog::PathOf(absl::string_view model) const {
  return (fs::path(folder_) / (checkpoint::ModelFolderName(model) + kSuffix)).string();
}

absl::StatusOr<std::vector<ClosedEpoch>> DecisionLog::Reconcile(std::vector<ClosedEpoch> journals) {
  for (const ClosedEpoch& journal : journals) {
    const auto found = kept_.find(journal.model);
    if (found == kept_.end() || found->second.epoch.history_id != journal.history_id) continue;
    if (!SayTheSame(found->second.epoch, journal)) RETURN_IF_ERROR(Write(journal));
  }
  std::vector<ClosedEpoch> all = std::move(journals);
  for (const auto& [model, kept] : kept_) all.push_back(kept.epoch);
  return all;
}

absl::Status DecisionLog::BeginEpoch(ClosedEpoch begun) {
  begun.last_decision.reset();
  if (const auto found = kept_.find(begun.model); found != kept_.end()) {
    const ClosedEpoch& before = found->second.epoch;
    const bool holds = before.history_id == begun.history_id && before.last_decision.has_value() &&
                       before.last_decision->commit_number <= begun.commit_number;
    if (holds) begun.last_decision = before.last_decision;
  }
  return Write(std::move(begun));
}

absl::Status DecisionLog::Decide(const std::string& model, int64_t commit_number, const CommitDecision& decision) {
  ClosedEpoch next = kept_.at(model).epoch;
  next.commit_number = commit_number;
  // Orders of saves and client states are of the moment.
  next.last_decision = {
      .epoch = next.epoch,
      .commit_number = commit_number,
      .decision = {
          .apply = decision.apply, .square_sum = decision.square_sum, .non_finite_count = decision.non_finite_count}};
  return Write(std::move(next));
}

void DecisionLog::Forget(absl::string_view model) {
  const auto found = kept_.find(model);
  if (found == kept_.end()) return;
  kept_.erase(found);
  disk_.RemoveFile(PathOf(model)).IgnoreError();
}

absl::Status DecisionLog::Write(ClosedEpoch next) {
  Kept& kept = kept_[next.model];
  const absl::Status written = kept.file.has_value() ? WriteCopy(kept, next) : Replace(kept, next);
  if (written.ok()) {
    kept.epoch = std::move(next);
    return written;
  }
  // Whatever of it has reached the disk was told to nobody.
  if (kept.epoch.model.empty()) {
    kept_.erase(next.model);
  } else {
    kept.file.reset();
    Replace(kept, kept.epoch).IgnoreError();
  }
  return written;
}

absl::Status DecisionLog::WriteCopy(Kept& kept, const ClosedEpoch& epoch) {
  const int64_t sequence = ++kept.sequence;
  ASSIGN_OR_RETURN(const std::vector<uint8_t> bytes, CopyOf(epoch, sequence));
  RETURN_IF_ERROR(kept.file->WriteAt(sequence % kCopies * kCopyBytes, bytes));
  return kept.file->Flush();
}

absl::Status DecisionLog::Replace(Kept& kept, const ClosedEpoch& epoch) {
  const std::string path = PathOf(epoch.model);
  const std::string new_path = absl::StrCat(path.substr(0, path.size() - std::strlen(kSuffix)), kNewSuffix);
  const absl::Status removed = disk_.RemoveFile(new_path);
  if (!removed.ok() && !absl::IsNotFound(removed)) return removed;
  const int64_t sequence = kept.sequence + 1;
  std::vector<uint8_t> bytes(kCopies * kCopyBytes);
  ASSIGN_OR_RETURN(const std::vector<uint8_t> copy, CopyOf(epoch, sequence));
  std::copy(copy.begin(), copy.end(), bytes.begin() + sequence % kCopies * kCopyBytes);
  ASSIGN_OR_RETURN(Disk::File file, disk_.Create(new_path));
  RETURN_IF_ERROR(file.WriteAt(0, bytes));
  RETURN_IF_ERROR(file.Flush());
  RETURN_IF_ERROR(disk_.Rename(new_path, path));
  RETURN_IF_ERROR(disk_.SyncFolder(folder_));
  kept.sequence = sequence;
  kept.file = std::move(file);
  return absl::OkStatus();
}

}  // namespace paramshard::server
