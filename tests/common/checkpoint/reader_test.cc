#include "common/checkpoint/reader.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <thread>

#include "absl/strings/str_cat.h"
#include "common/checkpoint/step_folder.h"
#include "gmock/gmock.h"
#include "kernels/optim/moment.h"
#include "tests/common/checkpoint/saved_model.h"
#include "tests/common/model/random_model.h"
#include "tests/support/random_seed.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temporary_directory.h"

namespace paramshard::checkpoint {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

class ReaderTest : public testing::Test {
 protected:
  std::string Write(const SavedModel& model, const World& world, int64_t step = 12,
                    int64_t max_header_bytes = RankFilePlan::kMaxHeaderBytes) const {
    return model.Write(root_.path(), {.world = world,
                                      .ranks_per_node = 2,
                                      .step = step,
                                      .history = absl::uint128(++histories_) << 100,
                                      .max_header_bytes = max_header_bytes});
  }
  const std::string& root() const { return root_.path(); }

 private:
  const test::TemporaryDirectory root_;
  mutable uint64_t histories_ = 0;
};

// Returns all arrays of a checkpoint, joined from the rows that each rank of a world reads.
std::map<std::string, std::vector<uint8_t>> ReadInto(const Reader& reader, int ranks) {
  std::map<std::string, std::vector<uint8_t>> arrays;
  const Layout layout(reader.spec(), ranks);
  const auto& units = reader.spec().units;
  for (int unit = 0; unit < static_cast<int>(units.size()); ++unit) {
    for (int i = 0; i < static_cast<int>(units[unit].parameters.size()); ++i) {
      const ParameterSpec& spec = units[unit].parameters[i];
      for (const ArrayKind kind : ArraysOf(spec)) {
        const ArrayShape shape = *ShapeOf(spec, kind);
        std::vector<uint8_t>& array = arrays[TensorKey(spec, kind)];
        array.resize(shape.size_bytes());
        for (int rank = 0; rank < ranks; ++rank) {
          const RowRange rows = shape.RowsOf(layout.Extent(unit, i, rank));
          const absl::Span<uint8_t> out =
              absl::MakeSpan(array).subspan(rows.begin * shape.row_bytes(), rows.size() * shape.row_bytes());
          EXPECT_OK(reader.ReadRows(unit, i, kind, rows, out));
        }
      }
    }
  }
  return arrays;
}

TEST_F(ReaderTest, AnyWorldReadsWhatAnyOtherHasSaved) {
  const SavedModel model(SpecOfEverything(), 7);
  std::optional<ContentHashes> hashes;
  for (const World& world : {World{1, 1}, World{2, 1}, World{3, 3}, World{4, 2}, World{9, 3}, World{8, 8}}) {
    SCOPED_TRACE(absl::StrCat(world.size, " ranks in groups of ", world.shard_size));
    ASSERT_OK_AND_ASSIGN(const Reader reader, Reader::Open(Write(model, world), {.owner = geteuid()}));
    for (const int ranks : {1, 2, 5, 9}) EXPECT_EQ(ReadInto(reader, ranks), model.arrays());
    // The cut does not change hashes.
    if (!hashes.has_value()) hashes = reader.manifest().tensors;
    EXPECT_EQ(reader.manifest().tensors, *hashes);
    for (int rank = 0; rank < world.size; ++rank) {
      EXPECT_THAT(reader.ClientState(rank), IsOkAndHolds(SavedModel::ClientState(rank)));
    }
    EXPECT_THAT(reader.ClientState(world.size + 1), IsOkAndHolds(SavedModel::ClientState(0)));
    EXPECT_EQ(reader.common(), model.common());
    EXPECT_EQ(reader.manifest().parent->step, 2);
  }
}

// Returns a random spec, also with types of state that descriptions leave at their defaults.
ModelSpec RandomSpec(uint64_t seed) {
  RandomModel random(seed);
  ModelSpec spec = random.Spec();
  for (UnitSpec& unit : spec.units) {
    for (ParameterSpec& parameter : unit.parameters) {
      if (!parameter.trainable) continue;
      parameter.exp_avg_type = kMomentTypes[random.Integer(0, 3)];
      parameter.exp_avg_sq_type = kMomentTypes[random.Integer(0, 3)];
      if (parameter.encoding.format == Format::kBF16 && random.OneIn(2)) {
        parameter.master_type = MasterType::kBF16Remainder;
      }
    }
  }
  return Checked(spec);
}

TEST_F(ReaderTest, AnyCutOfAnyModelIsReadIntoAnyOther) {
  const uint64_t seed = FirstSeed(1);
  SCOPED_TRACE(absl::StrCat(kSeedVariable, "=", seed));
  const SavedModel model(RandomSpec(seed), seed);
  ContentHashes hashes;
  for (int size = 1; size <= 9; ++size) {
    for (int shard_size = 1; shard_size <= size; ++shard_size) {
      if (size % shard_size != 0) continue;
      SCOPED_TRACE(absl::StrCat(size, " ranks in groups of ", shard_size));
      ASSERT_OK_AND_ASSIGN(const Reader reader, Reader::Open(Write(model, {size, shard_size}), {}));
      for (int ranks = 1; ranks <= 9; ++ranks) ASSERT_EQ(ReadInto(reader, ranks), model.arrays());
      if (hashes.empty()) hashes = reader.manifest().tensors;
      ASSERT_EQ(reader.manifest().tensors, hashes);
    }
  }
}

TEST_F(ReaderTest, HeadersThatWereSplitAreReadTogether) {
  const SavedModel model(SpecOfEverything(), 8);
  const std::string folder = Write(model, {2, 2}, 12, /*max_header_bytes=*/1500);
  ASSERT_TRUE(fs::exists(folder + "/rank-00001-of-00002-1.safetensors"));
  ASSERT_OK_AND_ASSIGN(const Reader reader, Reader::Open(folder, {}));
  EXPECT_EQ(ReadInto(reader, 3), model.arrays());
  EXPECT_EQ(reader.common(), model.common());
  // Each of the files is checked like the first.
  const std::string common = folder + "/" + CommonFileName(1);
  std::string bytes = ReadText(common);
  bytes.back() ^= 1;
  WriteText(common, bytes);
  EXPECT_THAT(Reader::Open(folder, {}), StatusIs(absl::StatusCode::kDataLoss, HasSubstr(common)));
  fs::remove(common);
  EXPECT_THAT(Reader::Open(folder, {}), StatusIs(absl::StatusCode::kDataLoss, HasSubstr(common)));
}

TEST_F(ReaderTest, FilesOfTheCommonStateAreInTheirOrder) {
  const SavedModel model(SpecOfEverything(), 8);
  const std::string folder = Write(model, {1, 1}, 12, /*max_header_bytes=*/1500);
  ASSERT_OK_AND_ASSIGN(Manifest manifest, ReadManifest(folder));
  ASSERT_EQ(manifest.files.back().name, CommonFileName(3));
  std::swap(manifest.files.back(), manifest.files[manifest.files.size() - 2]);
  WriteText(folder + "/" + kManifestFileName, *SerializeManifest(manifest));
  EXPECT_THAT(Reader::Open(folder, {}), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(kCommonFileName)));
}

