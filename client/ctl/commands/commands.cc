#include "client/ctl/commands.h"

namespace paramshard::ctl {
namespace {

constexpr const CommandInfo* kCommands[] = {&kModels,
                                            &kShards,
                                            &kDescribe,
                                            &kStats,
                                            &kSessions,
                                            &kMemory,
                                            &kMetrics,
                                            &kVerify,
                                            &kDelete,
                                            &kDrain,
                                            &kRestart,
                                            &kLogLevel,
                                            &kTrace,
                                            &kBundle,
                                            &kVersion,
                                            &kCodecEncode,
                                            &kCodecDecode,
                                            &kConvert,
                                            &kImport,
                                            &kExport,
                                            &kSave,
                                            &kSaves,
                                            &kRestore,
                                            &kHeal,
                                            &kCheckpointVerify,
                                            &kCheckpointList,
                                            &kCheckpointDescribe};

}  // namespace

absl::Span<const CommandInfo* const> Commands() { return kCommands; }

std::string GroupHelp(absl::string_view group) {
  if (group == "checkpoint") return "look at saved models, without a daemon";
  return group == "codec" ? "encode or decode one matrix, without a daemon" : "";
}

}  // namespace paramshard::ctl
