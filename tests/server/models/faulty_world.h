// A world of devices that fail when a test says so.
#ifndef PARAMSHARD_TESTS_SERVER_MODELS_FAULTY_WORLD_H_
#define PARAMSHARD_TESTS_SERVER_MODELS_FAULTY_WORLD_H_

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "tests/server/device/faulty_device.h"
#include "tests/server/models/test_world.h"
#include "tests/server/state/test_spec.h"
#include "tests/support/environment.h"
#include "tests/support/status_matchers.h"

namespace paramshard::server {

// Two devices, or one GPU where there is one. Tests skip without any.
class FaultyWorldTest : public testing::Test {
 protected:
  void Open(EngineSettings engines = {}) {
    auto devices = OpenFaultyDevices(2, &faults_);
    if (!devices.ok() && test::TestDevices() == "cuda") GTEST_SKIP() << devices.status();
    ASSERT_OK(devices.status());
    for (const auto& device : *devices) devices_.push_back(device.get());
    world_.emplace(TestWorld::Options{.ranks = static_cast<int>(devices->size()),
                                      .make_device = [&](int rank) { return std::move((*devices)[rank]); },
                                      .engines = engines});
  }

  // Sums at the commit are insisted on: what is only tried is done without where there is no memory for it.
  static v1::ModelSpec Spec() {
    v1::ModelSpec spec =
        MakeSpec("m", {MakeUnit("a", {MakeParameter("a.w", {96, 64}, v1::FORMAT_MXFP8), MakeParameter("a.b", {64})}),
                       MakeUnit("b", {MakeParameter("b.w", {30, 64})})});
    spec.set_gradient_sums(v1::GRADIENT_SUMS_AT_COMMIT);
    return spec;
  }

  // Waits until what an epoch held is given up: its thread does so a moment after its trainers have heard of the end.
  bool SettlesAt(int64_t allocated_bytes) const {
    const absl::Time end = absl::Now() + absl::Seconds(30);
    while (faults_.allocated_bytes != allocated_bytes) {
      if (absl::Now() > end) return false;
      absl::SleepFor(absl::Milliseconds(1));
    }
    return true;
  }

  DeviceFaults faults_;
  std::vector<ComputeDevice*> devices_;
  std::optional<TestWorld> world_;
};

// An epoch of the model starts, takes a step without gradients, and ends.
inline void ExpectEpochWorks(Model& model) {
  const FakeTrainers trainers = AttachAll(model);
  const int64_t commit = model.committed().commits.numbers().commit_number + 1;
  for (const auto& trainer : trainers) trainer->Commit(commit);
  for (const auto& trainer : trainers) EXPECT_TRUE(trainer->AwaitCommitted(commit).has_value());
}

}  // namespace paramshard::server

#endif  // PARAMSHARD_TESTS_SERVER_MODELS_FAULTY_WORLD_H_
