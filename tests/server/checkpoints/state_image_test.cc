#include "server/checkpoints/state_image.h"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/checkpoint/rank_image.h"
#include "common/model/limits.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/checkpoints/staging_directory.h"
#include "tests/server/base/simulated_disk.h"
#include "tests/server/checkpoints/saved_shards.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temporary_directory.h"

namespace paramshard::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Rows that are longer than what is read at a time, of every kind of state.
ModelSpec WideSpec() {
  constexpr int64_t kColumns = StateImage::kElementsOfAPart + 300;
  ModelSpec spec{.name = "wide"};
  ParameterSpec wide{.name = "wide", .shape = {2, kColumns}};
  wide.encoding.format = Format::kBF16;
  wide.master_type = MasterType::kBF16Remainder;
  wide.exp_avg_type = MomentType::kFP8;
  wide.exp_avg_sq_type = MomentType::kFP16;
  ParameterSpec frozen{.name = "frozen", .shape = {3, kColumns}};
  frozen.encoding.format = Format::kMXFP8;
  frozen.trainable = false;
  spec.units.push_back({.name = "unit", .parameters = {wide, frozen}});
  return checkpoint::Checked(spec);
}

// The image against what the model has, byte for byte, and the sums that were made by the way against those of the
// whole bytes.
void ExpectFilled(SavedShards& shards, int rank) {
  const StateImage& image = shards.image(rank);
  checkpoint::Part part;
  ASSERT_OK(image.AddTo(part));
  const auto client_state_bytes = static_cast<int64_t>(checkpoint::SavedModel::ClientState(rank).size());
  ASSERT_EQ(part.files.size(), image.file_count());
  for (int i = 0; i < image.file_count(); ++i) {
    const checkpoint::PlannedFile& file = image.file(i);
    const int64_t sent_bytes = file.takes_client_state() ? client_state_bytes : 0;
    EXPECT_EQ(part.files[i], checkpoint::EntryOf(file, image.Bytes(i), sent_bytes));
    for (const checkpoint::PlannedTensor& tensor : file.tensors()) {
      const std::vector<uint8_t>& array = shards.model().arrays().at(tensor.key);
      const auto rows = image.Bytes(i).subspan(tensor.run.offset_bytes, tensor.run.size_bytes());
      const auto expected =
          absl::MakeConstSpan(array).subspan(tensor.run.first_row * tensor.run.row_bytes, tensor.run.size_bytes());
      EXPECT_TRUE(rows == expected) << tensor.key;
    }
  }
}

TEST(StateImageTest, TheBytesOfEveryKindOfStateAreTheShards) {
  SavedShards shards(checkpoint::SpecOfEverything(), /*seed=*/4);
  for (int rank = 0; rank < 4; ++rank) ExpectFilled(shards, rank);
}

