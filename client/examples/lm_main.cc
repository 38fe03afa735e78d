// paramshard-lm: one rank of the training of a language model.
#include "client/examples/language_task.h"
#include "client/examples/training_program.h"

int main(int argc, char** argv) {
  using paramshard::examples::LanguageTask;
  return paramshard::examples::RunTrainingProgram(
      {.name = "paramshard-lm",
       .description = "Trains a small transformer on a novel, with its weights in a paramshard daemon.",
       .defaults = LanguageTask::Defaults(),
       .create_task = LanguageTask::Create},
      argc, argv);
}
