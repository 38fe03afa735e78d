#include "common/model/plane_places.h"

#include <algorithm>
#include <cstring>
#include <random>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "common/model/layout.h"
#include "common/model/model_spec_proto.h"
#include "gmock/gmock.h"
#include "tests/support/every_format.h"
#include "tests/support/status_matchers.h"

namespace paramshard {
namespace {

using ::testing::Combine;
using ::testing::Values;

constexpr Plane kPlanes[] = {Plane::kRowWise, Plane::kColumnWise};

// Large parameters whose rows divide badly, small ones, and formats side by side.
ModelSpec MakeSpec(Format format) {
  ModelSpec spec;
  spec.name = "mixed";
  spec.small_parameter_bytes = 2000;
  UnitSpec first;
  first.name = "first";
  first.parameters = {
      {.name = "first.w", .shape = {300, 70}, .encoding = {.format = format}},
      {.name = "first.norm", .shape = {70}},
      {.name = "first.small", .shape = {5, 33}, .encoding = {.format = format}},
      {.name = "first.v", .shape = {3, 50, 40}, .encoding = {.format = Format::kBF16}},
      {.name = "first.owned", .shape = {300, 70}, .encoding = {.format = format}, .placement = Placement::kOwned},
      {.name = "first.experts", .shape = {6, 64, 33}, .encoding = {.format = format}, .placement = Placement::kOwned}};
  UnitSpec second;
  second.name = "second";
  second.parameters = {{.name = "second.w", .shape = {64, 128}, .encoding = {.format = format}},
                       {.name = "second.scalar", .shape = {}}};
  second.reshard_after_forward = false;
  spec.units = {first, second};
  return spec;
}

ModelSpec Check(const ModelSpec& spec) { return ParseModelSpec(ModelSpecToProto(spec)).value(); }

struct EncodedPlane {
  std::vector<uint8_t> data;
  std::vector<uint8_t> scales;
  std::vector<uint8_t> amax;
};

std::vector<uint8_t> AnyBytes(int64_t size, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<uint8_t> bytes(size);
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random());
  return bytes;
}

// Makes bytes that differ from every other plane's. Their place does not depend on their values.
EncodedPlane AnyPlane(const Encoding& encoding, Plane plane, int64_t rows, int64_t columns, uint64_t seed) {
  return {AnyBytes(DataBytes(encoding, rows, columns), 3 * seed),
          AnyBytes(ScaleBytes(encoding, plane, rows, columns), 3 * seed + 1),
          AnyBytes(AmaxBytes(encoding.format), 3 * seed + 2)};
}

bool HasTensorScale(Format format) {
  return format == Format::kFP8TensorCurrent || format == Format::kFP8TensorDelayed;
}

std::vector<uint8_t> Cut(const std::vector<uint8_t>& bytes, int64_t begin, int64_t end) {
  return {bytes.begin() + begin, bytes.begin() + end};
}

// Returns an extent's part of a plane: its rows, and every number of the whole tensor.
EncodedPlane ExtentOf(const EncodedPlane& whole, const Encoding& encoding, Plane plane, RowRange rows,
                      int64_t columns) {
  EncodedPlane extent = {
      Cut(whole.data, DataBytes(encoding, rows.begin, columns), DataBytes(encoding, rows.end, columns)), whole.scales,
      whole.amax};
  if (HasTensorScale(encoding.format)) return extent;
  extent.scales = Cut(whole.scales, ScaleBytes(encoding, plane, rows.begin, columns),
                      ScaleBytes(encoding, plane, rows.end, columns));
  return extent;
}

// A model with planes in arenas according to the layout.
class PlanePlacesTest : public testing::TestWithParam<std::tuple<Format, int>> {
 protected:
  PlanePlacesTest() : ranks_(std::get<1>(GetParam())), layout_(Check(MakeSpec(std::get<0>(GetParam()))), ranks_) {
    for (int rank = 0; rank < ranks_; ++rank) arenas_.emplace_back(layout_.arena_bytes(rank));
    for (int unit = 0; unit < 2; ++unit) {
      for (int i = 0; i < ParameterCount(unit); ++i) FillArenas(unit, i);
    }
  }

  const ParameterSpec& SpecOf(int unit, int parameter) const {
    return layout_.spec().units[unit].parameters[parameter];
  }
  int ParameterCount(int unit) const { return static_cast<int>(layout_.spec().units[unit].parameters.size()); }
  Encoding Encoded(int unit, int parameter) const { return EncodingOf(SpecOf(unit, parameter).encoding); }
  bool Brings(int unit, int parameter, Plane plane, Phase phase) const {
    return paramshard::Brings(Encoded(unit, parameter).format, plane, phase);
  }

  EncodedPlane Expected(int unit, int parameter, Plane plane) const {
    return AnyPlane(Encoded(unit, parameter), plane, SpecOf(unit, parameter).rows(), SpecOf(unit, parameter).columns(),
                    100 * unit + 10 * parameter + static_cast<int>(plane));
  }

