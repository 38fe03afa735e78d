#include "tests/server/models/model_fixture.h"

#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "tests/server/state/test_spec.h"
#include "tests/server/training/command.h"

namespace paramshard::server {

v1::ModelSpec TestSpec() {
  v1::ModelSpec spec = MakeSpec("m", {MakeUnit("w", {MakeParameter("w.w", {6, 4})}),
                                      MakeUnit("mx", {MakeParameter("mx.w", {96, 32}, v1::FORMAT_MXFP8)}),
                                      MakeUnit("my", {MakeParameter("my.w", {96, 32}, v1::FORMAT_MXFP8)})});
  spec.mutable_units(0)->mutable_parameters(0)->mutable_initial_value()->mutable_constant()->set_value(1);
  spec.mutable_units(1)->mutable_parameters(0)->mutable_initial_value()->mutable_normal()->set_standard_deviation(1);
  spec.set_gather_slots(2);
  spec.set_gradient_slots(2);
  return spec;
}

void ModelTest::Open(const v1::ModelSpec& spec, TestWorld::Options options) {
  trainers_.clear();
  model_.reset();
  world_ = std::make_unique<TestWorld>(options);
  model_ = world_->Create(spec);
}

void ModelTest::CloseWorld() {
  trainers_.clear();
  model_.reset();
  world_.reset();
}

void ModelTest::Push(int unit, const std::function<float(int)>& gradients) {
  for (const auto& trainer : trainers_) {
    trainer->FillGradients(0, unit, gradients(trainer->rank()));
    const int64_t number = trainer->Push(unit, 0);
    last_push_ = number;
  }
  for (const auto& trainer : trainers_) EXPECT_TRUE(trainer->AwaitDrained(0, last_push_));
}

wire::CommitRecord ModelTest::Commit(const std::function<void(v1::Commit&)>& change) {
  const int64_t number = commit_number() + 1;
  for (const auto& trainer : trainers_) {
    v1::Command command =
        CommitCommand(trainer->next_command(), number, absl::StrCat("rank ", trainer->rank(), ", commit ", number),
                      static_cast<int>(model_->spec().groups.size()));
    if (change) change(*command.mutable_commit());
    trainer->Send(std::move(command));
  }
  wire::CommitRecord answer{};
  for (const auto& trainer : trainers_) {
    const auto record = trainer->AwaitCommitted(number);
    EXPECT_TRUE(record.has_value()) << "rank " << trainer->rank();
    if (!record.has_value()) continue;
    if (trainer->rank() > 0) {
      EXPECT_EQ(record->version, answer.version);
      EXPECT_EQ(record->gradient_norm, answer.gradient_norm);
      EXPECT_EQ(record->skipped, answer.skipped);
    }
    answer = *record;
  }
  return answer;
}

void ModelTest::Step(float gradient) {
  Push(kW, [&](int rank) { return gradient * static_cast<float>(rank + 1); });
  Commit();
}

bool ModelTest::AwaitWait(const std::string& what) const {
  for (const absl::Time end = absl::Now() + absl::Seconds(30); absl::Now() < end; std::this_thread::yield()) {
    for (const auto& attached : model_->trainers().activity().trainers) {
      if (absl::StrContains(attached.waits_for, what)) return true;
    }
  }
  return false;
}

std::vector<float> ModelTest::Read(int unit, StateTensor tensor) const {
  std::vector<float> values;
  for (const auto& shard : model_->committed().shards) {
    const ShardExtent* extent = shard->extents().Find(unit, 0);
    if (extent == nullptr) continue;
    absl::ReaderMutexLock lock(&shard->mutex());
    const std::vector<float> rows = *shard->arrays().Read(*extent, tensor);
    values.insert(values.end(), rows.begin(), rows.end());
  }
  return values;
}

void ModelTest::ExpectEnded(absl::StatusCode code, const testing::Matcher<std::string>& message) {
  for (const auto& trainer : trainers_) {
    const EpochEndInfo* ended = trainer->AwaitEnded();
    ASSERT_NE(ended, nullptr);
    EXPECT_EQ(ended->why.code(), code) << ended->why.message();
    EXPECT_THAT(std::string(ended->why.message()), message);
    EXPECT_EQ(trainer->words().status().value, static_cast<uint32_t>(code));
    EXPECT_EQ(trainer->words().EndText(), ended->why.message());
  }
}

void ModelTest::ExpectNextEpochWorks() {
  Attach();
  const int64_t before = commit_number();
  Step();
  EXPECT_EQ(commit_number(), before + 1);
  StateHash(*model_);
}

}  // namespace paramshard::server
