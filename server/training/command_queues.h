// Commands of an epoch that are not finished, and the ranks' queues of them.
#ifndef PARAMSHARD_SERVER_TRAINING_COMMAND_QUEUES_H_
#define PARAMSHARD_SERVER_TRAINING_COMMAND_QUEUES_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "absl/numeric/int128.h"
#include "paramshard/v1/trainer.pb.h"
#include "server/base/clock.h"

namespace paramshard::server {

struct QueuedCommand {
  v1::Command command;    // without what each rank sends of its own
  std::string canonical;  // its bytes, for comparison
  int first_rank = 0;
  int arrived = 0;
  int finished = 0;
  SteadyTime first_arrival;
  SteadyTime agreed_at;
  // Gather: the number that used the slot before. Commit: the last number in every slot.
  std::vector<int64_t> slot_users;
  std::vector<std::string> client_states;    // of a commit, by rank
  std::vector<std::vector<int32_t>> absent;  // of a push, by rank; empty while no rank is without a gradient
  bool repeats = false;
  absl::uint128 chained = 0;  // the commands through this one, once all have sent it
};

// Gathers of a rank, or its pushes, commits and discards: in order.
struct CommandQueue {
  std::deque<int64_t> numbers;
  size_t begun = 0;  // of them, the first; of pushes at most one
  SteadyTime changed_at;

  bool HasNext() const { return begun < numbers.size(); }
  int64_t next() const { return numbers[begun]; }
};

// Commands count from 1, in the order in which ranks send them. A command is agreed when all ranks have sent it, and
// goes when all have finished it.
class CommandQueues {
 public:
  explicit CommandQueues(int ranks) : ranks_(ranks), received_(ranks, 0), gathers_(ranks), pushes_(ranks) {}

  // Returns the number of the first command that no rank has sent.
  int64_t end_number() const { return first_number_ + static_cast<int64_t>(commands_.size()); }
  // Returns how many more commands the rank may send, of at most `most_commands` with `most_bytes` together. Commands
  // that other ranks have sent before are always taken: they cost nothing, and finishing them makes room.
  int Room(int rank, int64_t most_commands, size_t most_bytes) const;
  // Adds the command `end_number()`, which a rank has sent first.
  void Append(QueuedCommand command);
  // Records that the rank has sent the command; returns true if all have now.
  bool Receive(int rank, int64_t number, std::string client_state, std::vector<int32_t> absent);
  // Puts the command into one of the rank's queues; one that repeats has nothing left to do.
  void Enqueue(int rank, const QueuedCommand& command, SteadyTime now);
  // Takes the first command out of a queue: the rank has finished it.
  void Pop(CommandQueue& queue, SteadyTime now);
  // Returns what the ranks sent with the first unanswered commit, which is answered from now on.
  std::vector<std::string> AnswerCommit();

  int ranks() const { return ranks_; }
  const std::deque<QueuedCommand>& commands() const { return commands_; }
  const QueuedCommand& At(int64_t number) const { return commands_[number - first_number_]; }
  QueuedCommand& At(int64_t number) { return commands_[number - first_number_]; }
  int64_t received(int rank) const { return received_[rank]; }
  CommandQueue& gathers(int rank) { return gathers_[rank]; }
  CommandQueue& pushes(int rank) { return pushes_[rank]; }
  const CommandQueue& gathers(int rank) const { return gathers_[rank]; }
  const CommandQueue& pushes(int rank) const { return pushes_[rank]; }
  // Command numbers of unanswered commits.
  const std::deque<int64_t>& commits() const { return commits_; }

  bool IsAgreed(const QueuedCommand& command) const { return command.arrived == ranks_; }
  bool IsFinished(int64_t number) const { return number < first_number_ || At(number).finished == ranks_; }
  // Returns true if everything up to the command is done by all ranks.
  bool AreAllFinished(int64_t number) const { return number < first_number_; }
  bool IsBehindCommit(int64_t number) const { return !commits_.empty() && commits_.front() < number; }
  // Returns true if the rank's gathers before the command are done.
  bool HasGathered(int rank, int64_t number) const;
  // Returns true if a rank works on a command.
  bool IsBusy() const;
  // Returns true if the rank has sent commands that are not finished.
  bool IsPending(int rank) const { return !gathers_[rank].numbers.empty() || !pushes_[rank].numbers.empty(); }

 private:
  void Finish(int64_t number);

  const int ranks_;
  std::deque<QueuedCommand> commands_;
  size_t bytes_ = 0;          // of commands_
  int64_t first_number_ = 1;  // of commands_.front()
  std::vector<int64_t> received_;
  std::vector<CommandQueue> gathers_, pushes_;
  std::deque<int64_t> commits_;
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_TRAINING_COMMAND_QUEUES_H_
