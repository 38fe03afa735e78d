#include "server/store/model.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/base/thread.h"
#include "tests/process_counts.h"
#include "tests/server/store/command.h"
#include "tests/server/store/manual_clock.h"
#include "tests/server/store/test_spec.h"
#include "tests/server/store/test_world.h"
#include "tests/status_matchers.h"

namespace paramshard::server {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::FloatNear;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pointwise;
using ::testing::SizeIs;

// Units: 24 floats that begin at 1, and MXFP8 matrices whose cut is uneven on two ranks. Every unit fits every slot.
constexpr int kW = 0;
constexpr int kMx = 1;
constexpr int kElements = 24;
constexpr float kLearningRate = 0.1f;  // as CommitCommand has it

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

class ModelTest : public testing::Test {
 protected:
  void SetUp() override { Open(TestSpec()); }

  void Open(const v1::ModelSpec& spec, TestWorld::Options options = {}) {
    trainers_.clear();
    model_.reset();
    world_ = std::make_unique<TestWorld>(options);
    model_ = world_->Create(spec);
  }
  // Nothing of the daemon is left: what a test's options point to may go.
  void CloseWorld() {
    trainers_.clear();
    model_.reset();
    world_.reset();
  }
  void Attach() { trainers_ = AttachAll(*model_); }
  FakeTrainer& trainer(int rank) { return *trainers_[rank]; }
  int64_t commit_number() const { return model_->commit_log().numbers().commit_number; }