TEST_F(ReaderTest, RowsComeInOrderAndOnceHoweverManyChunksThereAre) {
  const SavedModel model(TallSpec(9000), 9);
  ASSERT_OK_AND_ASSIGN(const Reader reader, Reader::Open(Write(model, {2, 1}), {}));
  const int64_t row_bytes = 257 * 4;
  ASSERT_GT(reader.Places().size(), 6u);
  int64_t next_row = 4001;
  EXPECT_OK(reader.ReadRows(0, 0, ArrayKind::kMaster, {4001, 8999}, [&](int64_t row, absl::Span<const uint8_t> bytes) {
    EXPECT_EQ(row, next_row);
    EXPECT_LE(static_cast<int64_t>(bytes.size()), Reader::kPlaceBytes);
    EXPECT_EQ(std::memcmp(bytes.data(), model.arrays().at("master/w").data() + row * row_bytes, bytes.size()), 0);
    next_row += static_cast<int64_t>(bytes.size()) / row_bytes;
    return absl::OkStatus();
  }));
  EXPECT_EQ(next_row, 8999);
  EXPECT_THAT(
      reader.ReadRows(0, 0, ArrayKind::kMaster, {0, 9000}, [](int64_t, auto) { return absl::AbortedError("enough"); }),
      StatusIs(absl::StatusCode::kAborted));
  EXPECT_THAT(reader.ReadRows(0, 0, ArrayKind::kMaster, {0, 9001}, [](int64_t, auto) { return absl::OkStatus(); }),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("rows in [0, 9000)")));
  EXPECT_THAT(reader.ReadRows(0, 0, ArrayKind::kRemainder, {0, 1}, [](int64_t, auto) { return absl::OkStatus(); }),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST_F(ReaderTest, ThreadsReadBesideEachOther) {
  const SavedModel model(SpecOfEverything(), 10);
  ASSERT_OK_AND_ASSIGN(const Reader reader, Reader::Open(Write(model, {4, 2}), {}));
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&] { EXPECT_EQ(ReadInto(reader, 2), model.arrays()); });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_F(ReaderTest, WhatIsNoCheckpointIsRefused) {
  EXPECT_THAT(Reader::Open(root() + "/none", {}),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("/none: folder not found")));
  EXPECT_THAT(Reader::Open(root(), {}), StatusIs(absl::StatusCode::kNotFound, HasSubstr(kManifestFileName)));
  WriteText(root() + "/file", "");
  EXPECT_THAT(Reader::Open(root() + "/file", {}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("not a folder")));
}

