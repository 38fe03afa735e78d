#include "client/ctl/commands.h"

namespace paramshard::ctl {
const std::vector<CommandSection>& CommandSections() {
  static const auto* const sections = new std::vector<CommandSection>{
      {"What runs", {&kVersion, &kModels, &kSessions, &kReaders, &kMemory, &kMetrics}},
      {"Parameters", {&kShards, &kDescribe, &kStats, &kVerify}},
      {"Support", {&kTrace, &kBundle}},
      {"Save and restore", {&kSave, &kSaves, &kRestore, &kCheckpointList, &kCheckpointDescribe, &kCheckpointVerify}},
      {"Files", {&kExport, &kConvert, &kImport, &kCodecEncode, &kCodecDecode}},
      {"Change what runs", {&kHeal, &kMirrorList, &kMirrorActivate, &kRestart, &kDrain, &kDelete, &kLogLevel}},
  };
  return *sections;
}

std::vector<const CommandInfo*> Commands() {
  std::vector<const CommandInfo*> all;
  for (const CommandSection& section : CommandSections()) {
    all.insert(all.end(), section.commands.begin(), section.commands.end());
  }
  return all;
}

std::string GroupHelp(absl::string_view group) {
  if (group == "mirror") return "look at mirrors, and change them over to a version";
  if (group == "checkpoint") return "look at saved models, without a daemon";
  return group == "codec" ? "encode or decode one matrix, without a daemon" : "";
}

}  // namespace paramshard::ctl