  // Every rank r pushes `gradients(r)` for the unit.
  void Push(int unit, const std::function<float(int)>& gradients) {
    for (const auto& trainer : trainers_) {
      trainer->FillGradients(0, unit, gradients(trainer->rank()));
      const int64_t number = trainer->Push(unit, 0);
      last_push_ = number;
    }
    for (const auto& trainer : trainers_) EXPECT_TRUE(trainer->AwaitDrained(0, last_push_));
  }
  // The answer that all ranks get.
  wire::CommitRecord Commit(const std::function<void(v1::Commit&)>& change = {}) {
    const int64_t number = commit_number() + 1;
    for (const auto& trainer : trainers_) {
      v1::Command command =
          CommitCommand(trainer->next_command(), number, absl::StrCat("rank ", trainer->rank(), ", commit ", number));
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
  // A step of the unit w on all ranks with some gradients.
  void Step(float gradient = 0.5f) {
    Push(kW, [&](int rank) { return gradient * static_cast<float>(rank + 1); });
    Commit();
  }

  // Waits until a rank is said to wait for something. A look a time; half a minute at most.
  bool AwaitWait(const std::string& what) const {
    for (const absl::Time end = absl::Now() + absl::Seconds(30); absl::Now() < end; std::this_thread::yield()) {
      for (const auto& seat : model_->status().seats) {
        if (absl::StrContains(seat.waits_for, what)) return true;
      }
    }
    return false;
  }

  // All rows of a unit's only parameter.
  std::vector<float> Read(int unit, StateTensor tensor) const {
    std::vector<float> values;
    for (const auto& shard : model_->shards()) {
      const ShardExtent* extent = shard->Find(unit, 0);
      if (extent == nullptr) continue;
      absl::ReaderMutexLock lock(&shard->mutex());
      const std::vector<float> rows = *shard->Read(*extent, tensor);
      values.insert(values.end(), rows.begin(), rows.end());
    }
    return values;
  }
  static auto All(float value, float tolerance = 1e-6f) { return testing::Each(FloatNear(value, tolerance)); }

  // What all trainers are told at the end.
  void ExpectEnded(absl::StatusCode code, const testing::Matcher<std::string>& message) {
    for (const auto& trainer : trainers_) {
      const v1::EpochEnded* ended = trainer->AwaitEnded();
      ASSERT_NE(ended, nullptr);
      EXPECT_EQ(ended->code(), static_cast<int>(code)) << ended->message();
      EXPECT_THAT(ended->message(), message);
      EXPECT_EQ(trainer->words().status().value, static_cast<uint32_t>(code));
      EXPECT_EQ(trainer->words().EndText(), ended->message());
    }
  }
  // The model is as good as before: another epoch takes a step.
  void ExpectNextEpochWorks() {
    Attach();
    const int64_t before = commit_number();
    Step();
    EXPECT_EQ(commit_number(), before + 1);
    StateHash(*model_);
  }

  std::unique_ptr<TestWorld> world_;
  std::shared_ptr<Model> model_;
  FakeTrainers trainers_;  // before the model, which they leave
  int64_t last_push_ = 0;
};

// --- Attaching ---

TEST_F(ModelTest, AnEpochStartsWhenEveryRankIsAttached) {
  FakeTrainer first(model_.get(), 1);
  ASSERT_OK(first.Attach());
  EXPECT_FALSE(model_->status().running);
  EXPECT_THAT(model_->MissingRanks(), ElementsAre(0));
  EXPECT_THAT(model_->status().seats, SizeIs(1));
  EXPECT_EQ(model_->status().seats[0].waits_for, "other ranks");

  FakeTrainer second(model_.get(), 0);
  ASSERT_OK(second.Attach());
  ASSERT_TRUE(first.AwaitStarted());
  ASSERT_TRUE(second.AwaitStarted());
  EXPECT_TRUE(model_->status().running);
  EXPECT_THAT(model_->MissingRanks(), IsEmpty());
  EXPECT_EQ(first.started().epoch(), 1);
  EXPECT_EQ(first.started().commit_number(), 0);
  EXPECT_EQ(first.started().version(), 0);
  EXPECT_FALSE(first.started().has_last_commit());
  EXPECT_EQ(first.started().client_state(), "");
  EXPECT_EQ(first.started().group_rank(), 1);
  EXPECT_EQ(first.started().world_size(), 2);
  EXPECT_TRUE(first.started().client_lands_own_pieces());
  EXPECT_EQ(first.started().spec().name(), "m");
  EXPECT_EQ(first.started().layout().SerializeAsString(), model_->layout().ToProto().SerializeAsString());
  EXPECT_EQ(second.started().group_rank(), 0);
}

TEST_F(ModelTest, ARankOfNobodyIsRefused) {
  for (int rank : {-1, 2, 1000}) {
    FakeTrainer trainer(model_.get(), rank);
    EXPECT_THAT(trainer.Attach(), StatusIs(absl::StatusCode::kInvalidArgument,
                                           HasSubstr(absl::StrCat("a rank in [0, 2) expected, got ", rank))));
  }
}

TEST_F(ModelTest, ASecondTrainerForARankIsRefusedWithTheHoldersPid) {
  FakeTrainer first(model_.get(), 0);
  ASSERT_OK(first.Attach());
  const std::string pid = absl::StrCat(10'000 + first.session());
  FakeTrainer second(model_.get(), 0);
  EXPECT_THAT(second.Attach(), StatusIs(absl::StatusCode::kAlreadyExists, AllOf(HasSubstr("rank 0"), HasSubstr(pid))));
  // And while an epoch runs.
  FakeTrainer other(model_.get(), 1);
  ASSERT_OK(other.Attach());
  ASSERT_TRUE(first.AwaitStarted());
  EXPECT_THAT(second.Attach(), StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr(pid)));
  EXPECT_EQ(model_->HolderOf(0).session, first.session());
  EXPECT_EQ(model_->HolderOf(0).uid, 7);
}

TEST_F(ModelTest, AWaitingTrainerMayLeave) {
  FakeTrainer first(model_.get(), 0);
  ASSERT_OK(first.Attach());
  first.Leave(absl::DeadlineExceededError("it waited too long"));
  const v1::EpochEnded* ended = first.AwaitEnded();
  ASSERT_NE(ended, nullptr);
  EXPECT_EQ(ended->code(), static_cast<int>(absl::StatusCode::kDeadlineExceeded));
  EXPECT_EQ(ended->message(), "it waited too long");
  EXPECT_TRUE(model_->AwaitDeparture(0, first.session(), absl::Seconds(30)));
  EXPECT_EQ(model_->HolderOf(0).session, 0);
  ExpectNextEpochWorks();
}

TEST_F(ModelTest, AnUnknownSessionIsIgnored) {
  Attach();
  model_->Leave(123456789, absl::AbortedError("who"));
  EXPECT_OK(model_->Submit(123456789, CommitCommand(1, 1)));
  Step();
  EXPECT_EQ(commit_number(), 1);
}

TEST_F(ModelTest, AWorldOfOneRankNeedsNoOther) {
  Open(TestSpec(), {.ranks = 1});
  Attach();
  trainer(0).Gather(kMx, 0);
  trainer(0).Release(0, 1);
  Step();
  EXPECT_EQ(commit_number(), 1);
}

// Whoever notices first that a trainer was killed, the others hear the same.
TEST_F(ModelTest, ATrainerThatDiesWhileItsEpochStartsIsNamed) {
  for (const absl::Status& refusal : {absl::AbortedError("handoff: the trainer has closed its companion connection"),
                                      absl::UnavailableError("handoff socket: send failed: Broken pipe")}) {
    FakeTrainer first(model_.get(), 0);
    FakeTrainer second(model_.get(), 1);
    second.RefuseMemory(refusal);
    ASSERT_OK(first.Attach());
    ASSERT_OK(second.Attach());
    for (FakeTrainer* each : {&first, &second}) {
      const v1::EpochEnded* ended = each->AwaitEnded();
      ASSERT_NE(ended, nullptr);
      EXPECT_EQ(ended->code(), static_cast<int>(absl::StatusCode::kAborted));
      EXPECT_THAT(ended->message(),
                  HasSubstr(absl::StrCat("rank 1: process ", 10'000 + second.session(), " has gone")));
    }
  }
  ExpectNextEpochWorks();
}

TEST_F(ModelTest, MemoryThatCannotBeSentForAnotherReasonEndsTheEpochWithIt) {
  FakeTrainer first(model_.get(), 0);
  FakeTrainer second(model_.get(), 1);
  second.RefuseMemory(absl::ResourceExhaustedError("no descriptors are left"));
  ASSERT_OK(first.Attach());
  ASSERT_OK(second.Attach());
  for (FakeTrainer* each : {&first, &second}) {
    const v1::EpochEnded* ended = each->AwaitEnded();
    ASSERT_NE(ended, nullptr);
    EXPECT_EQ(ended->code(), static_cast<int>(absl::StatusCode::kResourceExhausted));
  }
  ExpectNextEpochWorks();
}

TEST_F(ModelTest, ACommandBeforeTheEpochIsRefused) {
  FakeTrainer first(model_.get(), 0);
  ASSERT_OK(first.Attach());
  EXPECT_THAT(model_->Submit(first.session(), GatherCommand(1, kW, 0)),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("command 1 of rank 0"), HasSubstr("after `started` expected"))));
  first.Leave();
  ASSERT_NE(first.AwaitEnded(), nullptr);
  ExpectNextEpochWorks();
}

// An epoch needs a thread of its own and two for each rank: at every limit it ends, and the daemon goes on.
TEST_F(ModelTest, AnEpochThatGetsNoThreadsEndsWithThat) {
  for (int threads = 0; threads < 5; ++threads) {
    SCOPED_TRACE(absl::StrCat(threads, " threads"));
    FakeTrainer first(model_.get(), 0);
    FakeTrainer second(model_.get(), 1);
    {
      const ThreadShortage shortage(threads);
      ASSERT_OK(first.Attach());
      ASSERT_OK(second.Attach());
      for (FakeTrainer* each : {&first, &second}) {
        const v1::EpochEnded* ended = each->AwaitEnded();
        ASSERT_NE(ended, nullptr);
        EXPECT_EQ(ended->code(), static_cast<int>(absl::StatusCode::kResourceExhausted));
        EXPECT_THAT(ended->message(), AllOf(HasSubstr("start a thread for"), HasSubstr("ulimit -u")));
      }
    }
    ExpectNextEpochWorks();
    trainers_.clear();
  }
}

// --- Steps ---

TEST_F(ModelTest, AGatherBringsThePlanesOfThePeers) {
  Attach();
  for (const auto& trainer : trainers_) {
    trainer->Gather(kW, 0);
    trainer->Gather(kMx, 1, v1::PHASE_BACKWARD);
  }
  for (const auto& trainer : trainers_) {
    ASSERT_TRUE(trainer->AwaitReady(0, 1));
    ASSERT_TRUE(trainer->AwaitReady(1, 2));
    EXPECT_TRUE(trainer->HoldsPlanes(kW, 0));
    EXPECT_TRUE(trainer->HoldsPlanes(kMx, 1, Use::kBackward));
    EXPECT_EQ(trainer->words().ready(0, trainer->rank()).value, 0u) << "one's own pieces are one's own business";
  }
}

TEST_F(ModelTest, ASlotIsUsedAgainAfterItsReleaseByAll) {
  Attach();
  for (const auto& trainer : trainers_) {
    trainer->Gather(kMx, 0);
    trainer->Gather(kW, 0);
  }
  for (const auto& trainer : trainers_) ASSERT_TRUE(trainer->AwaitReady(0, 1));
  trainer(0).Release(0, 1);
  ASSERT_TRUE(AwaitWait("rank 1: release of slot 0 for gather w")) << "the release of rank 0 was seen";
  EXPECT_EQ(trainer(0).words().ready(0, 1).value, 1u);
  EXPECT_TRUE(trainer(1).HoldsPlanes(kMx, 0)) << "it is still in use";
  trainer(1).Release(0, 1);
  for (const auto& trainer : trainers_) {
    ASSERT_TRUE(trainer->AwaitReady(0, 2));
    EXPECT_TRUE(trainer->HoldsPlanes(kW, 0));
  }
}

// More than the daemon reads from a ring at once, and more than it holds for a rank that is ahead.
TEST_F(ModelTest, ManyCommandsMayWaitInARing) {
  constexpr int64_t kMany = 2 * Sequence::kMostCommands + 100;
  Attach();
  const auto send = [this](int rank) {
    for (int64_t i = 0; i < kMany; ++i) trainer(rank).Gather(i % 2 == 0 ? kMx : kW, 0);
    trainer(rank).Release(0, kMany);
  };
  const auto taken = [this] { return model_->status().seats[0].last_command; };
  send(0);
  for (const absl::Time end = absl::Now() + absl::Seconds(30);
       taken() < Sequence::kMostCommands && absl::Now() < end;) {
    std::this_thread::yield();
  }
  EXPECT_EQ(taken(), Sequence::kMostCommands);
  EXPECT_NE(trainer(0).words().ring_tail().value, trainer(0).words().ring_head().value);
  send(1);
  for (const auto& trainer : trainers_) {
    ASSERT_TRUE(trainer->AwaitReady(0, kMany));
    EXPECT_TRUE(trainer->HoldsPlanes(kW, 0));
  }
}

TEST_F(ModelTest, WhoSendsByStreamMoreThanTheDaemonHoldsIsRefused) {
  Attach();
  for (int64_t n = 1; n <= Sequence::kMostCommands; ++n) {
    ASSERT_OK(model_->Submit(trainer(0).session(), GatherCommand(n, kW, 0)));
  }
  EXPECT_THAT(model_->Submit(trainer(0).session(), GatherCommand(Sequence::kMostCommands + 1, kW, 0)),
              StatusIs(absl::StatusCode::kResourceExhausted, AllOf(HasSubstr("rank 0"), HasSubstr("at most 1024"))));
}

TEST_F(ModelTest, AFourthUnansweredCommitEndsTheEpoch) {
  Attach();
  const std::string hash = StateHash(*model_);
  for (int64_t n = 1; n <= 4; ++n) trainer(1).Commit(n, std::string(kMaxClientStateBytes / 2, 'x'));
  ExpectEnded(absl::StatusCode::kInvalidArgument, HasSubstr("commit 4 of rank 1: at most 3 unanswered commits"));
  EXPECT_EQ(StateHash(*model_), hash);
  ExpectNextEpochWorks();
}

TEST_F(ModelTest, AGatherAfterACommitSeesTheNewPlanes) {
  Attach();
  for (const auto& trainer : trainers_) trainer->Gather(kW, 0);
  for (const auto& trainer : trainers_) ASSERT_TRUE(trainer->AwaitReady(0, 1));
  const std::vector<uint8_t> before(trainer(0).slot(0), trainer(0).slot(0) + kElements * sizeof(float));
  // All is sent at once: push, commit, and the gather of the next step.
  for (const auto& trainer : trainers_) {
    trainer->FillGradients(0, kW, 1.0f);
    trainer->Push(kW, 0);
    trainer->Commit(1);
    trainer->Gather(kW, 0);
  }
  ASSERT_TRUE(AwaitWait("release of slot 0 for commit 1")) << "the planes are still read";
  EXPECT_EQ(trainer(0).words().committed().value, 0u);
  for (const auto& trainer : trainers_) trainer->Release(0, 1);
  for (const auto& trainer : trainers_) {
    ASSERT_TRUE(trainer->AwaitReady(0, 4));
    EXPECT_TRUE(trainer->HoldsPlanes(kW, 0));
    EXPECT_EQ(trainer->words().committed().value, 1u);
  }
  EXPECT_NE(std::memcmp(before.data(), trainer(0).slot(0), before.size()), 0);
}

// Gradients 1 and 3: their mean is 2, its norm 2 sqrt(24). The first step of Adam is one learning rate long.
TEST_F(ModelTest, AStepWithKnownNumbers) {
  Attach();
  Push(kW, [](int rank) { return rank == 0 ? 1.0f : 3.0f; });
  const wire::CommitRecord answer = Commit();
  EXPECT_EQ(answer.commit_number, 1);
  EXPECT_EQ(answer.version, 1);
  EXPECT_EQ(answer.skipped, 0u);
  EXPECT_EQ(answer.non_finite_count, 0);
  EXPECT_DOUBLE_EQ(answer.gradient_norm, 2 * std::sqrt(24.0));
  EXPECT_THAT(Read(kW, StateTensor::kExpAvg), AllOf(SizeIs(kElements), All(0.1f * 2)));
  EXPECT_THAT(Read(kW, StateTensor::kExpAvgSq), All(0.01f * 4));
  EXPECT_THAT(Read(kW, StateTensor::kMaster), All(1 - kLearningRate));
}

TEST_F(ModelTest, GradientsMayBeSummed) {
  v1::ModelSpec spec = TestSpec();
  spec.set_gradient_reduction(v1::GRADIENT_REDUCTION_SUM);
  Open(spec);
  Attach();
  Push(kW, [](int rank) { return rank == 0 ? 1.0f : 3.0f; });
  EXPECT_DOUBLE_EQ(Commit().gradient_norm, 4 * std::sqrt(24.0));
  EXPECT_THAT(Read(kW, StateTensor::kExpAvg), All(0.1f * 4));
}

TEST_F(ModelTest, ClippingScalesTheGradientToTheNorm) {
  Attach();
  Push(kW, [](int) { return 2.0f; });
  const wire::CommitRecord answer = Commit([](v1::Commit& commit) { commit.set_max_grad_norm(0.5f); });
  EXPECT_DOUBLE_EQ(answer.gradient_norm, 2 * std::sqrt(24.0)) << "before clipping";
  EXPECT_THAT(Read(kW, StateTensor::kExpAvg), All(0.1f * 0.5f / std::sqrt(24.0f)));
}

TEST_F(ModelTest, ASmallGradientIsNotClipped) {
  Attach();
  Push(kW, [](int) { return 2.0f; });
  Commit([](v1::Commit& commit) { commit.set_max_grad_norm(1000); });
  EXPECT_THAT(Read(kW, StateTensor::kExpAvg), All(0.2f));
}

TEST_F(ModelTest, ALossScaleIsTakenOut) {
  Attach();
  Push(kW, [](int) { return 2048.0f; });
  EXPECT_DOUBLE_EQ(Commit([](v1::Commit& commit) { commit.set_gradient_scale(1024); }).gradient_norm,
                   2 * std::sqrt(24.0));
  EXPECT_THAT(Read(kW, StateTensor::kExpAvg), All(0.2f));
}

TEST_F(ModelTest, PushesOfOneStepAddUp) {
  Attach();
  Push(kW, [](int rank) { return static_cast<float>(rank); });
  Push(kW, [](int rank) { return static_cast<float>(rank) * 3; });
  Commit();
  EXPECT_THAT(Read(kW, StateTensor::kExpAvg), All(0.1f * (0.5f + 1.5f)));
}

TEST_F(ModelTest, EachElementsGradientGoesToItsOwner) {
  Attach();
  std::vector<float> gradients(kElements);
  for (int i = 0; i < kElements; ++i) gradients[i] = static_cast<float>(i + 1);
  for (const auto& trainer : trainers_) {
    trainer->FillGradients(1, kW, gradients);
    trainer->Push(kW, 1);
  }
  Commit();
  for (float& gradient : gradients) gradient *= 0.1f;
  EXPECT_THAT(Read(kW, StateTensor::kExpAvg), Pointwise(FloatNear(1e-6f), gradients));
}

TEST_F(ModelTest, AParameterWithoutAGradientIsUntouched) {
  Attach();
  const std::vector<float> before = Read(kMx, StateTensor::kMaster);
  Step();
  EXPECT_EQ(Read(kMx, StateTensor::kMaster), before);
  for (const auto& shard : model_->shards()) {
    absl::ReaderMutexLock lock(&shard->mutex());
    EXPECT_EQ(shard->step(*shard->Find(kMx, 0)), 0);
    EXPECT_EQ(shard->step(*shard->Find(kW, 0)), 1);
  }
}

TEST_F(ModelTest, ACommitWithoutGradientsIsAnsweredAndChangesNothing) {
  Attach();
  const std::string hash = StateHash(*model_);
  const wire::CommitRecord answer = Commit();
  EXPECT_EQ(answer.version, 1);
  EXPECT_EQ(answer.gradient_norm, 0);
  EXPECT_EQ(StateHash(*model_), hash);
}

TEST_F(ModelTest, CommandsMayComeByStream) {
  Attach();
  for (const auto& trainer : trainers_) {
    EXPECT_OK(model_->Submit(trainer->session(), GatherCommand(1, kW, 0)));
    EXPECT_OK(model_->Submit(trainer->session(), GatherCommand(2, kMx, 1)));
  }
  for (const auto& trainer : trainers_) {
    ASSERT_TRUE(trainer->AwaitReady(1, 2));
    EXPECT_TRUE(trainer->HoldsPlanes(kMx, 1));
  }
}

TEST_F(ModelTest, TheSameStepsGiveTheSameBytes) {
  const auto run = [this] {
    Attach();
    for (int step = 0; step < 5; ++step) {
      Push(kMx, [&](int rank) { return 0.125f * static_cast<float>(step - rank); });
      Push(kW, [&](int rank) { return 0.3f * static_cast<float>(step + rank); });
      Commit([](v1::Commit& commit) { commit.set_max_grad_norm(1); });
    }
    return StateHash(*model_);
  };
  const std::string first = run();
  Open(TestSpec());
  EXPECT_EQ(run(), first);
}

TEST_F(ModelTest, ANonFiniteGradientSkipsTheStep) {
  Attach();
  Step();
  const std::string hash = StateHash(*model_);
  Push(kMx, [](int) { return 1.0f; });
  std::vector<float> gradients(kElements, 1.0f);
  gradients[17] = std::numeric_limits<float>::infinity();
  for (const auto& trainer : trainers_) {
    trainer->FillGradients(0, kW, trainer->rank() == 1 ? gradients : std::vector<float>(kElements));
    trainer->Push(kW, 0);
  }
  const wire::CommitRecord answer = Commit();
  EXPECT_EQ(answer.commit_number, 2);
  EXPECT_EQ(answer.version, 1);
  EXPECT_EQ(answer.skipped, 1u);
  EXPECT_EQ(answer.non_finite_count, 1);
  EXPECT_EQ(StateHash(*model_), hash);
  EXPECT_EQ(model_->commit_log().numbers().skipped, 1);
  EXPECT_EQ(model_->commit_log().client_state(1), "rank 1, commit 2");
  // Its gradients are forgotten.
  Step();
  EXPECT_EQ(model_->commit_log().numbers().version, 2);
  EXPECT_THAT(Read(kW, StateTensor::kExpAvg),
              testing::Each(testing::Truly([](float value) { return std::isfinite(value); })));
}

TEST_F(ModelTest, ARepeatedCommitIsAnsweredNotApplied) {
  Attach();
  Step();
  const std::string hash = StateHash(*model_);
  trainers_.clear();
  Attach();
  EXPECT_EQ(trainer(0).started().commit_number(), 1);
  for (const auto& trainer : trainers_) {
    const auto record = trainer->AwaitCommitted(1);
    ASSERT_TRUE(record.has_value()) << "the answer is there from the start";
    EXPECT_EQ(record->version, 1);
    trainer->Commit(1);
    trainer->Gather(kW, 0);
  }
  for (const auto& trainer : trainers_) EXPECT_TRUE(trainer->AwaitReady(0, 2));
  EXPECT_EQ(commit_number(), 1);
  EXPECT_EQ(StateHash(*model_), hash);
}

// --- Ends ---

// What has happened in a step when a trainer dies; each point includes those before.
enum class Point { kAttached, kGathered, kOnePushed, kAllPushed, kOneCommitted };

class DeathTest : public ModelTest, public testing::WithParamInterface<Point> {
 protected:
  // Brings all trainers to the point; rank 0 may be further than rank 1.
  void RunTo(Point point) {
    if (point >= Point::kGathered) {
      for (const auto& trainer : trainers_) trainer->Gather(kMx, 0);
      for (const auto& trainer : trainers_) ASSERT_TRUE(trainer->AwaitReady(0, 1));
    }
    for (int rank : {0, 1}) {
      if (point < (rank == 0 ? Point::kOnePushed : Point::kAllPushed)) continue;
      trainer(rank).FillGradients(0, kMx, 100.0f);
      trainer(rank).Push(kMx, 0);
      trainer(rank).Release(0, 1);
    }
    if (point >= Point::kAllPushed) {
      ASSERT_TRUE(trainer(0).AwaitDrained(0, 2));
    }
    if (point >= Point::kOneCommitted) trainer(0).Commit(commit_number() + 1, "never answered");
  }
};

std::string PointName(const testing::TestParamInfo<Point>& info) {
  constexpr const char* kNames[] = {"Attached", "Gathered", "OnePushed", "AllPushed", "OneCommitted"};
  return kNames[static_cast<int>(info.param)];
}

INSTANTIATE_TEST_SUITE_P(Points, DeathTest,
                         testing::Values(Point::kAttached, Point::kGathered, Point::kOnePushed, Point::kAllPushed,
                                         Point::kOneCommitted),
                         PointName);

TEST_P(DeathTest, LeavesTheStateAsItWasAndTheNextEpochGoesOn) {
  Attach();
  Step();
  const std::string hash = StateHash(*model_);
  ASSERT_NO_FATAL_FAILURE(RunTo(GetParam()));
  trainer(1).Leave();
  ExpectEnded(absl::StatusCode::kAborted,
              AllOf(HasSubstr("epoch 1 of m"), HasSubstr("rank 1"), HasSubstr("resume from commit 1 (version 1)")));
  EXPECT_EQ(trainer(0).AwaitEnded()->commit_number(), 1);
  EXPECT_EQ(trainer(0).AwaitEnded()->version(), 1);
  Attach();
  EXPECT_EQ(StateHash(*model_), hash);
  EXPECT_EQ(trainer(1).started().epoch(), 2);
  EXPECT_EQ(trainer(1).started().commit_number(), 1);
  EXPECT_EQ(trainer(1).started().client_state(), "rank 1, commit 1");
  ASSERT_TRUE(trainer(1).started().has_last_commit());
  EXPECT_EQ(trainer(1).started().last_commit().version(), 1);

  // The step that was lost, done again, gives what it gives without a death.
  Push(kMx, [](int) { return 1.0f; });
  Commit();
  const std::string resumed = StateHash(*model_);
  Open(TestSpec());
  Attach();
  Step();
  Push(kMx, [](int) { return 1.0f; });
  Commit();
  EXPECT_EQ(resumed, StateHash(*model_));
}

TEST_F(ModelTest, WaitersWakeAtTheEnd) {
  Attach();
  trainer(0).Gather(kMx, 0);
  std::thread waiters[] = {std::thread([this] { EXPECT_FALSE(trainer(0).AwaitReady(0, 1)); }),
                           std::thread([this] { EXPECT_FALSE(trainer(0).AwaitCommitted(1).has_value()); }),
                           std::thread([this] { EXPECT_FALSE(trainer(0).AwaitDrained(1, 5)); })};
  while (trainer(0).words().client_waits().value != 3) std::this_thread::yield();
  trainer(1).Leave();
  for (std::thread& waiter : waiters) waiter.join();
}

TEST_F(ModelTest, ATrainerMayAttachAgainAsSoonAsItHearsOfTheEnd) {
  Attach();
  std::vector<std::unique_ptr<FakeTrainer>> next;
  std::vector<absl::Status> attached;
  absl::Mutex mu;
  for (const auto& trainer : trainers_) {
    trainer->WhenEnded([&, rank = trainer->rank()] {
      absl::MutexLock lock(&mu);
      next.push_back(std::make_unique<FakeTrainer>(model_.get(), rank));
      attached.push_back(next.back()->Attach());
    });
  }
  // An end that comes from within the epoch.
  trainer(0).SendRecord("no command");
  ExpectEnded(absl::StatusCode::kInvalidArgument, HasSubstr("a serialized Command expected"));
  EXPECT_THAT(attached, ElementsAre(IsOk(), IsOk()));
  for (const auto& trainer : next) EXPECT_TRUE(trainer->AwaitStarted());
}

TEST_F(ModelTest, MemoryOfATrainerThatIsGoneIsGivenBack) {
  Attach();
  trainer(0).FillGradients(0, kMx, 5.0f);
  trainer(1).FillGradients(0, kMx, 5.0f);
  trainer(1).Leave();
  ExpectEnded(absl::StatusCode::kAborted, testing::_);
  EXPECT_EQ(trainer(1).gradient_slot(0)[3], 0) << "pages of the dead";
  EXPECT_NE(trainer(0).gradient_slot(0)[3], 0) << "who lives keeps its mapping";
}

TEST_F(ModelTest, EveryEpochHasMemoryOfItsOwn) {
  Attach();
  trainer(0).FillGradients(0, kMx, 5.0f);
  FakeTrainers old = std::move(trainers_);
  old[1]->Leave();
  ASSERT_NE(old[0]->AwaitEnded(), nullptr);
  Attach();
  EXPECT_EQ(trainer(0).gradient_slot(0)[3], 0);
  // The old epoch's trainer goes on writing: nobody reads it.
  old[0]->Push(kMx, 0);
  old[0]->Commit(1);
  Step();
  EXPECT_EQ(commit_number(), 1);
  EXPECT_EQ(old[0]->words().status().value, static_cast<uint32_t>(absl::StatusCode::kAborted));
}

TEST_F(ModelTest, ScribblesOnPlanesEndWithTheEpoch) {
  Attach();
  std::fill_n(model_->shards()[0]->planes().data(), model_->shards()[0]->planes().size_bytes(), 0x55);
  trainers_.clear();
  Attach();
  StateHash(*model_);
}

TEST_F(ModelTest, RanksThatDisagreeAreBothNamedToAll) {
  Attach();
  const std::string hash = StateHash(*model_);
  trainer(0).Gather(kW, 0);
  trainer(1).Gather(kMx, 0);
  ExpectEnded(absl::StatusCode::kFailedPrecondition,
              AllOf(HasSubstr("rank 0 sent gather w"), HasSubstr("rank 1 sent gather mx"), HasSubstr("command 1")));
  EXPECT_EQ(StateHash(*model_), hash);
  ExpectNextEpochWorks();
}

TEST_F(ModelTest, ACommitThatDiffersBetweenRanksIsAppliedNowhere) {
  Attach();
  const std::string hash = StateHash(*model_);
  Push(kW, [](int) { return 1.0f; });
  for (const auto& trainer : trainers_) {
    v1::Command command = CommitCommand(2, 1);
    command.mutable_commit()->mutable_groups(0)->set_weight_decay(static_cast<float>(trainer->rank()));
    trainer->Send(command);
  }
  ExpectEnded(absl::StatusCode::kFailedPrecondition, HasSubstr("weight decay 1"));
  EXPECT_EQ(StateHash(*model_), hash);
  EXPECT_EQ(commit_number(), 0);
}

TEST_F(ModelTest, ACommandThatBreaksARuleEndsTheEpoch) {
  Attach();
  trainer(1).Gather(77, 0);
  ExpectEnded(absl::StatusCode::kInvalidArgument, HasSubstr("a unit in [0, 3) expected, got 77"));
  ExpectNextEpochWorks();
}

TEST_F(ModelTest, ACommandByStreamThatBreaksARuleEndsTheEpoch) {
  Attach();
  EXPECT_OK(model_->Submit(trainer(0).session(), CommitCommand(1, 5)));
  ExpectEnded(absl::StatusCode::kFailedPrecondition, HasSubstr("number 1 expected, got 5"));
  ExpectNextEpochWorks();
}

TEST_F(ModelTest, ACorruptRingEndsTheEpoch) {
  for (uint32_t head : {3u, 0x80000000u}) {
    Attach();
    const std::string hash = StateHash(*model_);
    trainer(0).words().ring_head().value.store(head);
    trainer(0).words().Ring();
    ExpectEnded(absl::StatusCode::kInvalidArgument, HasSubstr("command ring"));
    EXPECT_EQ(StateHash(*model_), hash);
  }
  ExpectNextEpochWorks();
}

TEST_F(ModelTest, AllWordsOfATrainerMayBeGarbage) {
  Attach();
  const std::string hash = StateHash(*model_);
  const wire::Words& words = trainer(0).words();
  auto* page = reinterpret_cast<uint32_t*>(&words.status());
  for (size_t i = 0; i < wire::Words::SizeBytes(words.counts()) / sizeof(uint32_t); ++i) {
    __atomic_store_n(page + i, 0x9e3779b9u * static_cast<uint32_t>(i + 1), __ATOMIC_RELAXED);
  }
  words.Ring();
  const v1::EpochEnded* ended = trainer(1).AwaitEnded();
  ASSERT_NE(ended, nullptr);
  EXPECT_EQ(ended->code(), static_cast<int>(absl::StatusCode::kInvalidArgument));
  trainers_.clear();
  EXPECT_EQ(StateHash(*model_), hash);
  ExpectNextEpochWorks();
}

// --- Trainers that detach ---

class DetachTest : public ModelTest {
 protected:
  void SetUp() override {
    ModelTest::SetUp();
    Attach();
  }
  // The rank hears that it may go, and its process goes.
  void ExpectGoes(int rank) {
    const v1::EpochEnded* const ended = trainer(rank).AwaitEnded();
    ASSERT_NE(ended, nullptr);
    EXPECT_EQ(ended->code(), static_cast<int>(absl::StatusCode::kAborted));
    EXPECT_THAT(ended->message(), HasSubstr(absl::StrCat("rank ", rank, ": process ")));
    trainer(rank).Leave(absl::AbortedError("its process has gone"));
  }
};

TEST_F(DetachTest, WhatAllHaveSentIsCarriedOutForTheOthers) {
  for (const auto& trainer : trainers_) trainer->Gather(kMx, 0);
  for (const auto& trainer : trainers_) trainer->Gather(kW, 0);
  ASSERT_TRUE(trainer(0).AwaitReady(0, 1));
  ASSERT_OK(trainer(0).Detach());
  ASSERT_NO_FATAL_FAILURE(ExpectGoes(0));
  EXPECT_TRUE(model_->status().running);
  ASSERT_TRUE(trainer(1).AwaitReady(0, 1));
  EXPECT_TRUE(trainer(1).HoldsPlanes(kMx, 0));
  // The slot of rank 0 counts as released.
  trainer(1).Release(0, 1);
  ASSERT_TRUE(trainer(1).AwaitReady(0, 2));
  EXPECT_TRUE(trainer(1).HoldsPlanes(kW, 0));
}

TEST_F(DetachTest, ACommitThatAllSendIsAnsweredBeforeItsSenderGoes) {
  trainer(0).FillGradients(0, kW, 1.0f);
  trainer(0).Push(kW, 0);
  trainer(0).Commit(1, "last");
  ASSERT_OK(trainer(0).Detach());
  ASSERT_TRUE(AwaitWait("rank 1: push w")) << "it is not gone: its gradients are needed";
  trainer(1).FillGradients(0, kW, 1.0f);
  trainer(1).Push(kW, 0);
  trainer(1).Commit(1, "last");
  EXPECT_TRUE(trainer(1).AwaitCommitted(1).has_value());
  ASSERT_NO_FATAL_FAILURE(ExpectGoes(0));
  EXPECT_EQ(trainer(0).AwaitEnded()->commit_number(), 1);
  EXPECT_EQ(model_->commit_log().client_state(0), "last");
  EXPECT_THAT(Read(kW, StateTensor::kMaster), All(1 - kLearningRate));
}

TEST_F(DetachTest, ASecondDetachIsRefused) {
  trainer(0).FillGradients(0, kW, 1.0f);
  trainer(0).Push(kW, 0);
  ASSERT_OK(trainer(0).Detach());
  EXPECT_THAT(trainer(0).Detach(), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("one detach expected")));
}

TEST_F(DetachTest, WhatItWillNotSendEndsTheEpoch) {
  ASSERT_OK(trainer(0).Detach());
  ASSERT_NO_FATAL_FAILURE(ExpectGoes(0));
  EXPECT_TRUE(model_->status().running);
  trainer(1).Gather(kMx, 0);
  const v1::EpochEnded* const ended = trainer(1).AwaitEnded();
  ASSERT_NE(ended, nullptr);
  EXPECT_EQ(ended->code(), static_cast<int>(absl::StatusCode::kAborted));
  EXPECT_THAT(ended->message(), AllOf(HasSubstr("rank 0: process "), HasSubstr("has left")));
  ExpectNextEpochWorks();
}

TEST_F(DetachTest, WhatOthersHaveSentThatItHasNotEndsTheEpochToo) {
  trainer(1).Gather(kMx, 0);
  ASSERT_TRUE(AwaitWait("rank 0: gather mx"));
  ASSERT_OK(trainer(0).Detach());
  ExpectEnded(absl::StatusCode::kAborted, HasSubstr("rank 0: process "));
}

TEST_F(DetachTest, TheLastOneEndsTheEpoch) {
  for (const auto& trainer : trainers_) ASSERT_OK(trainer->Detach());
  for (const auto& trainer : trainers_) EXPECT_NE(trainer->AwaitEnded(), nullptr);
  ExpectNextEpochWorks();
}

TEST_F(DetachTest, ItsRankIsFreeForTheNextEpoch) {
  ASSERT_OK(trainer(0).Detach());
  ASSERT_NO_FATAL_FAILURE(ExpectGoes(0));
  EXPECT_EQ(model_->HolderOf(0).session, 0);
  FakeTrainer again(model_.get(), 0);
  ASSERT_OK(again.Attach());
  EXPECT_THAT(model_->Close(absl::NotFoundError("deleted")),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("rank 1")))
      << "who is still there is named";
  ASSERT_OK(trainer(1).Detach());
  FakeTrainer other(model_.get(), 1);
  ASSERT_NE(trainer(1).AwaitEnded(), nullptr);
  ASSERT_OK(other.Attach());
  EXPECT_TRUE(again.AwaitStarted());
  EXPECT_EQ(again.started().epoch(), 2);
}

TEST_F(DetachTest, ADeathBeforeItMayGoIsADeath) {
  trainer(0).Commit(1);
  ASSERT_OK(trainer(0).Detach());
  trainer(0).Leave();
  ExpectEnded(absl::StatusCode::kAborted, HasSubstr("rank 0: the trainer has gone"));
}

TEST_F(DetachTest, FewerCommandsThanItHasSentAreRefused) {
  trainer(0).Gather(kMx, 0);
  ASSERT_TRUE(trainer(0).AwaitDaemonAsleep());
  EXPECT_THAT(model_->Detach(trainer(0).session(), 0),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("rank 0: at least 1 commands expected, got 0")));
}

TEST_F(DetachTest, WhoWaitsForAnEpochGoesAtOnce) {
  trainers_.clear();
  FakeTrainer waiting(model_.get(), 0);
  ASSERT_OK(waiting.Attach());
  ASSERT_OK(waiting.Detach());
  EXPECT_NE(waiting.AwaitEnded(), nullptr);
  ExpectNextEpochWorks();
}

// --- Trainers that hang ---

// Time stands still until a rank is said to wait: nobody is late by the test's own slowness.
class HangTest : public ModelTest {
 protected:
  void SetUp() override {
    Open(TestSpec(), {.step_timeout = kTimeout, .clock = &clock_});
    Attach();
    hash_ = StateHash(*model_);
  }
  void TearDown() override { CloseWorld(); }
  void ExpectNamed(int rank, const std::string& what) {
    ASSERT_TRUE(AwaitWait(absl::StrCat("rank ", rank, ": ", what)));
    // Nobody rings: the daemon's threads wake up for the deadline, and look at the clock.
    clock_.Advance(kTimeout);
    ExpectEnded(absl::StatusCode::kDeadlineExceeded,
                AllOf(HasSubstr(absl::StrCat("rank ", rank, " did not reach ", what)), HasSubstr("within 200ms")));
    EXPECT_EQ(StateHash(*model_), hash_);
  }

