#include "server/models/staged_import.h"

#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/base/status_macros.h"
#include "kernels/formats/bfloat16.h"
#include "tests/server/models/test_world.h"
#include "tests/server/state/test_spec.h"
#include "tests/support/status_matchers.h"

namespace paramshard::server {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

// Parameters of unit "u" by index.
enum : int { kPlain, kSmall, kBf16, kFp16, kFp8, kRemainder };

v1::ParameterSpec Moments(v1::ParameterSpec parameter, v1::MomentType type) {
  parameter.set_exp_avg_type(type);
  parameter.set_exp_avg_sq_type(type);
  parameter.mutable_initial_value()->mutable_normal()->set_standard_deviation(1);
  return parameter;
}

// A parameter of every type of state, with rows that end in a short block.
v1::ModelSpec TestSpec(const std::string& name = "m") {
  v1::ParameterSpec remainder = Moments(MakeParameter("remainder", {40, 130}, v1::FORMAT_BF16), v1::MOMENT_TYPE_FP8);
  remainder.set_master_type(v1::MASTER_TYPE_BF16_REMAINDER);
  v1::ModelSpec spec =
      MakeSpec(name, {MakeUnit("u", {Moments(MakeParameter("plain", {7, 4}), v1::MOMENT_TYPE_FP32),
                                     Moments(MakeParameter("small", {5}), v1::MOMENT_TYPE_FP32),
                                     Moments(MakeParameter("bf16", {96, 64}, v1::FORMAT_MXFP8), v1::MOMENT_TYPE_BF16),
                                     Moments(MakeParameter("fp16", {40, 130}), v1::MOMENT_TYPE_FP16),
                                     Moments(MakeParameter("fp8", {40, 130}), v1::MOMENT_TYPE_FP8), remainder})});
  spec.set_small_parameter_bytes(100);
  return spec;
}

absl::Span<const uint8_t> BytesOf(const std::vector<float>& values) {
  return {reinterpret_cast<const uint8_t*>(values.data()), values.size() * sizeof(float)};
}

using Slice = StagedImport::Slice;

// The rows of a tensor of one rank's extent, in every form in which it is stored.
struct Piece {
  Slice slice;
  std::vector<uint8_t> bytes;
};

std::vector<Piece> StoredState(const Model& model) {
  std::vector<Piece> pieces;
  for (const auto& shard : model.committed().shards) {
    absl::ReaderMutexLock lock(&shard->mutex());
    for (const ShardExtent& extent : shard->extents()) {
      for (const StateTensor tensor : kStateTensors) {
        const std::vector<HostView> arrays = *shard->arrays().Stored(extent, tensor);
        for (size_t i = 0; i < arrays.size(); ++i) {
          const TensorForm form = i == 0 ? TensorForm::kElements : TensorForm::kRest;
          pieces.push_back({{.unit = extent.unit,
                             .parameter = extent.parameter,
                             .tensor = tensor,
                             .form = form,
                             .type = RowOf(shard->extents().Spec(extent), tensor, form).type,
                             .rows = extent.rows,
                             .step = shard->numbers(extent).step},
                            {arrays[i].bytes().begin(), arrays[i].bytes().end()}});
        }
      }
    }
  }
  return pieces;
}

class StagedImportTest : public testing::Test {
 protected:
  StagedImportTest() { hash_ = StateHash(*model_); }

