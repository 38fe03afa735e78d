// Messages to trainers.
#ifndef PARAMSHARD_SERVER_EDGE_TRAINER_MESSAGES_H_
#define PARAMSHARD_SERVER_EDGE_TRAINER_MESSAGES_H_

#include "paramshard/v1/trainer.pb.h"
#include "server/models/model.h"
#include "server/training/trainer.h"

namespace paramshard::server {

v1::Model ToProto(const Model& model);
v1::EpochStarted ToProto(const EpochGreeting& greeting);
v1::EpochEnded ToProto(const EpochFarewell& farewell);

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_EDGE_TRAINER_MESSAGES_H_