  static constexpr absl::Duration kTimeout = absl::Milliseconds(200);
  ManualClock clock_;
  std::string hash_;
};

TEST_F(HangTest, ARankThatDoesNotSendACommandIsNamed) {
  trainer(0).Gather(kMx, 1);
  ExpectNamed(1, "gather mx forward into slot 1 (command 1)");
}

TEST_F(HangTest, ARankThatDoesNotReleaseASlotIsNamed) {
  for (const auto& trainer : trainers_) {
    trainer->Gather(kMx, 0);
    trainer->Gather(kW, 0);
  }
  trainer(1).Release(0, 1);
  ExpectNamed(0, "release of slot 0 for gather w");
}

TEST_F(HangTest, ARankThatDoesNotFillItsGradientsIsNamed) {
  trainer(0).Push(kW, 0);
  trainer(1).SendPush(kW, 0);
  ExpectNamed(1, "gradients for push w from gradient slot 0 (command 1)");
}

TEST_F(HangTest, ARankThatDoesNotSendACommandByStreamIsNamed) {
  EXPECT_OK(model_->Submit(trainer(1).session(), GatherCommand(1, kMx, 1)));
  ExpectNamed(0, "gather mx forward into slot 1 (command 1)");
}

// A commit is held back until the gather threads sleep: whoever ends it must see to the wait that begins then.
TEST_F(HangTest, AWaitThatBeginsInTheDaemonEndsToo) {
  absl::Notification go_on;
  world_->cluster().BeforeVote([&go_on] {
    go_on.WaitForNotification();
    return absl::OkStatus();
  });
  trainer(0).words().filled(1).value = 2;
  for (const auto& trainer : trainers_) {
    trainer->Commit(1);
    trainer->SendPush(kMx, 1);
  }
  for (const auto& trainer : trainers_) EXPECT_TRUE(trainer->AwaitDaemonAsleep());
  go_on.Notify();
  ExpectNamed(1, "gradients for push mx from gradient slot 1 (command 2)");
}

TEST_F(HangTest, ACommitThatOneRankHoldsUpIsEnded) {
  for (const auto& trainer : trainers_) {
    trainer->Gather(kMx, 0);
    trainer->Commit(1);
  }
  trainer(0).Release(0, 1);
  ExpectNamed(1, "release of slot 0 for commit 1");
}

// Nobody waits for anybody: the deadline does not run.
TEST_F(HangTest, ATrainerThatJustComputesIsNotHanging) {
  for (const auto& trainer : trainers_) trainer->Gather(kMx, 0);
  for (const auto& trainer : trainers_) ASSERT_TRUE(trainer->AwaitReady(0, 1));
  for (const auto& trainer : trainers_) ASSERT_TRUE(trainer->AwaitDaemonAsleep());
  clock_.Advance(absl::Hours(1));
  // Whoever reads this command looks at the clock as well.
  for (const auto& trainer : trainers_) {
    trainer->Gather(kMx, 1);
    ASSERT_TRUE(trainer->AwaitDaemonAsleep());
  }
  for (const auto& trainer : trainers_) ASSERT_TRUE(trainer->AwaitReady(1, 2));
  EXPECT_TRUE(model_->status().running);
}

// An hour passes at once, as for a machine that was suspended: a wait counts from its own begin.
TEST_F(HangTest, AnHourThatPassesBeforeAWaitIsNobodysFault) {
  clock_.Advance(absl::Hours(1));
  trainer(0).Gather(kMx, 1);
  ASSERT_TRUE(AwaitWait("rank 1: gather mx"));
  ASSERT_TRUE(trainer(0).AwaitDaemonAsleep());
  trainer(1).Gather(kMx, 1);
  for (const auto& trainer : trainers_) EXPECT_TRUE(trainer->AwaitReady(1, 1));
}

TEST_F(HangTest, TheModelsOwnStepTimeoutGoesFirst) {
  v1::ModelSpec spec = TestSpec();
  spec.mutable_step_timeout()->set_nanos(50'000'000);
  Open(spec, {.step_timeout = absl::Hours(1), .clock = &clock_});
  Attach();
  trainer(1).Gather(kW, 0);
  ASSERT_TRUE(AwaitWait("rank 0: gather w"));
  clock_.Advance(absl::Milliseconds(50));
  ExpectEnded(absl::StatusCode::kDeadlineExceeded, AllOf(HasSubstr("rank 0"), HasSubstr("within 50ms")));
}

// --- Trainers that mean harm ---

// The trainer of rank 0 writes whatever it can into its page, and moves whoever sleeps on its doorbell.
class HostileTest : public ModelTest {
 protected:
  void SetUp() override {
    ModelTest::SetUp();
    Attach();
    for (const auto& trainer : trainers_) ASSERT_TRUE(trainer->AwaitDaemonAsleep());
    hostile_ = std::thread([this, words = trainer(0).words()] { Torment(words); });
  }
  void TearDown() override {
    StopTorment();
    CloseWorld();
  }
  // Before the page is unmapped.
  void StopTorment() {
    over_ = true;
    if (hostile_.joinable()) hostile_.join();
  }
  void Torment(const wire::Words& words) {
    std::atomic<uint32_t>& doorbell = words.doorbell().value;
    for (uint32_t i = 0; !over_; ++i) {
      words.daemon_waits().value = 0;
      if (i % 64 == 0) doorbell = i;
      words.ring_tail().value = i;
      words.ready(0, 1).value = i;
      words.committed().value = i;
      // Where nobody wakes them.
      syscall(SYS_futex, &doorbell, FUTEX_CMP_REQUEUE, 0, 1, &words.filled(1).value, doorbell.load());
    }
  }
  void ExpectToldAndOver() {
    const v1::EpochEnded* ended = trainer(1).AwaitEnded();
    ASSERT_NE(ended, nullptr);
    EXPECT_EQ(trainer(1).words().end_code(), static_cast<uint32_t>(ended->code()));
    StopTorment();
  }

