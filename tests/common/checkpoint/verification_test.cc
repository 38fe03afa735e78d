#include "common/checkpoint/verification.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>

#include "absl/strings/str_cat.h"
#include "common/checkpoint/sealed_json.h"
#include "common/checkpoint/step_folder.h"
#include "gmock/gmock.h"
#include "tests/common/checkpoint/saved_model.h"
#include "tests/support/effort.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temporary_directory.h"

namespace paramshard::checkpoint {
namespace {

namespace fs = std::filesystem;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAreArray;

constexpr absl::uint128 kHistory = absl::MakeUint128(0xabcdef0123456789, 0);

Verification Verify(const std::string& folder) {
  return VerifyCheckpoint(folder, {}, [](int64_t done_bytes, int64_t all_bytes) { EXPECT_LE(done_bytes, all_bytes); });
}

std::vector<std::string> Texts(const Verification& verification) {
  std::vector<std::string> texts;
  for (const Damage& damage : verification.damages) texts.emplace_back(damage.ToStatus("").message());
  return texts;
}

// Writes in place: a truncated file would be written to the disk when it is closed, which takes a while.
void WriteByte(const std::string& path, size_t offset, int byte) {
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  file.seekp(static_cast<std::streamoff>(offset));
  file.put(static_cast<char>(byte));
  ASSERT_TRUE(file.flush().good());
}

class VerificationTest : public testing::Test {
 protected:
  std::string Write(const ModelSpec& spec, uint64_t seed, const World& world, int64_t step = 12) const {
    return SavedModel(spec, seed).Write(root_.path(), {.world = world, .step = step, .history = kHistory});
  }

  // Flips each bit of these files, one bit of each file at a time, and expects that every file is named.
  void FlipEveryBit(const std::string& folder, const std::vector<std::string>& names) const {
    std::vector<std::string> texts;
    size_t bits = 0;
    for (const std::string& name : names) {
      texts.push_back(ReadText(folder + "/" + name));
      bits = std::max(bits, texts.back().size() * 8);
    }
    for (size_t i = 0; i < bits; i += Stride()) {
      for (size_t file = 0; file < names.size(); ++file) {
        const size_t bit = i % (texts[file].size() * 8);
        WriteByte(folder + "/" + names[file], bit / 8, texts[file][bit / 8] ^ 1 << bit % 8);
      }
      std::set<std::string> named;
      for (const Damage& damage : Verify(folder).damages) named.insert(damage.file);
      ASSERT_THAT(named, UnorderedElementsAreArray(names)) << "bit " << i;
      for (size_t file = 0; file < names.size(); ++file) {
        const size_t byte = i % (texts[file].size() * 8) / 8;
        WriteByte(folder + "/" + names[file], byte, texts[file][byte]);
      }
    }
  }