  const ParameterSpec& Spec(int parameter) { return model_->spec().units[0].parameters[parameter]; }
  static Slice All(const Model& model, int parameter, StateTensor tensor = StateTensor::kMaster) {
    return {.parameter = parameter, .tensor = tensor, .rows = {0, model.spec().units[0].parameters[parameter].rows()}};
  }
  Slice All(int parameter, StateTensor tensor = StateTensor::kMaster) { return All(*model_, parameter, tensor); }
  StagedImport Begin() {
    absl::StatusOr<StagedImport> staged = StagedImport::Begin(model_);
    EXPECT_OK(staged);
    return *std::move(staged);
  }
  static absl::Status Give(StagedImport& staged, const Slice& slice, absl::Span<const uint8_t> bytes) {
    RETURN_IF_ERROR(staged.BeginSlice(slice));
    return staged.Add(bytes);
  }
  // Every tensor of every parameter, `value` everywhere, and steps.
  static absl::Status GiveAll(const Model& model, StagedImport& staged, float value, int64_t step) {
    const auto& parameters = model.spec().units[0].parameters;
    for (int parameter = 0; parameter < static_cast<int>(parameters.size()); ++parameter) {
      for (const StateTensor tensor : kStateTensors) {
        Slice slice = All(model, parameter, tensor);
        slice.step = step;
        const std::vector<float> values(parameters[parameter].rows() * parameters[parameter].columns(), value);
        RETURN_IF_ERROR(Give(staged, slice, BytesOf(values)));
      }
    }
    return absl::OkStatus();
  }
  static absl::StatusOr<History> ImportAll(const std::shared_ptr<Model>& model, float value, int64_t step = 3) {
    ASSIGN_OR_RETURN(StagedImport staged, StagedImport::Begin(model));
    RETURN_IF_ERROR(GiveAll(*model, staged, value, step));
    return staged.Apply({.commit_number = 9, .version = 8});
  }
  static absl::StatusOr<History> ImportMaster(const std::shared_ptr<Model>& model, int parameter, float value) {
    ASSIGN_OR_RETURN(StagedImport staged, StagedImport::Begin(model));
    const ParameterSpec& spec = model->spec().units[0].parameters[parameter];
    RETURN_IF_ERROR(
        Give(staged, All(*model, parameter), BytesOf(std::vector<float>(spec.rows() * spec.columns(), value))));
    return staged.Apply({});
  }
  static Lineage LineageOf(const Model& model) { return model.state().history().lineage; }