  ManualClock clock_;
  std::atomic<bool> over_{false};
  std::thread hostile_;
};

TEST_F(HostileTest, ItsNeighboursDepartureEndsTheEpoch) {
  trainer(1).Leave();
  ASSERT_NO_FATAL_FAILURE(ExpectToldAndOver());
  ExpectNextEpochWorks();
}

TEST_F(HostileTest, ItsOwnDepartureEndsTheEpoch) {
  trainer(0).Leave();
  ASSERT_NO_FATAL_FAILURE(ExpectToldAndOver());
  ExpectNextEpochWorks();
}

TEST_F(HostileTest, AnErrorOfItsNeighbourEndsTheEpoch) {
  EXPECT_OK(model_->Submit(trainer(1).session(), GatherCommand(7, kW, 0)));
  ASSERT_NO_FATAL_FAILURE(ExpectToldAndOver());
  ExpectNextEpochWorks();
}

TEST_F(HostileTest, ADrainEndsTheEpoch) {
  model_->Drain(SteadyDeadline(absl::Minutes(1)), absl::UnavailableError("the daemon stops"));
  EXPECT_FALSE(model_->status().running);
  ExpectToldAndOver();
}

TEST_F(HostileTest, TheModelMayBeDestroyed) {
  world_->CloseStore();
  model_.reset();
  ExpectToldAndOver();
}

// What its own commands need of its own words comes late, or not at all; what the others need of the daemon comes.
TEST_F(HostileTest, ItsNeighboursWaitIsEndedInTime) {
  StopTorment();
  Open(TestSpec(), {.step_timeout = absl::Milliseconds(50), .clock = &clock_});
  Attach();
  over_ = false;
  hostile_ = std::thread([this, words = trainer(0).words()] { Torment(words); });
  trainer(1).Gather(kMx, 0);
  ASSERT_TRUE(AwaitWait("rank 0: gather mx"));
  clock_.Advance(absl::Milliseconds(50));
  ASSERT_NO_FATAL_FAILURE(ExpectToldAndOver());
  EXPECT_THAT(trainer(1).AwaitEnded()->message(), HasSubstr("rank 0 did not reach gather mx"));
}

// --- Commits that are under way when the epoch ends ---

class VoteTest : public ModelTest {
 protected:
  void TearDown() override {
    if (!go_on_.HasBeenNotified()) go_on_.Notify();
    trainers_.clear();
  }

