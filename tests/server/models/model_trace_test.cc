// Events that are recorded of a step, and lines of the log when an epoch fails.

#include <algorithm>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/observe/trace.h"
#include "tests/server/models/model_fixture.h"
#include "tests/server/state/test_spec.h"

namespace paramshard::server {
namespace {

using ::testing::HasSubstr;

constexpr size_t kMost = 10'000;

TEST_F(ModelTest, NothingIsRecordedBeforeTheFirstEpoch) { EXPECT_EQ(model_->trainers().recorder(), nullptr); }

TEST_F(ModelTest, AStepIsRecordedInOrderForEachRank) {
  Attach();
  Step();
  for (const auto& trainer : trainers_) trainer->Gather(kW, 0);
  for (const auto& trainer : trainers_) ASSERT_TRUE(trainer->AwaitReady(0, 3));
  Push(kW, [](int) { return 1.0f; });
  for (const auto& trainer : trainers_) trainer->Release(0, 3);
  Commit();
  const Trace trace = MakeTrace(*model_->trainers().recorder(), 1, kMost);
  EXPECT_FALSE(trace.truncated);
  for (int rank : {0, 1}) {
    int64_t last_end = 0;
    for (const EventKind kind : {EventKind::kGather, EventKind::kPush, EventKind::kSum, EventKind::kVote,
                                 EventKind::kApply, EventKind::kAnswer}) {
      const auto span = std::find_if(trace.spans.begin(), trace.spans.end(),
                                     [&](const Span& s) { return s.kind == kind && s.rank == rank; });
      ASSERT_NE(span, trace.spans.end()) << EventName(kind) << " of rank " << rank;
      EXPECT_EQ(span->commit_number, 2) << EventName(kind);
      // Gathers belong to another thread than pushes.
      if (kind != EventKind::kPush) {
        EXPECT_GE(span->begin_ns, last_end) << EventName(kind) << " of rank " << rank;
      }
      ASSERT_TRUE(span->end_ns.has_value()) << EventName(kind) << " of rank " << rank;
      EXPECT_GE(*span->end_ns, span->begin_ns);
      last_end = *span->end_ns;
      const bool is_of_unit = kind == EventKind::kGather || kind == EventKind::kPush;
      EXPECT_EQ(span->unit, is_of_unit ? kW : -1) << EventName(kind);
      EXPECT_EQ(span->bytes > 0, is_of_unit) << EventName(kind);
    }
  }
}

TEST_F(ModelTest, AStepThatWaitedForAReaderShowsTheHold) {
  Attach();
  Step();
  ASSERT_OK_AND_ASSIGN(const std::shared_ptr<Publication::Reader> reader,
                       model_->publication().AddReader({.name = "eval", .pid = 12}));
  const wire::PublicationPage page(reader->publication_page().data());
  ASSERT_TRUE(wire::LeasePage(reader->lease_page().data()).Take(page, page.gate()));
  Step();
  Step();  // by now the reader is late, and not waited for
  const Trace trace = MakeTrace(*model_->trainers().recorder(), 3, kMost, model_->publication().waits());
  std::vector<Span> holds;
  for (const Span& span : trace.spans) {
    if (span.kind == EventKind::kHold) holds.push_back(span);
  }
  ASSERT_EQ(holds.size(), 2u) << "one of each rank";
  for (const Span& hold : holds) {
    EXPECT_EQ(hold.commit_number, 2);
    EXPECT_THAT(hold.readers, testing::ElementsAre("eval (pid 12)"));
    EXPECT_TRUE(hold.end_ns.has_value());
  }
}

TEST_F(ModelTest, WhatIsRecordedStaysAfterTheEpoch) {
  Attach();
  Step();
  trainer(0).Leave();
  trainers_.clear();
  EXPECT_FALSE(MakeTrace(*model_->trainers().recorder(), 3, kMost).spans.empty());
}

TEST_F(ModelTest, TheLogNamesWhatMultipliesForMuon) {
  v1::ModelSpec spec = MakeSpec("m", {MakeUnit("w", {Owned(MakeParameter("w", {24, 8}))})});
  spec.add_groups()->set_optimizer(v1::OPTIMIZER_MUON);
  testing::internal::CaptureStderr();
  Open(spec);
  CloseWorld();
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              HasSubstr("matrix products of Muon model=m products=\"float32 sums in the order of their terms\""));
}

TEST_F(ModelTest, TheLogSaysWhomAFailedEpochWaitedFor) {
  testing::internal::CaptureStderr();
  Attach();
  Step();
  trainer(0).Commit(2);
  EXPECT_TRUE(AwaitWait("rank 1: commit 2"));
  trainer(1).Leave();
  // Its end is told before its lines are written; the model waits for both when it goes.
  CloseWorld();
  const std::string lines = testing::internal::GetCapturedStderr();
  EXPECT_THAT(lines, HasSubstr("rank state at epoch end model=m epoch=1 state=\"rank 0: sent command 3 "));
  EXPECT_THAT(lines, HasSubstr("waited for rank 1 in command 3 for"));
  EXPECT_THAT(lines, HasSubstr("state=\"rank 1: sent command 2 "));
}

}  // namespace
}  // namespace paramshard::server
