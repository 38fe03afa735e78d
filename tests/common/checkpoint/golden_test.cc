// The golden checkpoint of tests/golden/checkpoint.py, an independent implementation of docs/reference/checkpoint.md.
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/checkpoint/rank_image.h"
#include "common/checkpoint/reader.h"
#include "common/checkpoint/step_folder.h"
#include "common/checkpoint/verification.h"
#include "common/model/layout.h"
#include "gmock/gmock.h"
#include "tests/common/checkpoint/saved_model.h"
#include "tests/support/status_matchers.h"

namespace paramshard::checkpoint {
namespace {

const char kGolden[] = PARAMSHARD_SOURCE_DIR "/tests/golden/checkpoint/step-000000012000-01234567";

ModelSpec GoldenSpec() {
  ModelSpec spec{.name = "golden"};
  UnitSpec unit{.name = "unit"};
  unit.parameters.push_back({.name = "w", .shape = {3, 2}});
  unit.parameters.push_back({.name = "h", .shape = {2, 3}, .master_type = MasterType::kBF16Remainder});
  unit.parameters.back().encoding.format = Format::kBF16;
  spec.units.push_back(unit);
  return Checked(spec);
}

std::vector<uint8_t> GoldenBytes(const std::string& key, int64_t size) {
  std::vector<uint8_t> bytes(size);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<uint8_t>(7 * i + 13 * key.size());
  return bytes;
}

TEST(GoldenCheckpointTest, IsReadAsItWasWritten) {
  EXPECT_TRUE(VerifyCheckpoint(kGolden, {}, [](int64_t, int64_t) {}).ok());
  ASSERT_OK_AND_ASSIGN(const Reader reader, Reader::Open(kGolden, {}));
  const Manifest& manifest = reader.manifest();
  EXPECT_EQ(manifest.save_serial, 7);
  EXPECT_EQ(manifest.step, 12000);
  EXPECT_EQ(manifest.world, (World{2, 1}));
  EXPECT_EQ(manifest.parent, (Manifest::Parent{.history = 1, .step = 9000}));
  EXPECT_EQ(absl::ToUnixMillis(manifest.saved_at), 1'795'363'200'250);
  EXPECT_THAT(reader.ClientState(1), IsOkAndHolds("rank 1"));
  EXPECT_THAT(reader.common().step_counts, testing::ElementsAre(11998, 11990));
  EXPECT_EQ(reader.common().last_answer->gradient_norm, 0.5);
  for (int i = 0; i < 2; ++i) {
    const ParameterSpec& spec = reader.spec().units[0].parameters[i];
    for (const ArrayKind kind : ArraysOf(spec)) {
      const std::string key = TensorKey(spec, kind);
      const ArrayShape shape = *ShapeOf(spec, kind);
      std::vector<uint8_t> bytes(shape.size_bytes());
      EXPECT_OK(reader.ReadRows(0, i, kind, {0, shape.rows}, absl::MakeSpan(bytes)));
      EXPECT_EQ(bytes, GoldenBytes(key, shape.size_bytes())) << key;
    }
  }
}

TEST(GoldenCheckpointTest, IsWrittenByteForByte) {
  const ModelSpec spec = GoldenSpec();
  const Layout layout(spec, 1);
  ASSERT_OK_AND_ASSIGN(Manifest manifest, ReadManifest(kGolden));
  const std::vector<FileEntry> expected_files = manifest.files;
  const ContentHashes expected_tensors = manifest.tensors;
  Part part{.step_counts = {{"w", 11998}, {"h", 11990}}};
  for (int rank = 0; rank < 2; ++rank) {
    const std::string client_state = absl::StrCat("rank ", rank);
    const auto state_bytes = static_cast<int64_t>(client_state.size());
    ASSERT_OK_AND_ASSIGN(const RankFilePlan plan, RankFilePlan::Create(layout, {2, 1}, rank));
    const PlannedFile& file = plan.files().front();
    std::string image = file.Header(state_bytes);
    for (const PlannedTensor& tensor : file.tensors()) {
      const std::vector<uint8_t> bytes = GoldenBytes(tensor.key, 1000);
      const auto* const text = reinterpret_cast<const char*>(bytes.data());
      image.append(text + tensor.run.first_row * tensor.run.row_bytes, tensor.run.size_bytes());
    }
    image += client_state;
    EXPECT_EQ(image, ReadText(absl::StrCat(kGolden, "/", file.name()))) << file.name();
    const absl::Span<const uint8_t> bytes(reinterpret_cast<const uint8_t*>(image.data()), image.size());
    part.files.push_back(EntryOf(file, bytes, state_bytes));
    AddContentHashes(spec, plan, {bytes}, {part.files.back()}, part.tensors);
  }
  ASSERT_OK_AND_ASSIGN(const Part same, ParsePart(SerializePart(part)));
  EXPECT_EQ(same, part);
  CommonState common{.commit_number = 12000, .version = 11998, .skipped = 2};
  common.last_answer = {.skipped = false, .gradient_norm = 0.5, .non_finite_count = 0};
  ASSERT_OK_AND_ASSIGN(common.step_counts, MergeParts(spec, {same}, manifest));
  ASSERT_OK_AND_ASSIGN(const std::vector<std::string> common_texts, SerializeCommonState(spec, common));
  ASSERT_THAT(common_texts, testing::ElementsAre(ReadText(absl::StrCat(kGolden, "/", kCommonFileName))));
  ASSERT_OK_AND_ASSIGN(const FileEntry common_entry, EntryOf(kCommonFileName, common_texts.front()));
  manifest.files.push_back(common_entry);
  EXPECT_EQ(manifest.files, expected_files);
  EXPECT_EQ(manifest.tensors, expected_tensors);
  EXPECT_THAT(SerializeManifest(manifest), IsOkAndHolds(ReadText(absl::StrCat(kGolden, "/", kManifestFileName))));
}

TEST(MergePartsTest, WhatIsMissingIsNamed) {
  const SavedModel model(TinySpec(), 1);
  const SavedModel::Options options{.world = {2, 2}};
  std::vector<Part> parts(2);
  for (int rank = 0; rank < 2; ++rank) {
    parts[rank].node = rank;
    parts[rank].files = model.FilesOf(options, rank, parts[rank].tensors).entries;
    parts[rank].step_counts["w"] = 3;
  }
  Manifest manifest{.world = {2, 2}};
  // The order of parts does not matter.
  EXPECT_THAT(MergeParts(model.spec(), {parts[1], parts[0]}, manifest), IsOkAndHolds(testing::ElementsAre(3)));
  const auto merge = [&](const std::vector<Part>& some) { return MergeParts(model.spec(), some, manifest).status(); };
  EXPECT_THAT(merge({parts[0]}),
              StatusIs(absl::StatusCode::kInvalidArgument, testing::HasSubstr("rank-00001-of-00002")));
  EXPECT_THAT(merge({parts[0], parts[1], parts[1]}), StatusIs(absl::StatusCode::kInvalidArgument));
  std::vector<Part> changed = parts;
  changed[0].tensors.at("master/w").rows += 1;
  EXPECT_THAT(merge(changed), StatusIs(absl::StatusCode::kInvalidArgument, testing::HasSubstr("want 3 rows, got 4")));
  changed = parts;
  changed[1].step_counts["w"] = 4;
  EXPECT_THAT(merge(changed), StatusIs(absl::StatusCode::kInvalidArgument, testing::HasSubstr("want 3 steps")));
  changed = parts;
  changed[0].step_counts.clear();
  changed[1].step_counts.clear();
  EXPECT_THAT(merge(changed),
              StatusIs(absl::StatusCode::kInvalidArgument, testing::HasSubstr("w: step count not found")));
}

}  // namespace
}  // namespace paramshard::checkpoint