  // Stops the push thread: to be called in a vote.
  absl::Status Hold() {
    held_.Notify();
    go_on_.WaitForNotification();
    return answer_;
  }
  // Brings a commit to where it is held.
  void CommitUntilHeld() {
    Attach();
    Push(kW, [](int) { return 1.0f; });
    for (const auto& trainer : trainers_) trainer->Commit(1, "state");
    ASSERT_TRUE(held_.WaitForNotificationWithTimeout(absl::Seconds(30)));
  }
  void CommitUntilVote() {
    world_->cluster().BeforeVote([this] { return Hold(); });
    CommitUntilHeld();
  }
  void CommitUntilDecided() {
    world_->cluster().AfterVote([this] { return Hold(); });
    CommitUntilHeld();
  }
  void ExpectApplied() {
    EXPECT_EQ(commit_number(), 1);
    EXPECT_EQ(trainer(0).AwaitEnded()->commit_number(), 1);
    EXPECT_THAT(Read(kW, StateTensor::kMaster), All(1 - kLearningRate));
    EXPECT_TRUE(trainer(0).AwaitCommitted(1).has_value()) << "it was answered before the end";
    EXPECT_EQ(model_->commit_log().client_state(1), "state");
  }
  void ExpectNotApplied() {
    EXPECT_EQ(commit_number(), 0);
    EXPECT_EQ(trainer(0).AwaitEnded()->commit_number(), 0);
    EXPECT_THAT(Read(kW, StateTensor::kMaster), All(1));
    EXPECT_FALSE(trainer(0).AwaitCommitted(1).has_value());
    StateHash(*model_);
  }