  void FillArenas(int unit, int parameter) {
    for (int rank = 0; rank < ranks_; ++rank) {
      const RowRange rows = layout_.Extent(unit, parameter, rank);
      const bool is_cut = layout_.units()[unit].parameters[parameter].rows_per_rank > 0;
      if (rows.size() == 0 && !is_cut) continue;
      for (const Plane plane : kPlanes) {
        if (plane == Plane::kColumnWise && !HasColumnPlane(Encoded(unit, parameter).format)) continue;
        const EncodedPlane extent = ExtentOf(Expected(unit, parameter, plane), Encoded(unit, parameter), plane, rows,
                                             SpecOf(unit, parameter).columns());
        const ArenaPlace place = layout_.PlaceInArena(unit, parameter, plane, rank);
        Store(extent.data, place.data, rank);
        Store(extent.scales, place.scales, rank);
        Store(extent.amax, place.amax, rank);
      }
    }
  }

  void Store(const std::vector<uint8_t>& bytes, int64_t offset, int rank) {
    if (!bytes.empty()) std::copy(bytes.begin(), bytes.end(), arenas_[rank].data() + offset);
  }

  static EncodedPlane Read(const uint8_t* memory, const PlanePlace& place) {
    EncodedPlane plane;
    plane.data.assign(memory + place.data.offset, memory + place.data.offset + place.data.bytes);
    for (const ByteRange& range : place.scales) {
      plane.scales.insert(plane.scales.end(), memory + range.offset, memory + range.offset + range.bytes);
    }
    plane.amax.assign(memory + place.amax.offset, memory + place.amax.offset + place.amax.bytes);
    return plane;
  }

  const int ranks_;
  const Layout layout_;
  std::vector<std::vector<uint8_t>> arenas_;
};

TEST_P(PlanePlacesTest, EveryRanksPiecesTogetherAreTheWholeMatrix) {
  for (int unit = 0; unit < 2; ++unit) {
    for (Phase phase : kPhases) {
      std::vector<uint8_t> slot(layout_.units()[unit].slot_bytes[phase]);
      int64_t bytes = 0;
      for (int rank = 0; rank < ranks_; ++rank) {
        for (const PieceCopy& piece : layout_.Pieces(unit, phase, rank)) {
          ASSERT_LE(piece.source + piece.bytes, static_cast<int64_t>(arenas_[rank].size()));
          ASSERT_LE(piece.target + piece.bytes, static_cast<int64_t>(slot.size()));
          std::memcpy(slot.data() + piece.target, arenas_[rank].data() + piece.source, piece.bytes);
          bytes += piece.bytes;
        }
      }
      for (int i = 0; i < ParameterCount(unit); ++i) {
        for (Plane plane : kPlanes) {
          if (!Brings(unit, i, plane, phase)) continue;
          const EncodedPlane got = Read(slot.data(), PlaceInSlot(layout_, unit, i, plane, phase));
          EXPECT_EQ(got.data, Expected(unit, i, plane).data) << unit << " " << i;
          EXPECT_EQ(got.scales, Expected(unit, i, plane).scales) << unit << " " << i;
          EXPECT_EQ(got.amax, Expected(unit, i, plane).amax) << unit << " " << i;
        }
      }
      EXPECT_EQ(layout_.GatheredBytes(unit, phase), bytes);
    }
  }
}

TEST_P(PlanePlacesTest, AGroupOfOneReadsItsArena) {
  if (ranks_ != 1) return;
  for (int unit = 0; unit < 2; ++unit) {
    for (int i = 0; i < ParameterCount(unit); ++i) {
      for (Plane plane : kPlanes) {
        if (!Brings(unit, i, plane, Phase::kBoth)) continue;
        const EncodedPlane got = Read(arenas_[0].data(), PlaceInArena(layout_, unit, i, plane));
        EXPECT_EQ(got.data, Expected(unit, i, plane).data);
        EXPECT_EQ(got.scales, Expected(unit, i, plane).scales);
        EXPECT_EQ(got.amax, Expected(unit, i, plane).amax);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(FormatsAndRanks, PlanePlacesTest,
                         Combine(testing::ValuesIn(EveryFormat()), Values(1, 2, 3, 4, 5, 6, 7, 8)),
                         [](const auto& info) {
                           const absl::string_view format = FormatName(std::get<0>(info.param));
                           return absl::StrCat(format, "On", std::get<1>(info.param));
                         });

TEST(PlanePlacesOfScalesTest, PartsOfRanksThatLieOneAfterTheOtherAreOne) {
  const auto matrix = [](const char* name, int64_t columns) {
    return ParameterSpec{.name = name, .shape = {64, columns}, .encoding = {.format = Format::kMXFP8}};
  };
  ModelSpec spec;
  spec.name = "scales";
  spec.small_parameter_bytes = 0;
  // A rank's scales take 512 bytes, except the 544 bytes of "uneven", which do not fill the room between ranks.
  spec.units = {{.name = "alone", .parameters = {matrix("alone.w", 512)}},
                {.name = "two", .parameters = {matrix("two.v", 512), matrix("two.w", 512)}},
                {.name = "uneven", .parameters = {matrix("uneven.w", 544)}}};
  const Layout layout(Check(spec), 2);
  const auto parts = [&](int unit, int parameter) {
    return PlaceInSlot(layout, unit, parameter, Plane::kRowWise, Phase::kForward).scales;
  };
  ASSERT_EQ(parts(0, 0).size(), 1);
  EXPECT_EQ(parts(0, 0)[0].bytes, 1024);
  EXPECT_EQ(parts(1, 0).size(), 2);
  EXPECT_EQ(parts(1, 1).size(), 2);
  EXPECT_EQ(parts(2, 0).size(), 2);
}

}  // namespace
}  // namespace paramshard
