// Messages to trainers.
#ifndef PARAMSHARD_SERVER_SERVICE_TRAINER_MESSAGES_H_
#define PARAMSHARD_SERVER_SERVICE_TRAINER_MESSAGES_H_

#include "paramshard/v1/trainer.pb.h"
#include "server/store/model.h"
#include "server/store/trainer.h"

namespace paramshard::server {

v1::Model ToProto(const Model& model);
v1::EpochStarted ToProto(const EpochGreeting& greeting);
v1::EpochEnded ToProto(const EpochFarewell& farewell);

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_SERVICE_TRAINER_MESSAGES_H_
