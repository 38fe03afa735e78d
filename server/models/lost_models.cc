#include "server/models/lost_models.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "server/observe/log.h"

namespace paramshard::server {
namespace {

// Largest size of the text that says why a model is lost.
constexpr size_t kMostMarkBytes = 1024;

}  // namespace

absl::Status LostModels::Describe(absl::string_view name, absl::string_view why) const {
  return absl::DataLossError(absl::StrCat(
      "model ", name, ": its state was lost with the server before this one (", why,
      options_.is_one_of_several ? "); where another daemon holds a replica, that heals it when trainers come; "
                                   "else delete it, create it without a restore, and restore it at node "
                                   "0, or import into every daemon"
                                 : "); create it with a restore; or delete it, create it, and import"));
}

void LostModels::Add(const std::string& name, absl::string_view why, std::optional<ChangeSource> source,
                     bool was_restored) {
  options_.log->Write(LogLevel::kError, "model is lost", {{"model", name}, {"why", Describe(name, why).ToString()}});
  absl::MutexLock lock(&mu_);
  losses_[name] = {.why = std::string(why), .source = std::move(source), .was_restored = was_restored};
}

absl::Status LostModels::Check(absl::string_view name) const {
  absl::MutexLock lock(&mu_);
  const auto found = losses_.find(name);
  return found == losses_.end() ? absl::OkStatus() : Describe(name, found->second.why);
}

std::optional<ChangeSource> LostModels::SourceOf(absl::string_view name) const {
  absl::MutexLock lock(&mu_);
  const auto found = losses_.find(name);
  return found == losses_.end() ? std::nullopt : found->second.source;
}

bool LostModels::WasBeingRestored(absl::string_view name) const {
  absl::MutexLock lock(&mu_);
  const auto found = losses_.find(name);
  return found != losses_.end() && found->second.was_restored;
}

std::string LostModels::WhyOf(absl::string_view name) const {
  absl::MutexLock lock(&mu_);
  const auto found = losses_.find(name);
  return found == losses_.end() ? "" : found->second.why;
}

void LostModels::Report(Cluster& cluster, const std::string& name, absl::string_view why) const {
  ModelReport report;
  report.model = name;
  report.lost = Describe(name, why);
  cluster.Send(report).IgnoreError();
}

std::map<std::string, absl::Status, std::less<>> LostModels::List() const {
  absl::MutexLock lock(&mu_);
  std::map<std::string, absl::Status, std::less<>> lost;
  for (const auto& [name, loss] : losses_) lost[name] = Describe(name, loss.why);
  return lost;
}

absl::Status LostModels::Free(const std::string& name) {
  std::string why;
  {
    absl::MutexLock lock(&mu_);
    const auto found = losses_.find(name);
    if (found == losses_.end()) return absl::OkStatus();
    why = found->second.why;
  }
  RETURN_IF_ERROR(MakeMark(name, why));
  RETURN_IF_ERROR(KeptMemory(name, options_.kept).DropAllBut(kLostPiece));
  LogFreed(name);
  return absl::OkStatus();
}

void LostModels::End(const std::string& name) {
  {
    absl::MutexLock lock(&mu_);
    if (losses_.erase(name) == 0) return;
  }
  const absl::Status dropped = KeptMemory(name, options_.kept).DropPieces(kLostPiece);
  if (dropped.ok()) return;
  options_.log->Write(LogLevel::kWarning, "memory of a model is still kept",
                      {{"model", name}, {"why", dropped.ToString()}});
}

absl::Status LostModels::FreeAll(const std::string& name) {
  RETURN_IF_ERROR(KeptMemory(name, options_.kept).Drop());
  LogFreed(name);
  return absl::OkStatus();
}

void LostModels::Forget(const std::string& name) {
  absl::MutexLock lock(&mu_);
  losses_.erase(name);
}

absl::Status LostModels::MakeMark(const std::string& name, absl::string_view why) const {
  return KeptMemory(name, options_.kept)
      .KeepText(kLostPiece, why.empty() ? "its state was lost" : why.substr(0, kMostMarkBytes));
}

std::string LostModels::ReadMark(KeptMemory& memory) {
  const absl::StatusOr<const Memory*> mark = memory.AdoptHostPiece(kLostPiece);
  if (!mark.ok()) return std::string(mark.status().message());
  const auto* const text = reinterpret_cast<const char*>((*mark)->data());
  const size_t size = std::min<size_t>((*mark)->size_bytes(), kMostMarkBytes);
  return absl::CHexEscape({text, strnlen(text, size)});
}

void LostModels::LogFreed(const std::string& name) const {
  options_.log->Write(LogLevel::kInfo, "freed memory of a lost model", {{"model", name}});
}

}  // namespace paramshard::server
