#include "common/checkpoint/rank_file.h"

#include <map>
#include <set>

#include "absl/strings/str_cat.h"
#include "common/checkpoint/safetensors_image.h"
#include "common/model/layout.h"
#include "common/model/limits.h"
#include "gmock/gmock.h"
#include "tests/common/checkpoint/saved_model.h"
#include "tests/support/status_matchers.h"

namespace paramshard::checkpoint {
namespace {

using ::testing::HasSubstr;

// Returns the number of times that each row of each tensor is in the files of all ranks.
std::map<std::string, std::vector<int>> CountRows(const ModelSpec& spec, const World& world, int64_t max_header_bytes) {
  std::map<std::string, std::vector<int>> counts;
  for (const UnitSpec& unit : spec.units) {
    for (const ParameterSpec& parameter : unit.parameters) {
      for (const ArrayKind kind : ArraysOf(parameter)) {
        counts[TensorKey(parameter, kind)].resize(ShapeOf(parameter, kind)->rows);
      }
    }
  }
  const Layout layout(spec, world.shard_size);
  for (int rank = 0; rank < world.size; ++rank) {
    const auto plan = RankFilePlan::Create(layout, world, rank, max_header_bytes);
    EXPECT_OK(plan);
    for (const PlannedFile& file : plan->files()) {
      for (const PlannedTensor& tensor : file.tensors()) {
        for (int64_t row = 0; row < tensor.run.rows; ++row) ++counts.at(tensor.key).at(tensor.run.first_row + row);
      }
    }
  }
  return counts;
}

TEST(RankFileTest, AllRanksTogetherSaveEveryRowOnceInEveryWorld) {
  const ModelSpec spec = SpecOfEverything();
  for (int size = 1; size <= 9; ++size) {
    for (int shard_size = 1; shard_size <= size; ++shard_size) {
      if (size % shard_size != 0) continue;
      SCOPED_TRACE(absl::StrCat(size, " ranks in groups of ", shard_size));
      for (const auto& [key, counts] : CountRows(spec, {size, shard_size}, RankFilePlan::kMaxHeaderBytes)) {
        EXPECT_THAT(std::set<int>(counts.begin(), counts.end()), testing::ElementsAre(1)) << key;
      }
    }
  }
}

TEST(RankFileTest, HeadersSayWhatIsPlannedWhateverTheClientState) {
  const ModelSpec spec = SpecOfEverything();
  const Layout layout(spec, 2);
  ASSERT_OK_AND_ASSIGN(const RankFilePlan plan, RankFilePlan::Create(layout, {4, 2}, 3));
  const PlannedFile& file = plan.files().front();
  for (const int64_t client_state_bytes : {int64_t{0}, int64_t{1}, static_cast<int64_t>(kMaxClientStateBytes)}) {
    std::string image = file.Header(client_state_bytes);
    ASSERT_EQ(static_cast<int64_t>(image.size()), file.header_bytes());
    image.resize(file.size_bytes(client_state_bytes));
    ASSERT_OK_AND_ASSIGN(const ParsedImage parsed, ParseImage(image));
    EXPECT_EQ(parsed.header_bytes, file.header_bytes());
    EXPECT_EQ(parsed.header.tensors.size(), file.tensors().size() + (client_state_bytes > 0 ? 1 : 0));
    ASSERT_OK_AND_ASSIGN(const std::vector<RowRun> runs, RunsOf(parsed.header, parsed.header_bytes));
    for (size_t i = 0; i < file.tensors().size(); ++i) {
      const PlannedTensor& tensor = file.tensors()[i];
      EXPECT_EQ(parsed.header.tensors[i].name, tensor.key);
      EXPECT_EQ(parsed.header.tensors[i].dtype, tensor.dtype);
      EXPECT_EQ(runs[i].first_row, tensor.run.first_row);
      EXPECT_EQ(runs[i].rows, tensor.run.rows);
      EXPECT_EQ(runs[i].row_bytes, tensor.run.row_bytes);
      EXPECT_EQ(runs[i].offset_bytes, tensor.run.offset_bytes);
      EXPECT_EQ((tensor.run.offset_bytes - file.header_bytes()) % (safetensors::DtypeBits(tensor.dtype) / 8), 0);
    }
  }
}

TEST(RankFileTest, LongHeadersAreSplitOverFiles) {
  const ModelSpec spec = SpecOfEverything();
  const Layout layout(spec, 1);
  constexpr int64_t kMaxHeaderBytes = 2000;
  ASSERT_OK_AND_ASSIGN(const RankFilePlan plan, RankFilePlan::Create(layout, {1, 1}, 0, kMaxHeaderBytes));
  ASSERT_GT(plan.files().size(), 3u);
  for (size_t i = 0; i < plan.files().size(); ++i) {
    EXPECT_LE(plan.files()[i].header_bytes(), kMaxHeaderBytes);
    EXPECT_EQ(plan.files()[i].takes_client_state(), i + 1 == plan.files().size());
  }
  EXPECT_EQ(plan.files()[0].name(), "rank-00000-of-00001.safetensors");
  EXPECT_EQ(plan.files()[1].name(), "rank-00000-of-00001-1.safetensors");
  for (const auto& [key, counts] : CountRows(spec, {1, 1}, kMaxHeaderBytes)) {
    EXPECT_THAT(std::set<int>(counts.begin(), counts.end()), testing::ElementsAre(1)) << key;
  }
}

TEST(RankFileTest, WorldsThatAreNotTheLayoutsAreRefused) {
  const Layout layout(TinySpec(), 2);
  for (const World& world : {World{4, 4}, World{3, 2}, World{0, 2}}) {
    EXPECT_THAT(RankFilePlan::Create(layout, world, 0),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("of 2")));
  }
  EXPECT_THAT(RankFilePlan::Create(layout, {2, 2}, 2), StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(RankFileTest, GranulesStayTogether) {
  EXPECT_EQ(ShareOf({0, 301}, 128, 0, 2).end, 128);
  EXPECT_EQ(ShareOf({0, 301}, 128, 1, 2).begin, 128);
  EXPECT_EQ(ShareOf({0, 301}, 128, 1, 2).end, 301);
  EXPECT_EQ(ShareOf({5, 5}, 1, 0, 3).size(), 0);
}

}  // namespace
}  // namespace paramshard::checkpoint
