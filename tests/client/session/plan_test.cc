// Plan, beside a daemon that the test plays.
#include "client/plan.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "gmock/gmock.h"
#include "kernels/formats/bfloat16.h"
#include "kernels/formats/codec.h"
#include "kernels/formats/float16.h"
#include "kernels/formats/format.h"
#include "tests/client/session/fake_publication.h"
#include "tests/support/daemon_process.h"
#include "tests/support/every_format.h"
#include "tests/support/status_matchers.h"

namespace paramshard {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr uint8_t kUntouched = 0xa5;
constexpr uint32_t kSeed = 20261130;

// --- Every box of every format

// Parameters that are cut, owned, small and of a stack; of odd sizes, too.
ModelSpec OddModel(Format format) {
  ModelSpec spec{.name = "m", .units = {{.name = "a"}, {.name = "b"}}};
  const auto add = [&](int unit, absl::string_view name, std::vector<int64_t> shape, Placement placement) {
    spec.units[unit].parameters.push_back(
        {.name = std::string(name), .shape = std::move(shape), .encoding = {.format = format}, .placement = placement});
  };
  add(0, "cut", {900, 300}, Placement::kCut);  // more than a part of Verify and Digest
  add(0, "small", {3, 5}, Placement::kCut);
  add(1, "owned", {7, 32, 33}, Placement::kOwned);
  add(1, "one row", {1, 513}, Placement::kCut);
  add(1, "scalar", {}, Placement::kCut);
  spec.small_parameter_bytes = 200;
  return spec;
}

// The row-wise plane of a whole parameter.
struct WholePlane {
  WholePlane(const Encoding& encoding_in, int64_t rows_in, int64_t columns_in, uint32_t seed)
      : encoding(encoding_in), rows(rows_in), columns(columns_in), master(rows * columns), values(rows * columns) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal(0.0f, 0.1f);
    for (float& value : master) value = normal(random);
    data.resize(DataBytes(encoding, rows, columns));
    scales.resize(ScaleBytes(encoding, Plane::kRowWise, rows, columns));
    amax.resize(AmaxBytes(encoding.format));
    EncodePlanes(encoding, master.data(), rows, columns, {data.data(), scales.data(), amax.data()}, {},
                 {.amax = Amax(master.data(), rows * columns), .scale = kDelayedScale});
    DecodePlane(encoding, Plane::kRowWise, {data.data(), scales.data(), amax.data()}, rows, columns, values.data());
  }

  // Returns what a box without a stride writes, one element after the other.
  std::vector<uint8_t> Expected(const Box& box) const {
    std::vector<uint8_t> bytes;
    const auto append = [&](const void* source, int64_t count) {
      const auto* const first = static_cast<const uint8_t*>(source);
      bytes.insert(bytes.end(), first, first + count);
    };
    if (box.content == BoxContent::kAmax) return amax;
    const MatrixShape block =
        box.content == BoxContent::kScales ? ScaleBlock(encoding, Plane::kRowWise) : MatrixShape{.rows = 1, .cols = 1};
    const int64_t scale_bytes = ScaleBytes(encoding, Plane::kRowWise, 1, 1);
    for (int64_t row = box.first_row; row < box.first_row + *box.rows; ++row) {
      if (row != box.first_row && row % block.rows != 0) continue;
      for (int64_t column = box.first_column; column < box.first_column + *box.columns; ++column) {
        if (column != box.first_column && column % block.cols != 0) continue;
        const float value = values[row * columns + column];
        const uint16_t bfloat16 = EncodeBFloat16(value), float16 = EncodeFloat16(value);
        switch (box.content) {
          case BoxContent::kFloat32:
            append(&value, sizeof(value));
            break;
          case BoxContent::kBFloat16:
            append(&bfloat16, sizeof(bfloat16));
            break;
          case BoxContent::kFloat16:
            append(&float16, sizeof(float16));
            break;
          case BoxContent::kCodes: {
            const int64_t begin = DataBytes(encoding, 1, column), end = DataBytes(encoding, 1, column + 1);
            append(data.data() + row * DataBytes(encoding, 1, columns) + begin, end - begin);
            break;
          }
          case BoxContent::kScales:
            append(scales.data() + ScaleOffset(encoding, Plane::kRowWise, row, column, columns), scale_bytes);
            break;
          case BoxContent::kAmax:
            break;
        }
      }
    }
    return bytes;
  }

