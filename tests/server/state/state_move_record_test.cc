#include "server/state/state_move_record.h"

#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/state/test_spec.h"
#include "tests/support/status_matchers.h"

namespace paramshard::server {
namespace {

using ::testing::HasSubstr;

v1::ParameterSpec Parameter(const std::string& name, std::vector<int64_t> shape, v1::MomentType moments) {
  v1::ParameterSpec parameter = MakeParameter(name, std::move(shape), v1::FORMAT_BF16);
  parameter.set_exp_avg_type(moments);
  parameter.set_exp_avg_sq_type(moments);
  return parameter;
}

class StateMoveRecordTest : public testing::Test {
 protected:
  static constexpr MovePolicy kPolicy = {.moves = true, .rule = {.most_bands = 100, .least_elements = 10'000}};

  static ShardPlacement Place(const MovePolicy& policy) {
    const ModelSpec spec = Parse(MakeSpec(
        "m", {MakeUnit("u", {Parameter("a", {700, 64}, v1::MOMENT_TYPE_FP8), Parameter("b", {7}, v1::MOMENT_TYPE_FP32),
                             Parameter("c", {300, 128}, v1::MOMENT_TYPE_BF16)})}));
    return ShardPlacement::Of(spec, Layout(spec, 1), 0, policy);
  }

  static void ExpectSame(const StateMoves& moves, const StateMoves& expected) {
    ASSERT_EQ(moves.bands.size(), expected.bands.size());
    for (size_t i = 0; i < moves.bands.size(); ++i) {
      EXPECT_EQ(moves.bands[i].extent, expected.bands[i].extent) << i;
      EXPECT_EQ(moves.bands[i].row, expected.bands[i].row) << i;
    }
    EXPECT_EQ(moves.distance, expected.distance);
  }

  const ShardPlacement placement_ = Place(kPolicy);
  const StateMoveRecord record_ = RecordMoves(placement_, 0);
};

TEST_F(StateMoveRecordTest, GivesTheMovesThatWereWrittenDown) {
  ASSERT_GT(placement_.moves.bands.size(), 4u);
  for (const int64_t position : {int64_t{0}, placement_.moves.distance}) {
    const StateMoveRecord record = RecordMoves(placement_, position);
    ASSERT_OK_AND_ASSIGN(const StateMoves alone, RebuildMoves(record));
    ASSERT_OK_AND_ASSIGN(const StateMoves placed, RebuildMoves(record, placement_));
    for (const StateMoves& moves : {alone, placed}) {
      ExpectSame(moves, placement_.moves);
      EXPECT_EQ(moves.position, position);
    }
  }
}

TEST_F(StateMoveRecordTest, AStateThatStaysHasNoBands) {
  const ShardPlacement placement = Place({});
  ASSERT_OK_AND_ASSIGN(const StateMoves moves, RebuildMoves(RecordMoves(placement, 0), placement));
  EXPECT_TRUE(moves.bands.empty());
  EXPECT_EQ(moves.distance, 0);
  StateMoveRecord moved = RecordMoves(placement, 0);
  moved.distance = 512;
  EXPECT_THAT(RebuildMoves(moved), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("distance")));
}

// A field of the record, and what an error about it says.
struct Field {
  std::string name;
  std::function<int64_t*(StateMoveRecord&)> find;
};

std::vector<Field> FieldsOf(const StateMoveRecord& record) {
  std::vector<Field> fields = {
      {"extent alignment", [](StateMoveRecord& r) { return &r.constants.extent_alignment; }},
      {"move unit", [](StateMoveRecord& r) { return &r.constants.move_unit; }},
      {"band lanes", [](StateMoveRecord& r) { return &r.constants.band_lanes; }},
      {"band tile rows", [](StateMoveRecord& r) { return &r.constants.band_tile_rows; }},
      {"band tile elements", [](StateMoveRecord& r) { return &r.constants.band_tile_elements; }},
      {"most bands", [](StateMoveRecord& r) { return &r.rule.most_bands; }},
      {"least elements of a band", [](StateMoveRecord& r) { return &r.rule.least_elements; }},
      {"distance", [](StateMoveRecord& r) { return &r.distance; }},
      {"position", [](StateMoveRecord& r) { return &r.position; }},
  };
  for (size_t i = 0; i < record.extents.size(); ++i) {
    const std::string of = " of extent " + std::to_string(i);
    fields.push_back({"rows" + of, [i](StateMoveRecord& r) { return &r.extents[i].rows; }});
    fields.push_back({"columns" + of, [i](StateMoveRecord& r) { return &r.extents[i].columns; }});
    for (int array = 0; array < kStateArrays; ++array) {
      fields.push_back({"bytes of a row in array " + std::to_string(array) + of,
                        [i, array](StateMoveRecord& r) { return &r.extents[i].row_bytes[array]; }});
    }
    for (size_t band = 0; band < record.extents[i].band_rows.size(); ++band) {
      fields.push_back({"first row of band " + std::to_string(band) + of,
                        [i, band](StateMoveRecord& r) { return &r.extents[i].band_rows[band]; }});
    }
  }
  return fields;
}

TEST_F(StateMoveRecordTest, AnotherNumberInAnyFieldIsNamed) {
  for (const Field& field : FieldsOf(record_)) {
    SCOPED_TRACE(field.name);
    for (const int64_t change : {int64_t{1}, int64_t{-1}, int64_t{128}, int64_t{512}, int64_t{1} << 40}) {
      StateMoveRecord changed = record_;
      *field.find(changed) += change;
      EXPECT_THAT(RebuildMoves(changed, placement_),
                  StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(field.name)))
          << change;
    }
  }
}

// No record, whatever is in it, lets anything overflow or take long; what is accepted can be made.
TEST_F(StateMoveRecordTest, ARecordAloneMaySayAnything) {
  for (const Field& field : FieldsOf(record_)) {
    SCOPED_TRACE(field.name);
    for (const int64_t value : {std::numeric_limits<int64_t>::min(), int64_t{-1}, int64_t{0}, int64_t{1},
                                int64_t{1} << 32, int64_t{1} << 56, std::numeric_limits<int64_t>::max()}) {
      StateMoveRecord changed = record_;
      *field.find(changed) = value;
      const absl::StatusOr<StateMoves> moves = RebuildMoves(changed);
      if (!moves.ok()) {
        EXPECT_THAT(moves, StatusIs(absl::StatusCode::kInvalidArgument));
        continue;
      }
      std::vector<MatrixShape> shapes;
      for (const StateMoveRecord::Extent& extent : changed.extents) shapes.push_back({extent.rows, extent.columns});
      EXPECT_OK(CheckBands(shapes, moves->bands));
      EXPECT_TRUE(moves->position == 0 || moves->position == moves->distance);
    }
  }
}

TEST_F(StateMoveRecordTest, ExtentsAndBandsThatAreMissingOrTooManyAreNamed) {
  const auto refused = [&](const std::function<void(StateMoveRecord&)>& change, const std::string& name) {
    StateMoveRecord changed = record_;
    change(changed);
    EXPECT_THAT(RebuildMoves(changed, placement_), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(name)));
  };
  refused([](StateMoveRecord& r) { r.extents.pop_back(); }, "number of extents: want 3, got 2");
  refused([](StateMoveRecord& r) { r.extents.push_back(r.extents[0]); }, "number of extents: want 3, got 4");
  refused([](StateMoveRecord& r) { std::swap(r.extents[0], r.extents[2]); }, "rows of extent 0");
  refused([](StateMoveRecord& r) { r.extents[0].band_rows.pop_back(); }, "number of bands of extent 0");
  refused([](StateMoveRecord& r) { r.extents[2].band_rows.push_back(256); }, "number of bands of extent 2");
  refused([](StateMoveRecord& r) { r.extents[0].band_rows.clear(); }, "number of bands of extent 0");
}

TEST_F(StateMoveRecordTest, APlacementByAnotherRuleIsRefused) {
  MovePolicy other = kPolicy;
  other.rule.least_elements *= 2;
  EXPECT_THAT(RebuildMoves(record_, Place(other)),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("least elements of a band: want 20000")));
  EXPECT_THAT(RebuildMoves(record_, Place({})), StatusIs(absl::StatusCode::kInvalidArgument));
}

}  // namespace
}  // namespace paramshard::server