  absl::Notification held_, go_on_;
  absl::Status answer_;
};

TEST_F(VoteTest, ADeathAfterTheDecisionDoesNotUndoIt) {
  CommitUntilDecided();
  trainer(1).Leave();
  go_on_.Notify();
  ExpectEnded(absl::StatusCode::kAborted, AllOf(HasSubstr("rank 1"), HasSubstr("resume from commit 1 (version 1)")));
  ExpectApplied();
}

TEST_F(VoteTest, ADeathBeforeTheDecisionDropsTheCommit) {
  CommitUntilVote();
  trainer(1).Leave();
  go_on_.Notify();
  ExpectEnded(absl::StatusCode::kAborted, AllOf(HasSubstr("rank 1"), HasSubstr("resume from commit 0 (version 0)")));
  ExpectNotApplied();
}

TEST_F(VoteTest, AVoteThatFailsAppliesNothing) {
  CommitUntilVote();
  answer_ = absl::UnavailableError("node 0 is gone");
  go_on_.Notify();
  ExpectEnded(absl::StatusCode::kUnavailable, AllOf(HasSubstr("node 0 is gone"), HasSubstr("resume from commit 0")));
  ExpectNotApplied();
}

TEST_F(VoteTest, ADrainWaitsForTheCommit) {
  CommitUntilVote();
  std::thread drain(
      [this] { model_->Drain(SteadyDeadline(absl::Minutes(1)), absl::UnavailableError("the daemon stops")); });
  FakeTrainer late(model_.get(), 0);
  // Until the drain has begun the rank is held.
  absl::Status refused = late.Attach();
  for (const absl::Time end = absl::Now() + absl::Seconds(30); absl::IsAlreadyExists(refused) && absl::Now() < end;) {
    std::this_thread::yield();
    refused = late.Attach();
  }
  EXPECT_THAT(refused, StatusIs(absl::StatusCode::kUnavailable, HasSubstr("the daemon stops")));
  EXPECT_TRUE(model_->status().running);
  go_on_.Notify();
  drain.join();
  ExpectEnded(absl::StatusCode::kUnavailable, AllOf(HasSubstr("the daemon stops"), HasSubstr("resume from commit 1")));
  EXPECT_TRUE(trainer(0).AwaitCommitted(1).has_value());
  EXPECT_FALSE(model_->status().running);
}

TEST_F(VoteTest, ADrainGivesUpAtItsDeadline) {
  CommitUntilDecided();
  model_->Drain(SteadyDeadline(absl::Milliseconds(20)), absl::UnavailableError("the daemon stops"));
  go_on_.Notify();
  ExpectEnded(absl::StatusCode::kUnavailable, HasSubstr("the daemon stops"));
  ExpectApplied();
}

TEST_F(ModelTest, ADrainTellsThoseWhoWait) {
  FakeTrainer first(model_.get(), 0);
  ASSERT_OK(first.Attach());
  model_->Drain(SteadyDeadline(absl::Minutes(1)), absl::UnavailableError("the daemon stops"));
  const v1::EpochEnded* ended = first.AwaitEnded();
  ASSERT_NE(ended, nullptr);
  EXPECT_EQ(ended->code(), static_cast<int>(absl::StatusCode::kUnavailable));
  FakeTrainer second(model_.get(), 1);
  EXPECT_THAT(second.Attach(), StatusIs(absl::StatusCode::kUnavailable));
}

TEST_F(ModelTest, AnIdleModelDrainsAtOnce) {
  model_->Drain(kNever, absl::UnavailableError("the daemon stops"));
  model_->Drain(kNever, absl::UnavailableError("again"));
}

TEST_F(ModelTest, WhoIsGivenUpWhileWaitingLeaves) {
  FakeTrainer waiting(model_.get(), 0);
  ASSERT_OK(waiting.Attach());
  EXPECT_TRUE(model_->LeaveIfWaiting(waiting.session(), absl::DeadlineExceededError("rank 1 did not come")));
  const v1::EpochEnded* ended = waiting.AwaitEnded();
  ASSERT_NE(ended, nullptr);
  EXPECT_EQ(ended->message(), "rank 1 did not come");
  EXPECT_FALSE(model_->LeaveIfWaiting(waiting.session(), absl::DeadlineExceededError("again")));
}

TEST_F(ModelTest, WhoseEpochHasBegunIsNotGivenUp) {
  Attach();
  EXPECT_FALSE(model_->LeaveIfWaiting(trainer(0).session(), absl::DeadlineExceededError("rank 1 did not come")));
  EXPECT_TRUE(model_->status().running);
}

// --- Changing the state ---

TEST_F(ModelTest, StateIsChangedBetweenEpochsOnly) {
  const auto change = [this](int* calls) {
    return model_->Change({.commit_number = 12, .version = 10}, [&, calls] {
      ++*calls;
      absl::Status status;
      for (const auto& shard : model_->shards()) {
        const ShardExtent& extent = *shard->Find(kW, 0);
        status.Update(shard->Write(extent, StateTensor::kMaster, std::vector<float>(extent.elements, 3.0f)));
      }
      return status;
    });
  };
  int calls = 0;
  {
    FakeTrainer waiting(model_.get(), 1);
    ASSERT_OK(waiting.Attach());
    EXPECT_THAT(change(&calls),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         AllOf(HasSubstr("rank 1"), HasSubstr(absl::StrCat(10'000 + waiting.session())))));
  }
  Attach();
  EXPECT_THAT(change(&calls), StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("rank 0")));
  EXPECT_EQ(calls, 0);
  trainers_.clear();
  ASSERT_OK(change(&calls)) << "an epoch that is ending is waited for";
  EXPECT_EQ(calls, 1);
  Attach();
  EXPECT_EQ(trainer(0).started().commit_number(), 12);
  EXPECT_EQ(trainer(0).started().version(), 10);
  EXPECT_FALSE(trainer(0).started().has_last_commit());
  EXPECT_THAT(Read(kW, StateTensor::kMaster), All(3));
  StateHash(*model_);
  Step();
  EXPECT_EQ(commit_number(), 13);
  EXPECT_EQ(model_->commit_log().numbers().version, 11);
}

// --- Looking at it ---

TEST_F(ModelTest, StatusSaysWhatARankWaitsFor) {
  Attach();
  trainer(1).Gather(kMx, 0);
  const auto waits = [this] { return model_->status().seats[1].waits_for; };
  for (const absl::Time end = absl::Now() + absl::Seconds(30); waits().empty() && absl::Now() < end;) {
    std::this_thread::yield();
  }
  const Model::Status status = model_->status();
  EXPECT_THAT(status.seats[1].waits_for, AllOf(HasSubstr("rank 0"), HasSubstr("gather mx")));
  EXPECT_EQ(status.seats[1].last_command, 1);
  EXPECT_EQ(status.seats[0].last_command, 0);
  EXPECT_EQ(status.seats[0].epoch, 1);
  EXPECT_EQ(status.epoch, 1);
  EXPECT_EQ(status.engine, "memcpy");
  EXPECT_EQ(status.slots_bytes, model_->layout().slots_bytes());
  EXPECT_GT(status.words_bytes, 0);
  trainers_.clear();
}

// --- Nothing left behind ---

TEST_F(ModelTest, EpochsLeaveNothingBehind) {
  const int64_t descriptors = OpenDescriptors();
  const int64_t threads = Threads();
  for (int i = 0; i < 100; ++i) {
    Attach();
    trainers_.clear();
  }
  EXPECT_TRUE(SettlesAt(descriptors, OpenDescriptors));
  EXPECT_TRUE(SettlesAt(threads, Threads));
}

TEST_F(ModelTest, AModelMayBeDestroyedWhileAnEpochRuns) {
  Attach();
  trainer(0).Gather(kMx, 0);
  world_->CloseStore();
  model_.reset();
  ExpectEnded(absl::StatusCode::kUnavailable, HasSubstr("the model was deleted"));
}

}  // namespace
}  // namespace paramshard::server