  Encoding encoding;
  int64_t rows, columns;
  std::vector<float> master, values;
  std::vector<uint8_t> data, scales, amax;
};

struct FormatCase {
  Format format;
  int ranks;
};

class PlanOfFormatTest : public testing::TestWithParam<FormatCase> {
 protected:
  void SetUp() override {
    const std::vector<UnitSpec>& units = model_.layout().spec().units;
    for (int unit = 0; unit < static_cast<int>(units.size()); ++unit) {
      for (int i = 0; i < static_cast<int>(units[unit].parameters.size()); ++i) {
        const ParameterSpec& spec = units[unit].parameters[i];
        planes_.emplace_back(EncodingOf(spec.encoding), spec.rows(), spec.columns(), kSeed + planes_.size());
        model_.Encode(unit, i, planes_.back().master);
      }
    }
    model_.Publish(VersionAt(3));
    daemon_.SetModel(&model_);
  }

  // Returns a part of [0, size), which begins and ends anywhere, or at blocks.
  std::pair<int64_t, int64_t> RandomRange(int64_t size, int64_t block) {
    const int64_t step = std::min(size, block);
    const auto any = [&](int64_t most) { return std::uniform_int_distribution<int64_t>(0, most)(random_); };
    const int64_t first = any((size - 1) / step) * step;
    const int64_t end = std::min(size, first + step * (1 + any((size - first) / step)));
    return {first, end - first};
  }

  std::mt19937 random_{kSeed};
  const test::TemporaryDirectory directory_;
  FakePublication model_ = FakePublication(OddModel(GetParam().format), GetParam().ranks);
  FakeReaderDaemon daemon_{directory_.path()};
  std::vector<WholePlane> planes_;  // in the order of parameters
};

