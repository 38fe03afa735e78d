#include "common/model/rank_loads.h"

#include <algorithm>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/common/model/random_model.h"
#include "tests/common/model/reference_format.h"

namespace paramshard {
namespace {

using ::testing::ElementsAre;

ModelSpec ModelOf(std::vector<ParameterSpec> parameters, int64_t small_parameter_bytes) {
  ModelSpec spec;
  spec.units.emplace_back();
  spec.units[0].parameters = std::move(parameters);
  spec.small_parameter_bytes = small_parameter_bytes;
  return spec;
}

TEST(RankLoadsTest, LargestGoesFirstToTheLeastLoaded) {
  const RankLoads loads(ModelOf({MakeParameter("a", {10}, Format::kFP32), MakeParameter("b", {40}, Format::kFP32),
                                 MakeParameter("c", {20}, Format::kFP32), MakeParameter("d", {10}, Format::kFP32)},
                                1000),
                        2);
  EXPECT_THAT(loads.owners(), ElementsAre(1, 0, 1, 1));
  EXPECT_THAT(loads.bytes(), ElementsAre(160, 160));
  EXPECT_EQ(loads.Imbalance(), 1);
}

TEST(RankLoadsTest, ExtentsOfLargeParametersCount) {
  // Three rows over two ranks: rank 0 has two of them.
  const RankLoads loads(ModelOf({MakeParameter("w", {3, 100}, Format::kFP32), MakeParameter("a", {25}, Format::kFP32),
                                 MakeParameter("b", {25}, Format::kFP32)},
                                200),
                        2);
  EXPECT_THAT(loads.owners(), ElementsAre(-1, 1, 1));
  EXPECT_THAT(loads.bytes(), ElementsAre(800, 600));
}

TEST(RankLoadsTest, EmptyModelIsBalanced) { EXPECT_EQ(RankLoads(ModelSpec(), 4).Imbalance(), 1); }

// The rule without shortcuts: count row by row, then search all ranks for each small parameter.
class PlainLoads {
 public:
  PlainLoads(const ModelSpec& spec, int ranks) : bytes(ranks, 0) {
    std::vector<const ParameterSpec*> all;
    for (const UnitSpec& unit : spec.units) {
      for (const ParameterSpec& parameter : unit.parameters) all.push_back(&parameter);
    }
    owners.assign(all.size(), -1);
    std::vector<std::pair<int64_t, int>> small;  // minus bytes, index
    for (int i = 0; i < static_cast<int>(all.size()); ++i) {
      const int64_t size = ReferenceOf(*all[i]->encoding.format).AllBytes(all[i]->rows(), all[i]->columns());
      if (size < spec.small_parameter_bytes) {
        small.emplace_back(-size, i);
      } else {
        CountRows(*all[i]);
      }
    }
    std::sort(small.begin(), small.end());
    for (const auto& [minus_size, index] : small) {
      owners[index] = static_cast<int>(std::min_element(bytes.begin(), bytes.end()) - bytes.begin());
      bytes[owners[index]] -= minus_size;
    }
  }

  std::vector<int64_t> bytes;
  std::vector<int> owners;

 private:
  void CountRows(const ParameterSpec& spec) {
    const ReferenceFormat& format = ReferenceOf(*spec.encoding.format);
    const std::vector<int> rows = ChunkOwners(spec.rows(), format.granule, static_cast<int>(bytes.size()));
    for (int rank = 0; rank < static_cast<int>(bytes.size()); ++rank) {
      bytes[rank] += format.AllBytes(std::count(rows.begin(), rows.end(), rank), spec.columns());
    }
  }
};

TEST(RankLoadsTest, OwnersAreThoseOfThePlainRule) {
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    RandomModel random(seed);
    const ModelSpec spec = random.Spec();
    const int ranks = random.Ranks();
    SCOPED_TRACE(absl::StrCat("seed ", seed, ", ", ranks, " ranks"));
    const RankLoads loads(spec, ranks);
    const PlainLoads plain(spec, ranks);
    EXPECT_EQ(loads.owners(), plain.owners);
    EXPECT_EQ(loads.bytes(), plain.bytes);
  }
}

}  // namespace
}  // namespace paramshard
