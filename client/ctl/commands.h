// The commands of paramshardctl.
#ifndef PARAMSHARD_CLIENT_CTL_COMMANDS_H_
#define PARAMSHARD_CLIENT_CTL_COMMANDS_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "client/ctl/command.h"

namespace paramshard::ctl {

// Each command is defined in the file of its name.
extern const CommandInfo kModels;
extern const CommandInfo kShards;
extern const CommandInfo kDescribe;
extern const CommandInfo kStats;
extern const CommandInfo kSessions;
extern const CommandInfo kReaders;
extern const CommandInfo kMirrorList;
extern const CommandInfo kMirrorActivate;
extern const CommandInfo kMemory;
extern const CommandInfo kMetrics;
extern const CommandInfo kVerify;
extern const CommandInfo kDelete;
extern const CommandInfo kDrain;
extern const CommandInfo kRestart;
extern const CommandInfo kLogLevel;
extern const CommandInfo kTrace;
extern const CommandInfo kBundle;
extern const CommandInfo kVersion;
extern const CommandInfo kCodecEncode;
extern const CommandInfo kCodecDecode;
extern const CommandInfo kConvert;
extern const CommandInfo kImport;
extern const CommandInfo kExport;
extern const CommandInfo kSave;
extern const CommandInfo kSaves;
extern const CommandInfo kRestore;
extern const CommandInfo kHeal;
extern const CommandInfo kCheckpointVerify;
extern const CommandInfo kCheckpointList;
extern const CommandInfo kCheckpointDescribe;

// Commands below one heading of the help.
struct CommandSection {
  const char* heading;
  std::vector<const CommandInfo*> commands;
};

const std::vector<CommandSection>& CommandSections();

// Returns all commands, in the order of the help.
std::vector<const CommandInfo*> Commands();

// Returns the help of a group, the first word of commands of two words.
std::string GroupHelp(absl::string_view group);

}  // namespace paramshard::ctl

#endif  // PARAMSHARD_CLIENT_CTL_COMMANDS_H_