TEST(StateImageTest, TensorsOfManyChunksAreReadInParts) {
  SavedShards shards(checkpoint::TallSpec(36'001), /*seed=*/5, {.world = {.size = 1, .shard_size = 1}});
  ExpectFilled(shards, 0);
}

TEST(StateImageTest, RowsThatAreLongerThanAPartAreHashedWhole) {
  SavedShards shards(WideSpec(), /*seed=*/6, {.world = {.size = 1, .shard_size = 1}});
  ExpectFilled(shards, 0);
}

// Where steps move the state, masters with remainders are stored otherwise.
TEST(StateImageTest, AStateThatMovesIsSavedAsOneThatStays) {
  SavedShards wide(WideSpec(), /*seed=*/6, {.world = {.size = 1, .shard_size = 1}, .moves = {.moves = true}});
  ExpectFilled(wide, 0);
  SavedShards all(checkpoint::SpecOfEverything(), /*seed=*/4, {.moves = {.moves = true}});
  for (int rank = 0; rank < 4; ++rank) ExpectFilled(all, rank);
}

// Pieces come in any order, and a chunk's rows in several of them.
TEST(StateImageTest, ManyThreadsFillTheSameBytesAndSums) {
  SavedShards wide(WideSpec(), /*seed=*/6, {.world = {.size = 1, .shard_size = 1}});
  SavedShards tall(checkpoint::TallSpec(36'001), /*seed=*/5, {.world = {.size = 1, .shard_size = 1}});
  SavedShards all(checkpoint::SpecOfEverything(), /*seed=*/4);
  for (SavedShards* shards : {&wide, &tall, &all}) {
    for (int rank = 0; rank < shards->world().size; ++rank) {
      ASSERT_OK(shards->image(rank).Fill(shards->shard(rank), checkpoint::SavedModel::ClientState(rank), AnyState,
                                         /*threads=*/5));
      ASSERT_OK(shards->image(rank).Hash(absl::OkStatus));
      ExpectFilled(*shards, rank);
    }
  }
}

class FillTest : public testing::Test {
 protected:
  FillTest() : shards_(checkpoint::TallSpec(80'000), /*seed=*/7, {.world = {.size = 1, .shard_size = 1}}) {}
  StateImage& image() { return shards_.image(0); }

  SavedShards shards_;
};

TEST_F(FillTest, AStateThatChangesMeanwhileIsNotFilled) {
  int checks = 0;
  ASSERT_OK(image().Fill(shards_.shard(0), "", [&](const Shard&) {
    ++checks;
    return absl::OkStatus();
  }));
  // 82 MB a tensor in parts of 16 MiB.
  EXPECT_GE(checks, 5);
  for (int at = 1; at <= checks; ++at) {
    int check = 0;
    const absl::Status status = image().Fill(shards_.shard(0), "", [&](const Shard& shard) {
      shard.mutex().AssertReaderHeld();
      return ++check == at ? absl::AbortedError("a commit was applied") : absl::OkStatus();
    });
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kAborted, HasSubstr("a commit was applied")));
    EXPECT_EQ(check, at);
    EXPECT_FALSE(image().is_filled());
  }
  shards_.Fill();
  EXPECT_TRUE(image().is_filled());
  ExpectFilled(shards_, 0);
}

TEST_F(FillTest, AClientStateThatIsTooLongIsRefused) {
  EXPECT_THAT(image().Fill(shards_.shard(0), std::string(kMaxClientStateBytes + 1, 'c'), AnyState),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("65537")));
  const std::string longest(kMaxClientStateBytes, 'c');
  ASSERT_OK(image().Fill(shards_.shard(0), longest, AnyState));
  const absl::Span<const uint8_t> bytes = image().Bytes(0);
  EXPECT_EQ(std::string(bytes.end() - longest.size(), bytes.end()), longest);
  ASSERT_OK(image().Fill(shards_.shard(0), "short", AnyState));
  EXPECT_EQ(image().Bytes(0).size(), bytes.size() - longest.size() + 5);
}

TEST_F(FillTest, TheMemoryIsThatOfThePlan) {
  const Layout layout(shards_.spec(), 1);
  ASSERT_OK_AND_ASSIGN(const auto plan, checkpoint::RankFilePlan::Create(layout, shards_.world(), 0));
  EXPECT_EQ(image().size_bytes(), StateImage::SizeOf(plan));
  EXPECT_GE(image().size_bytes(), plan.state_bytes() + static_cast<int64_t>(kMaxClientStateBytes));
  EXPECT_LT(image().size_bytes(), plan.state_bytes() + static_cast<int64_t>(kMaxClientStateBytes) + 4096);
}

TEST_F(FillTest, RanksOfADaemonThatDifferInStepsAreNoPart) {
  checkpoint::Part part;
  part.step_counts["w"] = shards_.model().common().step_counts[0] + 1;
  EXPECT_THAT(image().AddTo(part), StatusIs(absl::StatusCode::kInternal, HasSubstr("parameter w")));
}

// A rank's files are written piece by piece, so that a save can be ended in the middle.
TEST_F(FillTest, WritingEndsWhenItIsToldTo) {
  const test::TemporaryDirectory root;
  QuickCalls calls;
  const StagingDirectory folder(Disk(&calls), root.path(), SavedShards::IdentityOf(12));
  ASSERT_OK(Disk(&calls).MakeFolder(folder.path()));
  int pieces = 0;
  EXPECT_THAT(
      folder.WriteRank(image(), [&](int64_t) { return ++pieces == 3 ? absl::CancelledError("") : absl::OkStatus(); }),
      StatusIs(absl::StatusCode::kCancelled));
  EXPECT_EQ(pieces, 3);
  EXPECT_THAT(NamesIn(folder.path()), ElementsAre("rank-00000-of-00001.safetensors"));
}

}  // namespace
}  // namespace paramshard::server