TEST_F(ReaderTest, AWrongOwnerOrModeIsRefused) {
  const std::string folder = Write(SavedModel(TinySpec(), 1), {1, 1});
  if (geteuid() == 0) {
    ASSERT_EQ(chown((folder + "/spec.binpb").c_str(), 4242, -1), 0);
    EXPECT_THAT(Reader::Open(folder, {.owner = 0}),
                StatusIs(absl::StatusCode::kPermissionDenied, AllOf(HasSubstr("/spec.binpb: "), HasSubstr("4242"))));
    EXPECT_OK(Reader::Open(folder, {.owner = 4242}));
    EXPECT_OK(Reader::Open(folder, {}));
    ASSERT_EQ(chown((folder + "/spec.binpb").c_str(), 0, -1), 0);
  }
  for (const std::string name : {"", "/manifest.json", "/rank-00000-of-00001.safetensors", "/common.safetensors"}) {
    struct stat status;
    ASSERT_EQ(stat((folder + name).c_str(), &status), 0);
    ASSERT_EQ(chmod((folder + name).c_str(), (status.st_mode & 07777) | S_IWOTH), 0);
    EXPECT_THAT(Reader::Open(folder, {.owner = geteuid()}),
                StatusIs(absl::StatusCode::kPermissionDenied, AllOf(HasSubstr(folder + name), HasSubstr("chmod"))));
    ASSERT_EQ(chmod((folder + name).c_str(), status.st_mode & 07777), 0);
  }
  EXPECT_OK(Reader::Open(folder, {.owner = geteuid()}));
}

// Replaces the first occurrence of a text in a manifest, and seals it again.
void Replace(const std::string& folder, const std::string& text, const std::string& other) {
  const std::string path = folder + "/" + kManifestFileName;
  std::string manifest = ReadText(path);
  ASSERT_NE(manifest.find(text), manifest.npos);
  manifest.replace(manifest.find(text), text.size(), other);
  const size_t digits = manifest.size() - 36;
  manifest.replace(digits, 32, HashText(HashBytes(manifest.substr(0, digits))));
  WriteText(path, manifest);
}

TEST_F(ReaderTest, FilesThatDoNotSayHowLargeTheirChunksAreHaveTheLargest) {
  const SavedModel model(TallSpec(60), 3);
  const std::string chunk_bytes = absl::StrCat("\"chunk_bytes\": ", kMinChunkBytes, ",");
  // 60 rows of 1028 bytes are one chunk of either size.
  const std::string folder = Write(model, {1, 1});
  Replace(folder, chunk_bytes, "");
  ASSERT_OK_AND_ASSIGN(const Reader reader, Reader::Open(folder, {}));
  EXPECT_EQ(reader.manifest().files.front().chunk_bytes, kMaxChunkBytes);
  EXPECT_EQ(ReadInto(reader, 2), model.arrays());
  // 100 rows are two chunks of the written size, and one of the largest size.
  const std::string other = Write(SavedModel(TallSpec(100), 3), {1, 1});
  Replace(other, chunk_bytes, "");
  EXPECT_THAT(Reader::Open(other, {}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("want sums of 4 chunks, got 7")));
  for (const char* const bytes : {"0", "-1", "4194305", "\"much\""}) {
    const std::string damaged = Write(model, {1, 1});
    Replace(damaged, chunk_bytes, absl::StrCat("\"chunk_bytes\": ", bytes, ","));
    EXPECT_THAT(Reader::Open(damaged, {}), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("chunk_bytes")));
  }
}

TEST_F(ReaderTest, ANewerFormatSaysSo) {
  const std::string folder = Write(SavedModel(TinySpec(), 1), {1, 1});
  Replace(folder, "\"format_version\": 1", "\"format_version\": 2");
  EXPECT_THAT(Reader::Open(folder, {}),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("want at most 1, got 2")));
}