TEST_P(PlanOfFormatTest, BoxesAreThoseOfTheWholePlane) {
  ASSERT_OK_AND_ASSIGN(const auto reader, Reader::Create({.model = "m", .socket_dir = directory_.path()}));
  ASSERT_OK_AND_ASSIGN(const Snapshot snapshot, reader->Acquire());
  std::vector<Box> boxes;
  std::vector<std::vector<uint8_t>> expected;
  const auto add = [&](size_t parameter, const Box& box) {
    if (Plan::OutputsOf(snapshot.parameters(), {box}).status().code() == absl::StatusCode::kInvalidArgument) {
      EXPECT_TRUE(box.content == BoxContent::kScales || box.content == BoxContent::kAmax) << box.parameter;
      return;
    }
    boxes.push_back(box);
    expected.push_back(planes_[parameter].Expected(box));
  };
  for (size_t i = 0; i < planes_.size(); ++i) {
    const ReadParameter& parameter = snapshot.parameters()[i];
    const MatrixShape block = ScaleBlock(parameter.encoding, Plane::kRowWise);
    for (const BoxContent content : {BoxContent::kFloat32, BoxContent::kBFloat16, BoxContent::kFloat16,
                                     BoxContent::kCodes, BoxContent::kScales, BoxContent::kAmax}) {
      Box box{.parameter = parameter.name, .rows = parameter.rows, .columns = parameter.columns, .content = content};
      add(i, box);
      if (content != BoxContent::kAmax) {
        Box empty = box;
        empty.columns = 0;
        add(i, empty);
      }
      const bool is_encoded = content == BoxContent::kCodes || content == BoxContent::kScales;
      for (int repeat = 0; repeat < 4; ++repeat) {
        std::tie(box.first_row, box.rows) = RandomRange(parameter.rows, is_encoded ? block.rows : 1);
        std::tie(box.first_column, box.columns) = repeat == 0
                                                      ? std::pair(int64_t{0}, parameter.columns)
                                                      : RandomRange(parameter.columns, is_encoded ? block.cols : 1);
        add(i, box);
      }
    }
  }
  ASSERT_OK_AND_ASSIGN(const std::vector<BoxOutput> outputs, Plan::OutputsOf(snapshot.parameters(), boxes));
  // Every second one has gaps between its rows.
  std::vector<std::vector<uint8_t>> memory(boxes.size());
  for (size_t i = 0; i < boxes.size(); ++i) {
    const int64_t gap = i % 2 == 0 ? 0 : 3 * outputs[i].element_bytes;
    memory[i].assign(outputs[i].rows * (outputs[i].row_bytes + gap), kUntouched);
    boxes[i].out = memory[i].data();
    if (gap != 0) boxes[i].out_stride_bytes = outputs[i].row_bytes + gap;
  }
  ASSERT_OK_AND_ASSIGN(const Plan plan, Plan::Create(snapshot.parameters(), boxes));
  ASSERT_OK(snapshot.CopyTo(plan));
  EXPECT_OK(snapshot.Verify(plan));
  for (size_t i = 0; i < boxes.size(); ++i) {
    std::vector<uint8_t> written;
    const int64_t stride = boxes[i].out_stride_bytes.value_or(outputs[i].row_bytes);
    for (int64_t row = 0; row < outputs[i].rows; ++row) {
      const uint8_t* const first = memory[i].data() + row * stride;
      written.insert(written.end(), first, first + outputs[i].row_bytes);
      for (int64_t byte = outputs[i].row_bytes; byte < stride; ++byte) ASSERT_EQ(first[byte], kUntouched);
    }
    EXPECT_EQ(written, expected[i]) << boxes[i].parameter << ", content " << static_cast<int>(boxes[i].content)
                                    << ", rows " << *boxes[i].rows << " from " << boxes[i].first_row << ", columns "
                                    << *boxes[i].columns << " from " << boxes[i].first_column;
  }
}

TEST_P(PlanOfFormatTest, DigestsAreThoseOfTheWholePlane) {
  ASSERT_OK_AND_ASSIGN(const auto reader, Reader::Create({.model = "m", .socket_dir = directory_.path()}));
  ASSERT_OK_AND_ASSIGN(const Snapshot snapshot, reader->Acquire());
  for (size_t i = 0; i < planes_.size(); ++i) {
    const ReadParameter& parameter = snapshot.parameters()[i];
    for (const BoxContent content : {BoxContent::kFloat32, BoxContent::kBFloat16, BoxContent::kFloat16,
                                     BoxContent::kCodes, BoxContent::kScales, BoxContent::kAmax}) {
      const Box box{
          .parameter = parameter.name, .rows = parameter.rows, .columns = parameter.columns, .content = content};
      const absl::StatusOr<std::vector<BoxOutput>> outputs = Plan::OutputsOf(snapshot.parameters(), {box});
      if (!outputs.ok()) {
        EXPECT_THAT(snapshot.Digest(parameter.name, content), StatusIs(absl::StatusCode::kInvalidArgument));
        continue;
      }
      const std::vector<uint8_t> bytes = planes_[i].Expected(box);
      const int64_t element_bytes = (*outputs)[0].element_bytes;
      EXPECT_THAT(snapshot.Digest(parameter.name, content),
                  IsOkAndHolds(DigestElements(bytes.data(), static_cast<int>(element_bytes),
                                              static_cast<int64_t>(bytes.size()) / element_bytes, 0)))
          << parameter.name << ", content " << static_cast<int>(content);
    }
  }
}

