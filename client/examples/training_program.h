// The common part of the training programs: their command line and exit code.
#ifndef PARAMSHARD_CLIENT_EXAMPLES_TRAINING_PROGRAM_H_
#define PARAMSHARD_CLIENT_EXAMPLES_TRAINING_PROGRAM_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "client/examples/task.h"
#include "client/examples/trainer.h"

namespace paramshard::examples {

struct TrainingProgram {
  std::string name;
  std::string description;
  TrainerOptions defaults;  // defaults of the arguments
  std::function<absl::StatusOr<std::unique_ptr<Task>>()> create_task;
};

// Runs one rank's training to its end, as the arguments say. Returns the exit code: 0; 1 with the error on standard
// error; or CLI11's code for wrong arguments.
int RunTrainingProgram(const TrainingProgram& program, int argc, char** argv);

}  // namespace paramshard::examples

#endif  // PARAMSHARD_CLIENT_EXAMPLES_TRAINING_PROGRAM_H_