 private:
  const test::TemporaryDirectory root_;
};

TEST_F(VerificationTest, WholeCheckpointsPass) {
  const Verification verification = Verify(Write(SpecOfEverything(), 3, {4, 2}));
  EXPECT_THAT(Texts(verification), IsEmpty());
  EXPECT_EQ(verification.manifest->step, 12);
  EXPECT_GT(verification.read_bytes, 400'000);
}

TEST_F(VerificationTest, EveryBitOfAllSafetensorsFilesIsCovered) {
  ModelSpec spec{.name = "smallest"};
  spec.units.push_back({.name = "u", .parameters = {{.name = "w", .shape = {3, 2}}}});
  FlipEveryBit(Write(Checked(spec), 1, {2, 2}),
               {"rank-00000-of-00002.safetensors", "rank-00001-of-00002.safetensors", kCommonFileName});
}

TEST_F(VerificationTest, EveryBitOfTheSpecIsCovered) { FlipEveryBit(Write(TinySpec(), 1, {1, 1}), {kSpecFileName}); }

TEST_F(VerificationTest, EveryBitOfTheManifestIsCovered) {
  const std::string folder = Write(TinySpec(), 1, {2, 1});
  const std::string whole = ReadText(folder + "/" + kManifestFileName);
  ASSERT_OK(ParseManifest(whole));
  for (size_t bit = 0; bit < whole.size() * 8; bit += Stride()) {
    std::string flipped = whole;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ 1 << bit % 8);
    ASSERT_THAT(ParseManifest(flipped), StatusIs(absl::StatusCode::kDataLoss)) << "bit " << bit;
  }
}

TEST_F(VerificationTest, EveryCutOfTheManifestIsFound) {
  const std::string folder = Write(TinySpec(), 1, {2, 1});
  const std::string whole = ReadText(folder + "/" + kManifestFileName);
  for (size_t size = 0; size < whole.size(); ++size) {
    ASSERT_THAT(ParseManifest(whole.substr(0, size)), StatusIs(absl::StatusCode::kDataLoss)) << size << " bytes";
  }
}

TEST_F(VerificationTest, DamageIsNamedByFileTensorAndRows) {
  const std::string folder = Write(TallSpec(5000), 5, {1, 1});
  const std::string path = folder + "/rank-00000-of-00001.safetensors";
  ASSERT_OK_AND_ASSIGN(const Reader reader, Reader::Open(folder, {}));
  const std::vector<Reader::Place> places = reader.Places();
  ASSERT_EQ(places[2].key, "exp_avg/w") << "two of each tensor";
  std::string bytes = ReadText(path);
  const auto damage = [&](const Reader::Place& place, int64_t chunk) {
    bytes[ChunksOf(place.rows)[chunk].offset_bytes + 5] ^= 0x10;
  };
  // Damages two consecutive chunks of the master, the last of a place and the first of the next, and the last chunk of
  // a moment.
  const int64_t last = ChunkCount(places[0].rows) - 1;
  damage(places[0], last);
  damage(places[1], 0);
  damage(places[3], 1);
  WriteText(path, bytes);
  const int64_t per_chunk = places[0].rows.rows_per_chunk();
  const std::vector<Damage> damages = Verify(folder).damages;
  ASSERT_EQ(damages.size(), 2u);
  EXPECT_EQ(damages[0].file, "rank-00000-of-00001.safetensors");
  EXPECT_EQ(damages[0].tensor, "master/w");
  EXPECT_EQ(damages[0].rows->begin, last * per_chunk);
  EXPECT_EQ(damages[0].rows->end, (last + 2) * per_chunk);
  EXPECT_EQ(damages[1].tensor, "exp_avg/w");
  EXPECT_EQ(damages[1].rows->begin, (last + 2) * per_chunk);
  EXPECT_EQ(damages[1].rows->end, (last + 3) * per_chunk);
}

TEST_F(VerificationTest, FilesOfAnotherStepAreFound) {
  const std::string first = Write(SpecOfEverything(), 1, {2, 2}, 12);
  const std::string second = Write(SpecOfEverything(), 2, {2, 2}, 13);
  for (const std::string name : {"rank-00001-of-00002.safetensors", "common.safetensors", "manifest.json"}) {
    fs::rename(first + "/" + name, first + "/kept");
    fs::copy(second + "/" + name, first + "/" + name);
    const Verification verification = Verify(first);
    EXPECT_FALSE(verification.ok()) << name;
    EXPECT_EQ(verification.damages.front().file, name);
    fs::remove(first + "/" + name);
    fs::rename(first + "/kept", first + "/" + name);
  }
  EXPECT_THAT(Texts(Verify(first)), IsEmpty());
}

TEST_F(VerificationTest, RanksFilesThatChangeNamesAreFound) {
  const std::string folder = Write(SpecOfEverything(), 1, {2, 2});
  fs::rename(folder + "/rank-00000-of-00002.safetensors", folder + "/kept");
  fs::rename(folder + "/rank-00001-of-00002.safetensors", folder + "/rank-00000-of-00002.safetensors");
  fs::rename(folder + "/kept", folder + "/rank-00001-of-00002.safetensors");
  const Verification verification = Verify(folder);
  ASSERT_EQ(verification.damages.size(), 2u);
  EXPECT_EQ(verification.damages[0].file, "rank-00000-of-00002.safetensors");
}

TEST_F(VerificationTest, AContentHashOfOtherMastersIsFound) {
  const std::string folder = Write(SpecOfEverything(), 1, {2, 2});
  ASSERT_OK_AND_ASSIGN(Manifest manifest, ReadManifest(folder));
  for (const std::string key : {"master/halves", "exp_avg/blocks"}) {
    Manifest changed = manifest;
    changed.tensors.at(key).sum += 1;
    WriteText(folder + "/" + kManifestFileName, *SerializeManifest(changed));
    const Verification verification = Verify(folder);
    ASSERT_EQ(verification.damages.size(), 1u);
    EXPECT_EQ(verification.damages[0].tensor, key);
  }
}

TEST(ContentHashTest, MastersWithRemaindersHaveTheHashOfTheirValues) {
  const std::vector<float> masters = {1.0f, -2.5f, 3.14159f, 1e-20f, 0.0f, -7.25e10f};
  std::vector<uint8_t> weights(12);
  std::vector<uint8_t> remainders(12);
  for (int i = 0; i < 6; ++i) {
    uint32_t bits;
    std::memcpy(&bits, &masters[i], 4);
    const auto weight = static_cast<uint16_t>((bits + 0x8000u) >> 16);
    const auto remainder = static_cast<uint16_t>(bits);
    std::memcpy(&weights[2 * i], &weight, 2);
    std::memcpy(&remainders[2 * i], &remainder, 2);
  }
  const auto* const bytes = reinterpret_cast<const uint8_t*>(masters.data());
  EXPECT_EQ(HashJoinedRows(40, 3, weights, remainders), HashRows(40, 12, absl::MakeConstSpan(bytes, 24)));
}

TEST(ContentHashTest, PartsAddUpInAnyOrderAndRowsHaveTheirPlace) {
  std::vector<uint8_t> rows(5 * 7);
  for (size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<uint8_t>(i * 37);
  const absl::Span<const uint8_t> all(rows);
  const ContentHash whole = HashRows(100, 7, all);
  ContentHash parts = HashRows(103, 7, all.subspan(21));
  parts += HashRows(100, 7, all.subspan(0, 21));
  EXPECT_EQ(parts, whole);
  EXPECT_NE(HashRows(101, 7, all), whole);
  EXPECT_EQ(ParseHash(HashText(whole.sum)), whole.sum);
  EXPECT_EQ(ParseHash("0123456789ABCDEF0123456789abcdef"), std::nullopt);
}

TEST(SealedJsonTest, NumbersOutOfRangeAreRefused) {
  for (const char* const value : {"-1", "9223372036854775808", "18446744073709551616", "1.5", "\"1\"", "null", "[1]"}) {
    const auto object = UnsealJson(SealJson(nlohmann::json::parse(absl::StrCat("{\"n\":", value, "}"))));
    ASSERT_OK(object);
    EXPECT_THAT(JsonObject(*object, "part").Number("n", 0, INT64_MAX),
                StatusIs(absl::StatusCode::kInvalidArgument, testing::HasSubstr("part: n: ")))
        << value;
  }
}

TEST(SealedJsonTest, WhatIsDeeperThanAnyMemberIsDropped) {
  nlohmann::json deep = nlohmann::json::array();
  for (int i = 0; i < 1000; ++i) deep = nlohmann::json::array({deep});
  const auto object = UnsealJson(SealJson({{"deep", deep}, {"n", 1}}));
  ASSERT_OK(object);
  EXPECT_LT(object->dump().size(), 100u);
}

}  // namespace
}  // namespace paramshard::checkpoint