std::vector<FormatCase> EveryFormatCase() {
  std::vector<FormatCase> cases;
  for (const Format format : EveryFormat()) {
    for (const int ranks : {1, 3, 5}) cases.push_back({format, ranks});
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(All, PlanOfFormatTest, testing::ValuesIn(EveryFormatCase()), [](const auto& info) {
  return absl::StrCat(FormatName(info.param.format), "_", info.param.ranks);
});

// --- Bad boxes

const std::vector<ReadParameter>& Parameters() {
  static const auto& parameters = *new std::vector<ReadParameter>{
      {.name = "w", .shape = {300, 200}, .rows = 300, .columns = 200, .encoding = {.format = Format::kFP8Block128x128}},
      {.name = "bias", .shape = {64}, .rows = 1, .columns = 64},
      {.name = "t", .shape = {8, 8}, .rows = 8, .columns = 8, .encoding = {.format = Format::kFP8TensorCurrent}}};
  return parameters;
}

absl::Status CreateOf(std::vector<Box> boxes) { return Plan::Create(Parameters(), std::move(boxes)).status(); }

TEST(PlanTest, ANameThatIsNotThereGivesSimilarOnes) {
  EXPECT_THAT(CreateOf({{.parameter = "bais"}}),
              StatusIs(absl::StatusCode::kNotFound, "plan: parameter bais: not found in the model; similar: bias"));
}

TEST(PlanTest, RowsAndColumnsThatAreNotThereAreRefused) {
  for (const Box& box : {Box{.first_row = 290, .rows = 11}, Box{.first_row = -1, .rows = 2}, Box{.rows = -1},
                         Box{.first_row = 301}, Box{.first_row = 1, .rows = INT64_MAX}}) {
    Box of_w = box;
    of_w.parameter = "w";
    EXPECT_THAT(CreateOf({of_w}),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("w: want rows within [0, 300)")));
  }
  EXPECT_THAT(CreateOf({{.parameter = "w", .first_column = 199, .columns = 2}}),
              StatusIs(absl::StatusCode::kInvalidArgument, "plan: w: want columns within [0, 200), got 2 from 199 on"));
}

TEST(PlanTest, CodesAndScalesOfAPartOfABlockAreRefused) {
  for (const BoxContent content : {BoxContent::kCodes, BoxContent::kScales}) {
    for (const Box& box : {Box{.first_row = 64}, Box{.rows = 299}, Box{.first_column = 1}, Box{.columns = 127}}) {
      Box of_w = box;
      of_w.parameter = "w";
      of_w.content = content;
      EXPECT_THAT(CreateOf({of_w}),
                  StatusIs(absl::StatusCode::kInvalidArgument,
                           AllOf(HasSubstr("plan: w, rows ["), HasSubstr("cut a scale block of 128 x 128"))));
    }
  }
  EXPECT_THAT(
      CreateOf({{.parameter = "w", .first_row = 128, .rows = 100, .content = BoxContent::kCodes}}),
      StatusIs(absl::StatusCode::kInvalidArgument,
               "plan: w, rows [128, 228) and columns [0, 200): codes cut a scale block of 128 x 128: want whole "
               "blocks, or decoded values"));
}

TEST(PlanTest, ScalesAndAmaxThatAFormatDoesNotHaveAreRefused) {
  EXPECT_THAT(CreateOf({{.parameter = "bias", .content = BoxContent::kScales}}),
              StatusIs(absl::StatusCode::kInvalidArgument, "plan: bias: FP32 has no scales"));
  EXPECT_THAT(CreateOf({{.parameter = "w", .content = BoxContent::kAmax}}),
              StatusIs(absl::StatusCode::kInvalidArgument, "plan: w: FP8_BLOCK_128X128 has no amax"));
}

TEST(PlanTest, AScaleOfTheWholeTensorGoesWithEveryPartOfIt) {
  EXPECT_THAT(
      Plan::OutputsOf(Parameters(), {{.parameter = "t", .first_row = 3, .rows = 2, .content = BoxContent::kCodes},
                                     {.parameter = "t", .first_row = 3, .rows = 2, .content = BoxContent::kScales}}),
      IsOkAndHolds(testing::ElementsAre(testing::FieldsAre(2, 8, 1), testing::FieldsAre(1, 4, 4))));
}

class PlanMemoryTest : public testing::Test {
 protected:
  alignas(8) uint8_t memory_[4096] = {};
};

TEST_F(PlanMemoryTest, WrongMemoryIsRefused) {
  EXPECT_THAT(CreateOf({{.parameter = "bias"}}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("null pointer")));
  EXPECT_THAT(CreateOf({{.parameter = "bias", .out = memory_ + 2}}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("aligned to 4 bytes")));
  EXPECT_THAT(CreateOf({{.parameter = "t", .out = memory_, .out_stride_bytes = 31}}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("want a stride of at least 32 bytes, got 31")));
  EXPECT_THAT(CreateOf({{.parameter = "t", .out = memory_, .out_stride_bytes = 34}}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("aligned")));
  EXPECT_OK(CreateOf({{.parameter = "t", .content = BoxContent::kCodes, .out = memory_ + 1}}));
  EXPECT_OK(CreateOf({{.parameter = "t", .rows = 0}}));
}

TEST_F(PlanMemoryTest, MemoryOfTwoBoxesIsRefused) {
  EXPECT_THAT(CreateOf({{.parameter = "bias", .out = memory_}, {.parameter = "t", .out = memory_ + 252}}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("the memory of bias, rows [0, 1)"), HasSubstr("and of t, rows [0, 8)"))));
  EXPECT_OK(CreateOf({{.parameter = "bias", .out = memory_}, {.parameter = "t", .out = memory_ + 256}}));
}

