// Header that ranks of different daemons exchange before the bytes of a command move.
#ifndef PARAMSHARD_SERVER_DATA_PLANE_COMMAND_HEADER_H_
#define PARAMSHARD_SERVER_DATA_PLANE_COMMAND_HEADER_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/model/model_spec.h"
#include "server/base/steady_time.h"
#include "server/data_plane/absent_gradients.h"
#include "server/data_plane/collectives.h"
#include "server/data_plane/mesh.h"

namespace paramshard::server {

// Sent as it lies in memory: daemons of one world run on machines of one kind.
struct CommandHeader {
  enum Kind : int64_t { kGather = 1, kReduce = 2 };

  int64_t kind = 0;
  int64_t number = 0;
  int64_t unit = 0;
  int64_t phase = 0;
  int64_t slot = 0;
  // For a push: 1 if parameters are absent on the sender, whose bitmap follows. Each rank's own.
  int64_t has_absent = 0;

  static CommandHeader Of(const GatherCall& call);
  static CommandHeader Of(const ReduceCall& call);
};

// Ignores what is each rank's own.
bool operator==(const CommandHeader& a, const CommandHeader& b);

// "command 5 gather(blocks.0, forward, slot 1)"
std::string HeaderText(const CommandHeader& header, const ModelSpec& model);

// Exchanges headers with all members. OK when all are equal; FAILED_PRECONDITION names this rank, the first that
// differs, and both commands; else the mesh's error.
absl::Status AgreeOnCommand(Mesh& mesh, const CommandHeader& header, const ModelSpec& model, SteadyTime deadline);

// Does the same for a push, and returns what is absent on each member. Members tell each other `absent`, their own
// parameters without a gradient: nothing more moves where there are none.
absl::StatusOr<AbsentGradients> AgreeOnPush(Mesh& mesh, const ReduceCall& call, absl::Span<const int32_t> absent,
                                            const ModelSpec& model, SteadyTime deadline);

// Returns `status` with the command that it ended in front of the message.
absl::Status InCommand(const absl::Status& status, const CommandHeader& header, const ModelSpec& model);

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_DATA_PLANE_COMMAND_HEADER_H_
