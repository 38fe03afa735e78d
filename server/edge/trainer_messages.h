// Messages to trainers.
#ifndef PARAMSHARD_SERVER_EDGE_TRAINER_MESSAGES_H_
#define PARAMSHARD_SERVER_EDGE_TRAINER_MESSAGES_H_

#include "paramshard/v1/trainer.pb.h"
#include "server/models/model.h"
#include "server/training/trainer.h"

namespace paramshard::server {

v1::Model ToProto(const Model& model);
v1::EpochStarted ToProto(const EpochStartInfo& greeting);
v1::EpochEnded ToProto(const EpochEndInfo& farewell);

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_EDGE_TRAINER_MESSAGES_H_