TEST_F(PlanMemoryTest, HalvesOfRowsMayLieBesideEachOther) {
  const auto half = [&](int64_t first_column, int64_t at) {
    return Box{
        .parameter = "t", .first_column = first_column, .columns = 4, .out = memory_ + at, .out_stride_bytes = 32};
  };
  EXPECT_OK(CreateOf({half(0, 0), half(4, 16)}));
  EXPECT_THAT(CreateOf({half(0, 0), half(4, 12)}), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("overlaps")));
}

// --- Versions and sessions

// A matrix "w" of equal values.
ModelSpec EqualModel(int64_t rows) {
  ModelSpec spec{.name = "m", .units = {{.name = "u", .parameters = {{.name = "w", .shape = {rows, 32}}}}}};
  spec.small_parameter_bytes = 0;
  return spec;
}

class PlanLivesTest : public testing::Test {
 protected:
  static void Publish(const FakePublication& model, int64_t commit) {
    if (model.page().gate().state != wire::Gate::State::kWriting) model.BeginWriting();
    const ParameterSpec& spec = model.layout().spec().units[0].parameters[0];
    model.Encode(0, 0, std::vector<float>(spec.rows() * spec.columns(), static_cast<float>(commit)));
    model.Publish(VersionAt(commit));
  }

  void SetUp() override {
    Publish(model_, 50);
    StartDaemon(model_);
    ASSERT_OK_AND_ASSIGN(reader_, Reader::Create({.model = "m", .socket_dir = directory_.path()}));
    ASSERT_OK_AND_ASSIGN(const Snapshot snapshot, reader_->Acquire());
    ASSERT_OK_AND_ASSIGN(
        Plan plan,
        Plan::Create(snapshot.parameters(), {{.parameter = "w", .first_row = 10, .rows = 40, .out = values_.data()}}));
    plan_.emplace(std::move(plan));
  }

  void StartDaemon(FakePublication& model) {
    daemon_.reset();
    daemon_.emplace(directory_.path());
    daemon_->SetModel(&model);
  }

  const test::TemporaryDirectory directory_;
  FakePublication model_ = FakePublication(EqualModel(64), 2);
  std::optional<FakeReaderDaemon> daemon_;
  std::unique_ptr<Reader> reader_;
  std::vector<float> values_ = std::vector<float>(40 * 32);
  std::optional<Plan> plan_;
};