  TestWorld world_{{.ranks = 3}};
  const std::shared_ptr<Model> model_ = world_.Create(TestSpec());
  std::string hash_;
};

// --- As it is stored ---

// Bytes of all kinds, NaN and infinity among them.
TEST_F(StagedImportTest, StoredStateComesBackBitForBit) {
  std::mt19937 random(7);
  std::vector<Piece> pieces = StoredState(*model_);
  {
    StagedImport staged = Begin();
    for (Piece& piece : pieces) {
      piece.slice.step = 40 + piece.slice.parameter;
      std::generate(piece.bytes.begin(), piece.bytes.end(), [&] { return static_cast<uint8_t>(random()); });
      ASSERT_OK(Give(staged, piece.slice, piece.bytes)) << piece.slice.parameter;
    }
    ASSERT_OK(staged.Apply({}));
  }
  const std::vector<Piece> stored = StoredState(*model_);
  ASSERT_EQ(stored.size(), pieces.size());
  for (size_t i = 0; i < pieces.size(); ++i) {
    EXPECT_TRUE(stored[i].bytes == pieces[i].bytes) << "parameter " << pieces[i].slice.parameter;
    EXPECT_EQ(stored[i].slice.step, pieces[i].slice.step);
  }
  // Another model of other ranks takes them, however they are cut.
  TestWorld other_world({.ranks = 2});
  const std::shared_ptr<Model> other = other_world.Create(TestSpec());
  ASSERT_OK_AND_ASSIGN(StagedImport staged, StagedImport::Begin(other));
  for (const Piece& piece : pieces) ASSERT_OK(Give(staged, piece.slice, piece.bytes));
  ASSERT_OK(staged.Apply({}));
  for (int parameter = 0; parameter < 6; ++parameter) {
    for (const StateTensor tensor : kStateTensors) {
      const auto whole = [&](const Model& model, size_t array) {
        std::vector<uint8_t> bytes;
        for (const auto& shard : model.committed().shards) {
          const ShardExtent* extent = shard->extents().Find(0, parameter);
          if (extent == nullptr) continue;
          const std::vector<HostView> arrays = *shard->arrays().Stored(*extent, tensor);
          if (array >= arrays.size()) continue;
          bytes.insert(bytes.end(), arrays[array].bytes().begin(), arrays[array].bytes().end());
        }
        return bytes;
      };
      EXPECT_TRUE(whole(*other, 0) == whole(*model_, 0)) << parameter;
      EXPECT_TRUE(whole(*other, 1) == whole(*model_, 1)) << parameter;
    }
  }
}

TEST_F(StagedImportTest, StoredArraysComeTogether) {
  const Slice elements{.parameter = kFp8,
                       .tensor = StateTensor::kFirstMoment,
                       .form = TensorForm::kElements,
                       .type = TensorType::kFP8E4M3,
                       .rows = {0, 40}};
  const std::vector<uint8_t> codes(40 * 130);
  Slice scales = elements;
  scales.form = TensorForm::kRest;
  scales.type = TensorType::kFP32;
  const std::vector<float> factors(40 * 2, 1.0f);
  {
    StagedImport staged = Begin();
    ASSERT_OK(Give(staged, elements, codes));
    EXPECT_THAT(staged.Apply({}),
                StatusIs(kInvalid, HasSubstr("exp_avg scales of the same rows as its exp_avg elements")));
  }
  {
    StagedImport staged = Begin();
    ASSERT_OK(Give(staged, elements, codes));
    scales.rows = {0, 39};
    ASSERT_OK(Give(staged, scales, BytesOf(factors).subspan(0, 39 * 8)));
    EXPECT_THAT(staged.Apply({}), StatusIs(kInvalid, HasSubstr("import fp8: want exp_avg ")));
  }
  EXPECT_EQ(StateHash(*model_), hash_);
  StagedImport staged = Begin();
  ASSERT_OK(Give(staged, elements, codes));
  scales.rows = {0, 40};
  ASSERT_OK(Give(staged, scales, BytesOf(factors)));
  EXPECT_OK(staged.Apply({}));
}

TEST_F(StagedImportTest, WhatAParameterDoesNotStoreIsRefused) {
  const auto refused = [&](Slice slice, const std::string& message) {
    StagedImport staged = Begin();
    EXPECT_THAT(staged.BeginSlice(slice), StatusIs(kInvalid, HasSubstr(message)));
  };
  Slice slice = All(kPlain);
  slice.form = TensorForm::kRest;
  slice.type = TensorType::kInt16;
  refused(slice, "import plain: the parameter has no master remainders");
  slice.tensor = StateTensor::kFirstMoment;
  refused(slice, "the parameter has no exp_avg scales");
  slice.form = TensorForm::kElements;
  refused(slice, "want type FP32 for exp_avg elements, got INT16");
  slice = All(kFp16, StateTensor::kSecondMoment);
  slice.form = TensorForm::kElements;
  slice.type = TensorType::kBF16;
  refused(slice, "import fp16: want type FP16 for exp_avg_sq elements, got BF16");
  slice.form = TensorForm::kValues;
  slice.type = TensorType::kInt16;
  refused(slice, "want type FP32, BF16 or FP16");
}

TEST_F(StagedImportTest, ATensorComesInOneForm) {
  Slice elements = All(kPlain, StateTensor::kFirstMoment);
  elements.form = TensorForm::kElements;
  elements.rows = {0, 3};
  Slice values = All(kPlain, StateTensor::kFirstMoment);
  values.rows = {3, 7};
  for (const auto& [first, second] : {std::pair(elements, values), std::pair(values, elements)}) {
    StagedImport staged = Begin();
    ASSERT_OK(Give(staged, first, BytesOf(std::vector<float>(first.rows.size() * 4))));
    EXPECT_THAT(staged.BeginSlice(second), StatusIs(kInvalid, HasSubstr("either decoded or as it is stored")));
  }
}

// A row's blocks are its own: what is not given is not encoded again.
TEST_F(StagedImportTest, RowsThatAreNotGivenKeepTheirBytes) {
  ASSERT_OK(ImportAll(model_, 0.1f));
  const auto rows_of = [&] {
    std::vector<std::vector<float>> extents;
    for (const auto& shard : model_->committed().shards) {
      const ShardExtent* extent = shard->extents().Find(0, kFp8);
      if (extent != nullptr) extents.push_back(*shard->arrays().Read(*extent, StateTensor::kFirstMoment));
    }
    return extents;
  };
  const auto before = rows_of();
  Slice slice = All(kFp8, StateTensor::kFirstMoment);
  slice.rows = {11, 12};
  StagedImport staged = Begin();
  ASSERT_OK(Give(staged, slice, BytesOf(std::vector<float>(130, 7.0f))));
  ASSERT_OK(staged.Apply({}));
  const auto after = rows_of();
  int64_t row = 0;
  for (size_t i = 0; i < after.size(); ++i) {
    for (size_t at = 0; at < after[i].size(); at += 130, ++row) {
      const std::vector<float> got(after[i].begin() + at, after[i].begin() + at + 130);
      if (row == 11) {
        EXPECT_THAT(got, Each(testing::FloatNear(7.0f, 1e-5f)));
      } else {
        EXPECT_EQ(got, std::vector<float>(before[i].begin() + at, before[i].begin() + at + 130)) << row;
      }
    }
  }
  EXPECT_EQ(row, 40);
}

TEST_F(StagedImportTest, SlicesOfSeveralTypesMeet) {
  StagedImport staged = Begin();
  Slice slice = All(kBf16);
  slice.rows = {0, 10};
  slice.type = TensorType::kBF16;
  const std::vector<uint16_t> twos(10 * 64, 0x4000);
  const absl::Span<const uint8_t> bits(reinterpret_cast<const uint8_t*>(twos.data()), twos.size() * 2);
  ASSERT_OK(Give(staged, slice, bits));
  slice.rows = {50, 96};
  slice.type = TensorType::kFP32;
  ASSERT_OK(Give(staged, slice, BytesOf(std::vector<float>(46 * 64, 1.1f))));
  slice.rows = {40, 50};
  slice.type = TensorType::kBF16;
  ASSERT_OK(Give(staged, slice, bits));
  ASSERT_OK(staged.Apply({}));
  std::vector<float> values;
  for (const auto& shard : model_->committed().shards) {
    const std::vector<float> part = *shard->arrays().Read(*shard->extents().Find(0, kBf16), StateTensor::kMaster);
    values.insert(values.end(), part.begin(), part.end());
  }
  for (int row = 0; row < 96; ++row) {
    if (row < 10 || (row >= 40 && row < 50)) {
      EXPECT_EQ(values[row * 64], 2.0f) << row;
    } else if (row >= 50) {
      EXPECT_EQ(values[row * 64], 1.1f) << row;
    }
  }
}

// --- One at a time ---

TEST_F(StagedImportTest, OneImportHasTheTurn) {
  {
    const StagedImport first = Begin();
    EXPECT_THAT(StagedImport::Begin(model_),
                StatusIs(absl::StatusCode::kUnavailable,
                         HasSubstr("import into m: another import, restore or healing is in progress")));
    EXPECT_OK(StagedImport::Begin(world_.Create(TestSpec("other")))) << "of another model";
  }
  EXPECT_OK(StagedImport::Begin(model_)) << "the first has gone";
}

// --- Histories ---

TEST_F(StagedImportTest, EqualSpecsBeginHistoriesOfOneLineage) {
  TestWorld other({.ranks = 2});
  const std::shared_ptr<Model> equal = other.Create(TestSpec());
  EXPECT_EQ(LineageOf(*equal), LineageOf(*model_));
  EXPECT_NE(equal->state().history().id, model_->state().history().id);
  v1::ModelSpec seeded = TestSpec("seeded");
  seeded.set_seed(5);
  EXPECT_NE(LineageOf(*other.Create(seeded)), LineageOf(*other.Create(TestSpec("unseeded"))));
}

TEST_F(StagedImportTest, TheSameImportMakesTheSameLineage) {
  TestWorld other_world({.ranks = 2});
  const std::shared_ptr<Model> other = other_world.Create(TestSpec());
  const History created = model_->state().history();
  ASSERT_OK_AND_ASSIGN(const History history, ImportMaster(model_, kPlain, 2));
  EXPECT_NE(history.lineage, created.lineage);
  EXPECT_NE(history.id, created.id);
  EXPECT_EQ(LineageOf(*model_), history.lineage);
  EXPECT_EQ(model_->state().history().id, history.id);
  EXPECT_EQ(ImportMaster(other, kPlain, 2)->lineage, history.lineage);
  EXPECT_NE(other->state().history().id, history.id);
  EXPECT_NE(ImportMaster(other, kPlain, 2)->lineage, history.lineage) << "it is another state that it went into";
}

TEST(HistoryTest, EveryBeginningHasAnIdOfItsOwn) {
  uint64_t drawn = 0;
  TestWorld world({.ranks = 1, .hooks = {.draw_history = [&] { return HistoryId{++drawn}; }}});
  const std::shared_ptr<Model> model = world.Create(TestSpec());
  EXPECT_EQ(model->state().history().id, HistoryId{1});
  ASSERT_OK(model->changes().Import({}, [] { return absl::OkStatus(); }));
  EXPECT_EQ(model->state().history().id, HistoryId{2}) << "the same import again is another history";
  ASSERT_OK(world.store().Delete("m", ""));
  EXPECT_EQ(world.Create(TestSpec())->state().history().id, HistoryId{3});
  EXPECT_NE(RandomHistoryId(), RandomHistoryId());
}

TEST_F(StagedImportTest, CutsOrderAndTypesMakeNoDifference) {
  std::vector<float> values(96 * 64);
  std::iota(values.begin(), values.end(), 1.0f);
  for (float& value : values) value = DecodeBFloat16(EncodeBFloat16(value));
  std::vector<uint16_t> bits;
  for (const float value : values) bits.push_back(EncodeBFloat16(value));
  TestWorld other_world({.ranks = 1});
  const std::shared_ptr<Model> other = other_world.Create(TestSpec());

  StagedImport whole = Begin();
  ASSERT_OK(Give(whole, All(kBf16), BytesOf(values)));
  ASSERT_OK(Give(whole, All(kSmall), BytesOf(std::vector<float>(5, 1.0f))));
  ASSERT_OK_AND_ASSIGN(const History history, whole.Apply({}));

  ASSERT_OK_AND_ASSIGN(StagedImport cut, StagedImport::Begin(other));
  ASSERT_OK(Give(cut, All(kSmall), BytesOf(std::vector<float>(5, 1.0f))));
  Slice slice = All(kBf16);
  slice.rows = {60, 96};
  ASSERT_OK(Give(cut, slice, BytesOf(values).subspan(60 * 256)));
  slice.rows = {0, 60};
  slice.type = TensorType::kBF16;
  ASSERT_OK(cut.BeginSlice(slice));
  const absl::Span<const uint8_t> bytes(reinterpret_cast<const uint8_t*>(bits.data()), 60 * 128);
  for (size_t at = 0; at < bytes.size(); at += 102) ASSERT_OK(cut.Add(bytes.subspan(at, 102)));  // across rows
  ASSERT_OK_AND_ASSIGN(const History again, cut.Apply({}));
  EXPECT_EQ(again.lineage, history.lineage);
}

TEST_F(StagedImportTest, AnyOtherByteStepOrNumberMakesAnotherLineage) {
  const auto history_of = [](const std::function<void(StagedImport&, Slice&, std::vector<float>&)>& change,
                             const StagedImport::Numbers& numbers = {}) {
    TestWorld world({.ranks = 1});
    const std::shared_ptr<Model> model = world.Create(TestSpec());
    absl::StatusOr<StagedImport> staged = StagedImport::Begin(model);
    EXPECT_OK(staged);
    std::vector<float> values(28, 1.0f);
    Slice slice = All(*model, kPlain);
    change(*staged, slice, values);
    EXPECT_OK(Give(*staged, slice, BytesOf(values).subspan(0, slice.rows.size() * 16)));
    return staged->Apply(numbers)->lineage.ToString();
  };
  const auto nothing = [](StagedImport&, Slice&, std::vector<float>&) {};
  const std::vector<std::string> histories = {
      history_of(nothing),
      history_of([](StagedImport&, Slice&, std::vector<float>& values) { values[27] = 2; }),
      history_of([](StagedImport&, Slice& slice, std::vector<float>&) { slice.step = 0; }),
      history_of([](StagedImport&, Slice& slice, std::vector<float>&) { slice.step = 1; }),
      history_of([](StagedImport&, Slice& slice, std::vector<float>&) {
        slice.rows = {0, 6};
      }),
      history_of([](StagedImport&, Slice& slice, std::vector<float>&) { slice.tensor = StateTensor::kFirstMoment; }),
      history_of(nothing, {.commit_number = 1}),
      history_of(nothing, {.commit_number = 1, .version = 1})};
  for (size_t i = 0; i < histories.size(); ++i) {
    for (size_t k = 0; k < i; ++k) EXPECT_NE(histories[i], histories[k]) << i << " and " << k;
  }
}

TEST_F(StagedImportTest, AnImportOfTheWholeStateForgetsWhatWasBefore) {
  TestWorld other_world({.ranks = 2});
  const std::shared_ptr<Model> other = other_world.Create(TestSpec());
  ASSERT_OK(ImportMaster(model_, kPlain, 2));
  ASSERT_NE(LineageOf(*other), LineageOf(*model_));
  EXPECT_EQ(ImportAll(model_, 4)->lineage, ImportAll(other, 4)->lineage);
  ASSERT_OK(ImportMaster(model_, kPlain, 2));
  EXPECT_EQ(ImportMaster(other, kPlain, 2)->lineage, LineageOf(*model_)) << "equal again";
}

TEST_F(StagedImportTest, TheCallerMayNameTheHistory) {
  const HistoryId named{absl::MakeUint128(1, 2)};
  StagedImport staged = Begin();
  ASSERT_OK(Give(staged, All(kSmall), BytesOf(std::vector<float>(5, 1.0f))));
  EXPECT_EQ(staged.Apply({.history = named})->id, named);
  EXPECT_EQ(model_->state().history().id, named);
}

TEST(HistoryIdTest, TextGoesBothWays) {
  const HistoryId id{absl::MakeUint128(0x0123456789abcdef, 0xfedcba9876543210)};
  EXPECT_EQ(id.ToString(), "0123456789abcdeffedcba9876543210");
  EXPECT_EQ(*HistoryId::Parse(id.ToString()), id);
  for (const char* text :
       {"", "0x", "0123456789ABCDEFfedcba9876543210", "0123456789abcdeffedcba987654321",
        "0123456789abcdeffedcba98765432100", "0123456789abcdeffedcba987654321 ", "+123456789abcdeffedcba9876543210"}) {
    EXPECT_THAT(HistoryId::Parse(text), StatusIs(kInvalid, HasSubstr("32 hexadecimal digits"))) << text;
  }
}

// --- A change that takes its time ---

// Blocks in its middle until Go.
class SlowChange {
 public:
  explicit SlowChange(Model& model) : thread_([this, &model] { Run(model); }) { begun_.WaitForNotification(); }
  ~SlowChange() { Go().IgnoreError(); }
  absl::Status Go() {
    if (!go_.HasBeenNotified()) go_.Notify();
    if (thread_.joinable()) thread_.join();
    return status_;
  }

