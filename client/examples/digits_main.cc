// paramshard-digits: one rank of the digits training.
#include "client/examples/digits_task.h"
#include "client/examples/training_program.h"

int main(int argc, char** argv) {
  using paramshard::examples::DigitsTask;
  return paramshard::examples::RunTrainingProgram(
      {.name = "paramshard-digits",
       .description = "Trains a perceptron on handwritten digits, with its weights in a paramshard daemon.",
       .defaults = DigitsTask::Defaults(),
       .create_task = DigitsTask::Create},
      argc, argv);
}
