#include "tests/server/training/command.h"

#include <utility>

namespace paramshard::server {

v1::Command GatherCommand(int64_t number, int unit, int slot, v1::Phase phase) {
  v1::Command command;
  command.set_number(number);
  command.mutable_gather()->set_unit(unit);
  command.mutable_gather()->set_slot(slot);
  command.mutable_gather()->set_phase(phase);
  return command;
}

v1::Command PushCommand(int64_t number, int unit, int slot, std::vector<int> absent) {
  v1::Command command;
  command.set_number(number);
  command.mutable_push()->set_unit(unit);
  command.mutable_push()->set_slot(slot);
  command.mutable_push()->mutable_absent_parameters()->Assign(absent.begin(), absent.end());
  return command;
}

v1::Command DiscardCommand(int64_t number) {
  v1::Command command;
  command.set_number(number);
  command.mutable_discard();
  return command;
}

v1::Command CommitCommand(int64_t number, int64_t commit_number, std::string client_state, int groups) {
  v1::Command command;
  command.set_number(number);
  v1::Commit& commit = *command.mutable_commit();
  commit.set_commit_number(commit_number);
  commit.set_client_state(std::move(client_state));
  for (int i = 0; i < groups; ++i) {
    v1::GroupHyperparameters& group = *commit.add_groups();
    group.set_learning_rate(0.1f);
    group.set_beta1(0.9f);
    group.set_beta2(0.99f);
    group.set_epsilon(1e-8f);
    group.set_momentum(0.9f);
    group.set_dampening(0.25f);
  }
  return command;
}

}  // namespace paramshard::server