 private:
  void Run(Model& model) {
    status_ = model.changes()
                  .Import({},
                          [this] {
                            begun_.Notify();
                            go_.WaitForNotification();
                            return absl::OkStatus();
                          })
                  .status();
  }

  absl::Notification begun_, go_;
  absl::Status status_;
  std::thread thread_;
};

TEST_F(StagedImportTest, AChangeHoldsUpNobody) {
  SlowChange change(*model_);
  EXPECT_EQ(world_.store().List().size(), 1u);
  EXPECT_FALSE(model_->trainers().activity().running);
  EXPECT_OK(model_->state().usable());
  EXPECT_EQ(model_->state().snapshot().numbers.commit_number, 0);
  EXPECT_EQ(model_->trainers().HolderOf(0).session, 0);
  EXPECT_FALSE(model_->trainers().MissingRanks().empty());
  model_->trainers().OnEpochRefused(absl::UnavailableError("as the cluster may say"));
  EXPECT_OK(change.Go());
}

TEST_F(StagedImportTest, AttachAndDeleteAreRefusedDuringAChange) {
  SlowChange change(*model_);
  {
    FakeTrainer trainer(model_.get(), 0);
    EXPECT_THAT(trainer.Attach(),
                StatusIs(absl::StatusCode::kUnavailable, HasSubstr("attach m: an import is being applied; try again")));
  }
  EXPECT_THAT(world_.store().Delete("m", ""),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("delete model m: an import is being applied")));
  EXPECT_THAT(model_->changes().Import({}, [] { return absl::OkStatus(); }),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("import into m: an import is being applied")));
  EXPECT_OK(change.Go());
  AttachAll(*model_);
}

TEST_F(StagedImportTest, ADrainWaitsForAChangeUntilItsDeadline) {
  SlowChange change(*model_);
  model_->trainers().Drain(SteadyTime::min(), absl::UnavailableError("the daemon stops"));
  absl::Notification drained;
  std::thread drain([&] {
    model_->trainers().Drain(kNever, absl::UnavailableError("the daemon stops"));
    drained.Notify();
  });
  EXPECT_FALSE(drained.HasBeenNotified());
  EXPECT_OK(change.Go()) << "what has begun is carried out";
  drain.join();
  EXPECT_THAT(ImportMaster(model_, kPlain, 1), StatusIs(absl::StatusCode::kUnavailable, HasSubstr("the daemon stops")));
}

}  // namespace
}  // namespace paramshard::server
