#include "server/checkpoints/checkpoint_loader.h"
#include "kernels/formats/format.h"

#include <unistd.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/checkpoint/step_folder.h"
#include "gmock/gmock.h"
#include "server/base/thread.h"
#include "tests/common/model/random_model.h"
#include "tests/server/checkpoints/restore_fixture.h"
#include "tests/support/status_matchers.h"

namespace paramshard::server {
namespace {

namespace fs = std::filesystem;
using checkpoint::Checked;
using checkpoint::Reader;
using checkpoint::ReadText;
using checkpoint::SavedModel;
using checkpoint::WriteText;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class CheckpointLoaderTest : public RestoreTest {};

// Every format and state that takes steps, large and small.
ModelSpec TrainedSpec() {
  ModelSpec spec{.name = "trained"};
  spec.small_parameter_bytes = 1000;
  spec.units.push_back({.name = "unit"});
  auto& parameters = spec.units[0].parameters;
  for (const FormatTraits& traits : kFormats) {
    parameters.push_back(MakeParameter(absl::StrCat(traits.name), {150, 41}, traits.format));
    parameters.push_back(MakeParameter(absl::StrCat("small ", traits.name), {3, 7}, traits.format));
  }
  for (ParameterSpec& parameter : parameters) {
    parameter.initial_value = {.kind = Initializer::kNormal, .b = 0.5f};
    parameter.encoding.delayed_scaling = DelayedScaling::Options{.history_length = 4};
    if (parameter.encoding.format != Format::kFP8TensorDelayed) parameter.encoding.delayed_scaling.reset();
    if (parameter.encoding.format == Format::kBF16) parameter.master_type = MasterType::kBF16Remainder;
  }
  parameters[0].exp_avg_type = MomentType::kFP16;
  parameters[2].exp_avg_type = MomentType::kFP8;
  parameters[2].exp_avg_sq_type = MomentType::kFP8;
  parameters[4].exp_avg_sq_type = MomentType::kBF16;
  parameters.push_back(MakeParameter("frozen", {70, 41}, Format::kFP8TensorDelayed));
  parameters.back().initial_value = {.kind = Initializer::kOnes};
  parameters.back().trainable = false;
  return Checked(spec);
}

void ExpectEqual(const ShardWorld& a, const ShardWorld& b) {
  EXPECT_EQ(a.Save().arrays(), b.Save().arrays());
  EXPECT_EQ(a.Save().common(), b.Save().common());
  if (a.world() != b.world()) return;
  EXPECT_TRUE(a.Planes() == b.Planes());
  EXPECT_EQ(a.Steps(), b.Steps());
}

TEST_F(CheckpointLoaderTest, TenStepsAfterItEqualTheUninterruptedOnes) {
  ShardWorld uninterrupted(TrainedSpec(), {6, 3});
  for (int i = 0; i < 7; ++i) uninterrupted.Step();
  const std::string folder = Write(uninterrupted.Save(), {6, 3});
  ShardWorld same(TrainedSpec(), {6, 3});
  ShardWorld other(TrainedSpec(), {4, 4});
  // The earlier state does not matter.
  for (int i = 0; i < 2; ++i) same.Step();
  ASSERT_OK(Restore(folder, same));
  ASSERT_OK(Restore(folder, other));
  EXPECT_EQ(same.commit_number(), 7);
  ExpectEqual(same, uninterrupted);
  for (int i = 0; i < 10; ++i) {
    uninterrupted.Step();
    same.Step();
    other.Step();
  }
  ExpectEqual(same, uninterrupted);
  // Gradients here are the same in every world: those of trainers are sums of another order.
  ExpectEqual(other, uninterrupted);
}

// Wherever steps have left it, and whatever a master is stored as.
TEST_F(CheckpointLoaderTest, AStateThatMovesIsRestoredWhereItLies) {
  const MovePolicy moves = {.moves = true, .rule = {.least_elements = 1000}};
  ShardWorld stays(TrainedSpec(), {6, 3});
  ShardWorld moved(TrainedSpec(), {6, 3}, moves);
  for (int i = 0; i < 3; ++i) {
    stays.Step();
    moved.Step();
  }
  ExpectEqual(moved, stays);
  const std::string folder = Write(moved.Save(), {6, 3});
  for (int steps = 0; steps < 2; ++steps) {
    ShardWorld restored(TrainedSpec(), {6, 3}, moves);
    for (int i = 0; i < steps; ++i) restored.Step();
    ASSERT_OK(Restore(folder, restored));
    ExpectEqual(restored, stays);
    EXPECT_TRUE(restored.PlanesMatch());
    restored.Step();
    ShardWorld same(TrainedSpec(), {6, 3});
    ASSERT_OK(Restore(folder, same));
    same.Step();
    ExpectEqual(restored, same);
  }
}

TEST_F(CheckpointLoaderTest, SaysAllThatIsNotInTensors) {
  const SavedModel saved(checkpoint::SpecOfEverything(), 4);
  ASSERT_OK_AND_ASSIGN(const Reader reader, Reader::Open(Write(saved, {4, 2}), {}));
  const ShardWorld world(saved.spec(), {6, 3});
  ASSERT_OK_AND_ASSIGN(RestorePlan plan, RestorePlan::Create(world.spec(), reader.spec(), {}));
  ASSERT_OK_AND_ASSIGN(
      const auto loader,
      CheckpointLoader::Create(
          {.reader = &reader, .plan = plan, .spec = &world.spec(), .shards = world.shards(2, 4), .first_rank = 2}));
  const RestoredState& restored = loader->restored();
  EXPECT_EQ(restored.commits.numbers.commit_number, 12);
  EXPECT_EQ(restored.commits.numbers.version, 10);
  EXPECT_EQ(restored.commits.numbers.skipped, 2);
  EXPECT_EQ(restored.commits.last_answer,
            (CommitAnswer{.commit_number = 12, .version = 10, .skipped = false, .gradient_norm = 0.1}));
  // Ranks 2 and 3 were there; 4 and 5 are new.
  EXPECT_THAT(restored.commits.client_states,
              testing::ElementsAre(SavedModel::ClientState(2), SavedModel::ClientState(3), SavedModel::ClientState(0),
                                   SavedModel::ClientState(0)));
  EXPECT_EQ(restored.checkpoint_id, reader.manifest().save_id);
  EXPECT_EQ(restored.parent.history.value, reader.manifest().history);
  EXPECT_EQ(restored.parent.commit_number, 12);
  EXPECT_EQ(restored.scaling.size(), saved.common().book.size());
}

TEST_F(CheckpointLoaderTest, ProgressEndsWithAllBytes) {
  const SavedModel saved(checkpoint::SpecOfEverything(), 4);
  ASSERT_OK_AND_ASSIGN(const Reader reader, Reader::Open(Write(saved, {3, 3}), {}));
  const ShardWorld world(saved.spec(), {4, 2});
  ASSERT_OK_AND_ASSIGN(const auto loader, Prepare(reader, world));
  EXPECT_EQ(loader->progress().done_bytes, 0);
  EXPECT_GT(loader->progress().all_bytes, 0);
  std::atomic<bool> ended = false;
  std::thread watcher([&] {
    int64_t last = 0;
    while (!ended) {
      const CheckpointLoader::Progress progress = loader->progress();
      EXPECT_GE(progress.done_bytes, last);
      EXPECT_LE(progress.done_bytes, progress.all_bytes);
      last = progress.done_bytes;
    }
  });
  EXPECT_OK(loader->Load());
  ended = true;
  watcher.join();
  EXPECT_EQ(loader->progress().done_bytes, loader->progress().all_bytes);
  EXPECT_FALSE(loader->torn());
}

// Number of bytes that the process has read from files since it began.
constexpr char kReadsFile[] = "/proc/self/io";
int64_t ReadSoFar() {
  std::ifstream file(kReadsFile);
  std::string name;
  int64_t bytes = 0;
  file >> name >> bytes;
  EXPECT_EQ(name, "rchar:");
  return bytes;
}

TEST_F(CheckpointLoaderTest, ReadsWhatItNeeds) {
  if (!std::ifstream(kReadsFile).good()) GTEST_SKIP() << "the kernel does not count what a process reads";
  const SavedModel saved(checkpoint::TallSpec(30'000), 4);
  const std::string folder = Write(saved, {8, 8});
  ASSERT_OK_AND_ASSIGN(const Reader reader, Reader::Open(folder, {}));
  const int64_t row_bytes = 3 * int64_t{257} * 4;  // master and moments
  const auto read_by = [&](const ShardWorld& world, int first_rank, int ranks) {
    const auto plan = RestorePlan::Create(world.spec(), reader.spec(), {});
    const auto loader = CheckpointLoader::Create({.reader = &reader,
                                                  .plan = *plan,
                                                  .spec = &world.spec(),
                                                  .shards = world.shards(first_rank, ranks),
                                                  .first_rank = first_rank});
    const int64_t before = ReadSoFar();
    EXPECT_OK((*loader)->Load());
    const int64_t read = ReadSoFar() - before;
    RecordProperty(absl::StrCat("read_bytes_of_", ranks, "_ranks"), absl::StrCat(read));
    return read;
  };
  // A daemon with all ranks, replicas too, reads every byte once.
  const ShardWorld world(saved.spec(), {6, 3});
  EXPECT_LE(read_by(world, 0, 6), 1.02 * 30'000 * row_bytes);
  EXPECT_EQ(world.FirstDifference(saved.arrays()), "");
  // One with a part of them, the chunks at its ends whole.
  for (int rank = 0; rank < 3; ++rank) {
    const int64_t read = read_by(world, rank, 1);
    EXPECT_GE(read, 10'000 * row_bytes);
    EXPECT_LE(read, 1.02 * 10'000 * row_bytes);
  }
}

// --- What is wrong ---

TEST_F(CheckpointLoaderTest, DamagedChunksTearTheShards) {
  const SavedModel saved(checkpoint::TallSpec(5000), 4);
  const std::string folder = Write(saved, {2, 2});
  ASSERT_OK_AND_ASSIGN(const Reader reader, Reader::Open(folder, {}));
  const std::string path = folder + "/rank-00001-of-00002.safetensors";
  std::string text = ReadText(path);
  text[text.size() - 5] ^= 1;
  WriteText(path, text);
  const ShardWorld world(saved.spec(), {1, 1});
  ASSERT_OK_AND_ASSIGN(const Reader damaged, Reader::Open(folder, {}));
  ASSERT_OK_AND_ASSIGN(const auto loader, Prepare(damaged, world, {}, /*threads=*/1));
  EXPECT_THAT(loader->Load(), StatusIs(absl::StatusCode::kDataLoss,
                                       AllOf(HasSubstr("restore tall: "), HasSubstr("rank-00001-of-00002.safetensors"),
                                             HasSubstr("tensor exp_avg_sq/w"), HasSubstr("rows [4957, 5000)"),
                                             HasSubstr("restore another checkpoint, or delete the model"))));
  EXPECT_TRUE(loader->torn());
  // A good one heals them.
  text[text.size() - 5] ^= 1;
  WriteText(path, text);
  ASSERT_OK_AND_ASSIGN(const Reader healed, Reader::Open(folder, {}));
  ASSERT_OK_AND_ASSIGN(const auto again, Prepare(healed, world));
  EXPECT_OK(again->Load());
  EXPECT_EQ(world.FirstDifference(saved.arrays()), "");
}

TEST_F(CheckpointLoaderTest, FilesThatAreCutMeanwhileAreErrors) {
  const SavedModel saved(checkpoint::TallSpec(5000), 4);
  const std::string folder = Write(saved, {2, 2});
  ASSERT_OK_AND_ASSIGN(const Reader reader, Reader::Open(folder, {}));
  const ShardWorld world(saved.spec(), {1, 1});
  ASSERT_OK_AND_ASSIGN(const auto loader, Prepare(reader, world));
  fs::resize_file(folder + "/rank-00001-of-00002.safetensors", 100'000);
  EXPECT_THAT(loader->Load(), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("rank-00001-of-00002.safetensors")));
  EXPECT_TRUE(loader->torn());
}

TEST_F(CheckpointLoaderTest, MissingFilesAreFoundBeforeAnythingChanges) {
  const SavedModel saved(checkpoint::TinySpec(), 4);
  for (const char* const name : {"rank-00001-of-00002.safetensors", checkpoint::kCommonFileName,
                                 checkpoint::kSpecFileName, checkpoint::kManifestFileName}) {
    const std::string folder = Write(saved, {2, 2});
    fs::remove(folder + "/" + name);
    ShardWorld world(saved.spec(), {1, 1});
    const auto before = world.Save().arrays();
    EXPECT_THAT(Restore(folder, world), AllOf(Not(IsOk()), StatusIs(testing::_, HasSubstr(name))));
    EXPECT_EQ(world.FirstDifference(before), "");
  }
}

TEST_F(CheckpointLoaderTest, OtherModelsAreRefused) {
  const SavedModel saved(checkpoint::TinySpec(), 4);
  ShardWorld world(checkpoint::TallSpec(3), {1, 1});
  EXPECT_THAT(Restore(Write(saved, {2, 2}), world),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("got one of tiny")));
}

TEST_F(CheckpointLoaderTest, NumbersOutOfRangeAreRefused) {
  checkpoint::CommonState common = SavedModel(checkpoint::TinySpec(), 4).common();
  common.step_counts[0] = INT64_MAX;
  const SavedModel saved(checkpoint::TinySpec(), SavedModel(checkpoint::TinySpec(), 4).arrays(), common);
  ShardWorld world(saved.spec(), {1, 1});
  EXPECT_THAT(Restore(Write(saved, {1, 1}), world),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("step counts below")));
}

TEST_F(CheckpointLoaderTest, CancelledItSaysWhatIsTorn) {
  const SavedModel saved(checkpoint::TallSpec(30'000), 4);
  ASSERT_OK_AND_ASSIGN(const Reader reader, Reader::Open(Write(saved, {2, 2}), {}));
  const ShardWorld world(saved.spec(), {1, 1});
  {
    ASSERT_OK_AND_ASSIGN(const auto loader, Prepare(reader, world));
    loader->Cancel();
    EXPECT_THAT(loader->Load(), StatusIs(absl::StatusCode::kCancelled, Not(HasSubstr("a part is written"))));
    EXPECT_FALSE(loader->torn());
  }
  ASSERT_OK_AND_ASSIGN(const auto loader, Prepare(reader, world, {}, /*threads=*/1));
  // Holds the first chunk up until it is cancelled.
  std::thread writer;
  {
    absl::ReaderMutexLock lock(&world.shards()[0]->mutex());
    writer = std::thread(
        [&] { EXPECT_THAT(loader->Load(), StatusIs(absl::StatusCode::kCancelled, HasSubstr("a part is written"))); });
    while (!loader->torn()) std::this_thread::yield();
    loader->Cancel();
  }
  writer.join();
  EXPECT_TRUE(loader->torn());
  EXPECT_LT(loader->progress().done_bytes, loader->progress().all_bytes);
}

TEST_F(CheckpointLoaderTest, ThreadsThatCannotBeStartedAreMissedBeforeAnythingChanges) {
  const SavedModel saved(checkpoint::SpecOfEverything(), 4);
  ASSERT_OK_AND_ASSIGN(const Reader reader, Reader::Open(Write(saved, {2, 2}), {}));
  const ShardWorld world(saved.spec(), {1, 1});
  const auto before = world.Save().arrays();
  const ThreadShortage shortage(1);
  EXPECT_THAT(Prepare(reader, world),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("a restore of everything")));
  EXPECT_EQ(world.FirstDifference(before), "");
}

// Rows that a shard holds otherwise than they were written are found, by whoever adds the hashes up.
TEST_F(CheckpointLoaderTest, ContentThatDiffersIsNamed) {
  const SavedModel saved(checkpoint::SpecOfEverything(), 4);
  ASSERT_OK_AND_ASSIGN(const Reader reader, Reader::Open(Write(saved, {2, 2}), {}));
  const ShardWorld world(saved.spec(), {4, 2});
  ASSERT_OK_AND_ASSIGN(const auto loader, Prepare(reader, world));
  EXPECT_THAT(loader->Check(loader->content(), 2),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("rows in all replicas, got")));
  ASSERT_OK(loader->Load());
  EXPECT_OK(loader->Check(loader->content(), 2));
  EXPECT_THAT(loader->Check(loader->content(), 1), StatusIs(absl::StatusCode::kDataLoss));
  for (const auto& [key, hash] : loader->content()) {
    checkpoint::ContentHashes sums = loader->content();
    sums[key].sum += 1;
    EXPECT_THAT(loader->Check(sums, 2), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("tensor "))) << key;
    sums.erase(key);
    EXPECT_THAT(loader->Check(sums, 2), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("got 0"))) << key;
  }
  EXPECT_EQ(loader->content().size(), reader.manifest().tensors.size());
}

}  // namespace
}  // namespace paramshard::server
