// One model, and a trainer of the test's own process for each rank. The tests of `Model` stand in files by subject.
#ifndef PARAMSHARD_TESTS_SERVER_MODELS_MODEL_FIXTURE_H_
#define PARAMSHARD_TESTS_SERVER_MODELS_MODEL_FIXTURE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/shared_memory/ring.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "paramshard/v1/trainer.pb.h"
#include "server/models/model.h"
#include "tests/server/models/fake_trainer.h"
#include "tests/server/models/test_world.h"

namespace paramshard::server {

// Units: 24 floats that begin at 1, and MXFP8 matrices whose cut is uneven on two ranks. Every unit fits every slot.
inline constexpr int kW = 0;
inline constexpr int kMx = 1;
inline constexpr int kElements = 24;
inline constexpr float kLearningRate = 0.1f;  // as CommitCommand has it

v1::ModelSpec TestSpec();

class ModelTest : public testing::Test {
 protected:
  void SetUp() override { Open(TestSpec()); }

  void Open(const v1::ModelSpec& spec, TestWorld::Options options = {});
  // Nothing of the daemon is left: what a test's options point to may go.
  void CloseWorld();
  void Attach() { trainers_ = AttachAll(*model_); }
  FakeTrainer& trainer(int rank) { return *trainers_[rank]; }
  int64_t commit_number() const { return model_->committed().commits.numbers().commit_number; }

  // Every rank r pushes `gradients(r)` for the unit.
  void Push(int unit, const std::function<float(int)>& gradients);
  // The answer that all ranks get.
  wire::CommitRecord Commit(const std::function<void(v1::Commit&)>& change = {});
  // A step of the unit w on all ranks with some gradients.
  void Step(float gradient = 0.5f);

  // Waits until a rank is said to wait for something. A look a time; half a minute at most.
  bool AwaitWait(const std::string& what) const;

  // All rows of a unit's only parameter.
  std::vector<float> Read(int unit, StateTensor tensor) const;
  static auto All(float value, float tolerance = 1e-6f) { return testing::Each(testing::FloatNear(value, tolerance)); }

  // The end that all trainers are told.
  void ExpectEnded(absl::StatusCode code, const testing::Matcher<std::string>& message);
  // Checks that the model is as good as before: another epoch takes a step.
  void ExpectNextEpochWorks();

  std::unique_ptr<TestWorld> world_;
  std::shared_ptr<Model> model_;
  FakeTrainers trainers_;  // before the model, which they leave
  int64_t last_push_ = 0;
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_TESTS_SERVER_MODELS_MODEL_FIXTURE_H_
