// Commands in words, for people and to compare them between daemons.
#ifndef PARAMSHARD_SERVER_TRAINING_COMMAND_TEXT_H_
#define PARAMSHARD_SERVER_TRAINING_COMMAND_TEXT_H_

#include <string>

#include "common/model/model_spec.h"
#include "paramshard/v1/trainer.pb.h"

namespace paramshard::server {

// Returns a short name for messages: "gather layer1 forward into slot 0", "commit 5". Takes any command.
std::string CommandName(const ModelSpec& spec, const v1::Command& command);

// Returns all that ranks must agree on: the name, and for a commit its hyper-parameters too. Two commands of one number
// have the same text if and only if they are equal but for what is each rank's own: client state and absent parameters.
std::string CommandText(const ModelSpec& spec, const v1::Command& command);

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_TRAINING_COMMAND_TEXT_H_
