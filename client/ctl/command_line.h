// What paramshardctl is asked to do.
#ifndef PARAMSHARD_CLIENT_CTL_COMMAND_LINE_H_
#define PARAMSHARD_CLIENT_CTL_COMMAND_LINE_H_

#include <cstdint>
#include <optional>
#include <ostream>
#include <string>

#include "absl/time/time.h"
#include "client/ctl/conversion.h"
#include "kernels/formats/format.h"

namespace paramshard::ctl {

enum class Command {
  kModels,
  kShards,
  kDescribe,
  kStats,
  kSessions,
  kMemory,
  kVerify,
  kDrain,
  kVersion,
  kCodecEncode,
  kCodecDecode,
  kConvert,
  kImport,
};

enum class Output { kTable, kJson };

// Members that a command does not take have their defaults.
struct CommandLine {
  Command command = Command::kModels;
  std::string socket_dir;  // empty: the default of client.h
  Output output = Output::kTable;
  std::optional<absl::Duration> timeout;  // unset: the defaults of AdminClient
  std::string model;
  std::string parameter;
  int page_size = 0;  // 0: the daemon's default
  int limit = 20;
  bool quiet = false;
  // codec: from a file to a directory (encode) or back (decode).
  Encoding encoding;
  float delayed_scale = 1.0f;
  Plane plane = Plane::kRowWise;
  std::optional<int64_t> columns;  // unset: the data says
  std::string input;
  std::string output_path;
  ConversionOptions conversion;
  bool progress = false;  // also where standard error is no terminal
  // import: `input` is the file.
  std::string map_path;
  bool partial = false;
};

// Reads the arguments into `command_line`. Returns an exit code when the program has nothing left to do: help or
// version has been written to `out`, or what is wrong with the arguments to `err`.
std::optional<int> ParseCommandLine(int argc, const char* const* argv, CommandLine& command_line, std::ostream& out,
                                    std::ostream& err);

// The words of a command: "models", "codec encode".
std::string CommandName(Command command);

}  // namespace paramshard::ctl

#endif  // PARAMSHARD_CLIENT_CTL_COMMAND_LINE_H_