TEST_F(ReaderTest, MissingAndOtherFilesAreNamed) {
  const SavedModel model(SpecOfEverything(), 1);
  const std::string folder = Write(model, {3, 3});
  const std::string extra = folder + "/rank-00003-of-00004.safetensors";
  WriteText(extra, "");
  EXPECT_THAT(Reader::Open(folder, {}), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(extra)));
  fs::remove(extra);
  for (const std::string name : {"rank-00001-of-00003.safetensors", "common.safetensors", "spec.binpb"}) {
    const std::string path = folder + "/" + name;
    fs::rename(path, root() + "/kept");
    EXPECT_THAT(Reader::Open(folder, {}), StatusIs(absl::StatusCode::kDataLoss, HasSubstr(path))) << name;
    fs::rename(root() + "/kept", path);
  }
  EXPECT_OK(Reader::Open(folder, {}));
}

TEST_F(ReaderTest, FilesThatAreShorterOrLongerAreNamed) {
  const std::string folder = Write(SavedModel(TinySpec(), 1), {1, 1});
  for (const std::string name : {"rank-00000-of-00001.safetensors", "common.safetensors", "spec.binpb"}) {
    const std::string path = folder + "/" + name;
    const std::string whole = ReadText(path);
    for (const std::string& text :
         {whole.substr(0, whole.size() - 1), whole.substr(0, 3), std::string(), whole + "x"}) {
      WriteText(path, text);
      EXPECT_THAT(Reader::Open(folder, {}), StatusIs(absl::StatusCode::kDataLoss, HasSubstr(path)));
    }
    WriteText(path, whole);
  }
  EXPECT_OK(Reader::Open(folder, {}));
}

TEST_F(ReaderTest, AFileThatIsCutWhileItIsOpenIsDamaged) {
  const std::string folder = Write(SavedModel(TinySpec(), 1), {1, 1});
  ASSERT_OK_AND_ASSIGN(const Reader reader, Reader::Open(folder, {}));
  fs::resize_file(folder + "/rank-00000-of-00001.safetensors", 100);
  std::vector<uint8_t> rows(24);
  EXPECT_THAT(reader.ReadRows(0, 0, ArrayKind::kMaster, {0, 3}, absl::MakeSpan(rows)),
              StatusIs(absl::StatusCode::kDataLoss,
                       HasSubstr("rank-00000-of-00001.safetensors: tensor master/w: rows [0, 3): ")));
}

// Writes a manifest with its hash.
void Reseal(const std::string& folder, const Manifest& manifest) {
  WriteText(folder + "/" + kManifestFileName, *SerializeManifest(manifest));
}

TEST_F(ReaderTest, RowsThatAreThereTwiceOrNeverAreNamed) {
  const SavedModel model(TinySpec(), 1);
  const std::string folder = Write(model, {3, 1});
  ASSERT_OK_AND_ASSIGN(const Manifest manifest, ReadManifest(folder));
  // Rank 2's file has row 2. In its place, with hashes that fit, lies one with row 1.
  Manifest changed = manifest;
  const std::string path = folder + "/" + manifest.files[2].name;
  std::string bytes = ReadText(path);
  size_t at = 0;
  while ((at = bytes.find("saved_offsets\\\":[2,", at)) != std::string::npos) bytes[at += 17] = '1';
  WriteText(path, bytes);
  ASSERT_OK_AND_ASSIGN(changed.files[2], EntryOf(manifest.files[2].name, bytes));
  Reseal(folder, changed);
  std::vector<std::string> damages;
  Reader::OpenDamaged(folder, {}, [&](const Damage& damage) { damages.emplace_back(damage.ToStatus("").message()); });
  EXPECT_THAT(damages,
              testing::Contains(AllOf(HasSubstr("rank-00002-of-00003.safetensors: tensor master/w: rows [1, 2)"),
                                      HasSubstr("found in several files"))));
  EXPECT_THAT(damages, testing::Contains(AllOf(HasSubstr("tensor master/w: rows [2, 3)"), HasSubstr("not found"))));
}

TEST_F(ReaderTest, ASpecOfAnotherModelIsRefused) {
  const std::string folder = Write(SavedModel(TinySpec(), 1), {1, 1});
  ASSERT_OK_AND_ASSIGN(Manifest manifest, ReadManifest(folder));
  manifest.model = "other";
  Reseal(folder, manifest);
  EXPECT_THAT(Reader::Open(folder, {}), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("spec.binpb")));
}

}  // namespace
}  // namespace paramshard::checkpoint
