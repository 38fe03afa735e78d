#include "server/training/command_queues.h"

#include <algorithm>
#include <utility>

namespace paramshard::server {
namespace {

size_t SizeBytes(const std::vector<int32_t>& parameters) { return parameters.size() * sizeof(int32_t); }

}  // namespace

int CommandQueues::Room(int rank, int64_t most_commands, size_t most_bytes) const {
  const int64_t behind = end_number() - 1 - received_[rank];
  if (bytes_ >= most_bytes) return static_cast<int>(behind);
  return static_cast<int>(behind + std::max<int64_t>(0, most_commands - static_cast<int64_t>(commands_.size())));
}

void CommandQueues::Append(QueuedCommand command) {
  command.client_states.resize(ranks_);
  if (command.command.has_commit() && !command.repeats) commits_.push_back(command.command.number());
  bytes_ += command.canonical.size();
  commands_.push_back(std::move(command));
}

bool CommandQueues::Receive(int rank, int64_t number, std::string client_state, std::vector<int32_t> absent) {
  received_[rank] = number;
  QueuedCommand& command = At(number);
  bytes_ += client_state.size();
  command.client_states[rank] = std::move(client_state);
  if (!absent.empty()) {
    bytes_ += SizeBytes(absent);
    command.absent.resize(ranks_);
    command.absent[rank] = std::move(absent);
  }
  return ++command.arrived == ranks_;
}

void CommandQueues::Enqueue(int rank, const QueuedCommand& command, SteadyTime now) {
  if (command.repeats) return Finish(command.command.number());
  CommandQueue& queue = command.command.has_gather() ? gathers_[rank] : pushes_[rank];
  if (queue.numbers.empty()) queue.changed_at = now;
  queue.numbers.push_back(command.command.number());
}

void CommandQueues::Pop(CommandQueue& queue, SteadyTime now) {
  const int64_t number = queue.numbers.front();
  queue.numbers.pop_front();
  --queue.begun;
  queue.changed_at = now;
  Finish(number);
}

void CommandQueues::Finish(int64_t number) {
  ++At(number).finished;
  while (!commands_.empty() && commands_.front().finished == ranks_) {
    const QueuedCommand& done = commands_.front();
    bytes_ -= done.canonical.size();
    for (const std::string& state : done.client_states) bytes_ -= state.size();
    for (const std::vector<int32_t>& absent : done.absent) bytes_ -= SizeBytes(absent);
    commands_.pop_front();
    ++first_number_;
  }
}

std::vector<std::string> CommandQueues::AnswerCommit() {
  std::vector<std::string> client_states = std::exchange(At(commits_.front()).client_states, {});
  for (const std::string& state : client_states) bytes_ -= state.size();
  commits_.pop_front();
  return client_states;
}

bool CommandQueues::HasGathered(int rank, int64_t number) const {
  const CommandQueue& queue = gathers_[rank];
  return queue.numbers.empty() || queue.numbers.front() > number;
}

bool CommandQueues::IsBusy() const {
  const auto busy = [](const CommandQueue& queue) { return queue.begun > 0; };
  return std::any_of(gathers_.begin(), gathers_.end(), busy) || std::any_of(pushes_.begin(), pushes_.end(), busy);
}

}  // namespace paramshard::server
