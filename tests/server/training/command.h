// Commands as a trainer sends them.
#ifndef PARAMSHARD_TESTS_SERVER_TRAINING_COMMAND_H_
#define PARAMSHARD_TESTS_SERVER_TRAINING_COMMAND_H_

#include <cstdint>
#include <string>
#include <vector>

#include "paramshard/v1/trainer.pb.h"

namespace paramshard::server {

v1::Command GatherCommand(int64_t number, int unit, int slot, v1::Phase phase = v1::PHASE_FORWARD);
v1::Command PushCommand(int64_t number, int unit, int slot, std::vector<int> absent = {});
v1::Command DiscardCommand(int64_t number);
// With hyper-parameters of `groups` groups: learning rate 0.1, betas 0.9 and 0.99, epsilon 1e-8, no weight decay.
v1::Command CommitCommand(int64_t number, int64_t commit_number, std::string client_state = "", int groups = 1);

}  // namespace paramshard::server

#endif  // PARAMSHARD_TESTS_SERVER_TRAINING_COMMAND_H_