TEST_F(PlanLivesTest, APlanServesLaterVersionsAndRestartedDaemons) {
  for (const int64_t commit : {50, 51}) {
    Publish(model_, commit);
    ASSERT_OK_AND_ASSIGN(const Snapshot snapshot, reader_->Acquire());
    ASSERT_OK(snapshot.CopyTo(*plan_));
    EXPECT_EQ(values_, std::vector<float>(40 * 32, static_cast<float>(commit)));
  }
  FakePublication elsewhere(EqualModel(64), 3);
  Publish(elsewhere, 52);
  StartDaemon(elsewhere);
  ASSERT_OK_AND_ASSIGN(const Snapshot snapshot, reader_->Acquire());
  ASSERT_OK(snapshot.CopyTo(*plan_));
  EXPECT_EQ(values_, std::vector<float>(40 * 32, 52.0f));
  daemon_.reset();
}

TEST_F(PlanLivesTest, GenerationsTakeCopiesOfThePlanesInTurn) {
  FakePublication two(EqualModel(64), 2, 2);
  Publish(two, 60);
  StartDaemon(two);
  for (const int64_t commit : {60, 61, 62}) {
    Publish(two, commit);
    ASSERT_OK_AND_ASSIGN(const Snapshot snapshot, reader_->Acquire());
    ASSERT_OK(snapshot.CopyTo(*plan_));
    EXPECT_EQ(values_, std::vector<float>(40 * 32, static_cast<float>(commit)));
    EXPECT_OK(snapshot.Verify(*plan_));
    std::vector<float> whole(64 * 32);
    ASSERT_OK(snapshot.Read("w", absl::MakeSpan(whole)));
    EXPECT_EQ(whole, std::vector<float>(64 * 32, static_cast<float>(commit)));
  }
  daemon_.reset();
}

TEST_F(PlanLivesTest, AModelWithOtherParametersNeedsAnotherPlan) {
  FakePublication elsewhere(EqualModel(65), 2);
  Publish(elsewhere, 1);
  StartDaemon(elsewhere);
  ASSERT_OK_AND_ASSIGN(const Snapshot snapshot, reader_->Acquire());
  EXPECT_THAT(snapshot.CopyTo(*plan_),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       "plan: w: was made for 64 x 32 FP32, and the model has 65 x 32 FP32: make another plan"));
  daemon_.reset();
}

TEST_F(PlanLivesTest, CopiesOfASnapshotThatHasEndedAreNotWhole) {
  ASSERT_OK_AND_ASSIGN(Snapshot snapshot, reader_->Acquire());
  Publish(model_, 51);
  EXPECT_THAT(snapshot.CopyTo(*plan_), StatusIs(absl::StatusCode::kAborted, HasSubstr("commit 50")));
  EXPECT_THAT(snapshot.Verify(*plan_), StatusIs(absl::StatusCode::kAborted));
  EXPECT_THAT(snapshot.Digest("w", BoxContent::kFloat32), StatusIs(absl::StatusCode::kAborted));
  snapshot.Release();
  EXPECT_THAT(snapshot.CopyTo(*plan_), StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("released")));
}

// A parameter that threads share.
class LargeParameterTest : public testing::TestWithParam<Format> {
 protected:
  static constexpr int64_t kRows = 4097, kColumns = 4224;

  LargeParameterTest() {
    model_.Encode(0, 0, plane_.master);
    model_.Publish(VersionAt(50));
    daemon_.SetModel(&model_);
    reader_ = *Reader::Create({.model = "m", .socket_dir = directory_.path()});
  }

  static ModelSpec Spec() {
    return {.name = "m",
            .units = {{.name = "u",
                       .parameters = {{.name = "w", .shape = {kRows, kColumns}, .encoding = {.format = GetParam()}}}}}};
  }

  const test::TemporaryDirectory directory_;
  FakePublication model_ = FakePublication(Spec(), 3);
  FakeReaderDaemon daemon_{directory_.path()};
  const WholePlane plane_{{.format = GetParam()}, kRows, kColumns, kSeed};
  std::unique_ptr<Reader> reader_;
};

TEST_P(LargeParameterTest, IsInspectedWhole) {
  ASSERT_OK_AND_ASSIGN(const Snapshot snapshot, reader_->Acquire());
  const auto digest_of = [](const auto& elements) {
    return DigestElements(elements.data(), sizeof(elements[0]), std::ssize(elements), 0);
  };
  EXPECT_THAT(snapshot.Digest("w", BoxContent::kFloat32), IsOkAndHolds(digest_of(plane_.values)));
  if (GetParam() != Format::kBF16) {
    EXPECT_THAT(snapshot.Digest("w", BoxContent::kCodes), IsOkAndHolds(digest_of(plane_.data)));
  }
  std::vector<float> values = plane_.values;
  const Box box{.parameter = "w", .rows = kRows, .columns = kColumns, .out = values.data()};
  ASSERT_OK_AND_ASSIGN(const Plan plan, Plan::Create(snapshot.parameters(), {box}));
  EXPECT_OK(snapshot.Verify(plan));
  for (const int64_t row : {4096, 4000, 17}) values[row * kColumns + 5] += 1.0f;
  EXPECT_THAT(snapshot.Verify(plan),
              StatusIs(absl::StatusCode::kDataLoss, "verify: w differs from commit 50 at row 17, column 5"));
  // A part that begins and ends anywhere.
  const Box part{.parameter = "w",
                 .first_row = 130,
                 .rows = kRows - 141,
                 .first_column = 5,
                 .columns = kColumns - 12,
                 .out = values.data()};
  ASSERT_OK_AND_ASSIGN(const Plan plan_of_part, Plan::Create(snapshot.parameters(), {part}));
  ASSERT_OK(snapshot.CopyTo(plan_of_part));
  EXPECT_OK(snapshot.Verify(plan_of_part));
  values[3000 * *part.columns + 7] += 1.0f;
  EXPECT_THAT(snapshot.Verify(plan_of_part),
              StatusIs(absl::StatusCode::kDataLoss, "verify: w differs from commit 50 at row 3130, column 12"));
  EXPECT_OK(snapshot.Check());
}

TEST_P(LargeParameterTest, SaysWhatToDoWhereItIsNotReadInTime) {
  ASSERT_OK_AND_ASSIGN(const Snapshot snapshot, reader_->Acquire());
  std::vector<float> values(kRows * kColumns);
  model_.Publish(VersionAt(51));
  const auto is_told = StatusIs(absl::StatusCode::kAborted,
                                AllOf(HasSubstr("commit 51 now"), HasSubstr("raise the daemon's --reader-hold")));
  EXPECT_THAT(snapshot.Digest("w", BoxContent::kFloat32), is_told);
  EXPECT_THAT(snapshot.Read("w", absl::MakeSpan(values)), is_told);
}

INSTANTIATE_TEST_SUITE_P(Formats, LargeParameterTest, testing::Values(Format::kBF16, Format::kFP8Block128x128),
                         [](const auto& info) { return std::string(FormatName(info.param)); });

TEST_F(PlanLivesTest, VerificationNamesTheFirstElementThatDiffers) {
  ASSERT_OK_AND_ASSIGN(const Snapshot snapshot, reader_->Acquire());
  ASSERT_OK(snapshot.CopyTo(*plan_));
  EXPECT_OK(snapshot.Verify(*plan_));
  values_[33 * 32 + 7] = -0.0f;
  EXPECT_THAT(snapshot.Verify(*plan_),
              StatusIs(absl::StatusCode::kDataLoss, "verify: w differs from commit 50 at row 43, column 7"));
}

}  // namespace
}  // namespace paramshard
