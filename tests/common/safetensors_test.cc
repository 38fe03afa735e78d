#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/safetensors/checkpoint.h"
#include "common/safetensors/safetensors_file.h"
#include "common/safetensors/safetensors_writer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/common/safetensors_files.h"
#include "tests/support/status_matchers.h"

namespace paramshard::safetensors {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr auto kLost = absl::StatusCode::kDataLoss;

std::string Entry(const std::string& name, const std::string& dtype, const std::string& shape,
                  const std::string& offsets) {
  return absl::StrCat("\"", name, "\":{\"dtype\":\"", dtype, "\",\"shape\":", shape, ",\"data_offsets\":", offsets,
                      "}");
}

std::string ReadAll(const SafetensorsFile& file, const std::string& name) {
  for (const TensorInfo& tensor : file.tensors()) {
    if (tensor.name != name) continue;
    std::string bytes(tensor.size_bytes, '\0');
    EXPECT_OK(file.Read(tensor, 0, absl::MakeSpan(reinterpret_cast<uint8_t*>(bytes.data()), bytes.size())));
    return bytes;
  }
  ADD_FAILURE() << "no tensor " << name;
  return "";
}

TEST(DtypeTest, NamesAndSizesAreThoseOfTheFormat) {
  for (const char* name : {"BOOL", "F4",  "F6_E2M3", "F6_E3M2", "U8",  "I8",  "F8_E5M2", "F8_E4M3", "F8_E8M0", "I16",
                           "U16",  "F16", "BF16",    "I32",     "U32", "F32", "C64",     "F64",     "I64",     "U64"}) {
    const std::optional<Dtype> dtype = ParseDtype(name);
    ASSERT_TRUE(dtype.has_value()) << name;
    EXPECT_EQ(DtypeName(*dtype), name);
  }
  EXPECT_EQ(ParseDtype("f32"), std::nullopt);
  EXPECT_EQ(ParseDtype(""), std::nullopt);
  EXPECT_EQ(TensorBytes(Dtype::kF32, {}), 4);
  EXPECT_EQ(TensorBytes(Dtype::kBF16, {3, 5}), 30);
  EXPECT_EQ(TensorBytes(Dtype::kF4, {3, 2}), 3);
  EXPECT_EQ(TensorBytes(Dtype::kF4, {3}), std::nullopt);
  EXPECT_EQ(TensorBytes(Dtype::kF32, {5, 0}), 0);
  EXPECT_EQ(TensorBytes(Dtype::kF32, {-1}), std::nullopt);
  EXPECT_EQ(TensorBytes(Dtype::kF32, {int64_t{1} << 40, int64_t{1} << 40}), std::nullopt);
  EXPECT_EQ(TensorBytes(Dtype::kF32, {0, int64_t{1} << 40, int64_t{1} << 40}), std::nullopt);
}

class SafetensorsFileTest : public FolderTest {
 protected:
  void ExpectRefused(const std::string& header, const std::string& data, absl::StatusCode code,
                     const std::string& message) {
    const std::string path = WriteText("bad.safetensors", FileBytes(header, data));
    EXPECT_THAT(SafetensorsFile::Open(path), StatusIs(code, AllOf(HasSubstr("bad.safetensors"), HasSubstr(message))))
        << header;
  }
  // With 16 bytes of data.
  void ExpectInvalid(const std::string& header, const std::string& message) {
    ExpectRefused(header, std::string(16, 'd'), kInvalid, message);
  }
};

TEST_F(SafetensorsFileTest, TensorsOfEveryKindAreRead) {
  const std::string header = "{\"__metadata__\":{\"format\":\"pt\"}," + Entry("second", "U8", "[3]", "[4,7]") + "," +
                             Entry("first", "F32", "[]", "[0,4]") + "," + Entry("empty", "I64", "[0,7]", "[7,7]") +
                             "," + Entry("odd", "BF16", "[1,2]", "[7,11]") + "}  \n ";
  const std::string path = WriteText("good", FileBytes(header, "ffffsssodd!"));
  ASSERT_OK_AND_ASSIGN(const SafetensorsFile file, SafetensorsFile::Open(path));
  ASSERT_EQ(file.tensors().size(), 4u);
  EXPECT_EQ(file.tensors()[0].name, "first");
  EXPECT_THAT(file.tensors()[0].shape, IsEmpty());
  EXPECT_EQ(file.tensors()[1].name, "second");
  EXPECT_EQ(file.tensors()[2].name, "empty");
  EXPECT_THAT(file.tensors()[2].shape, ElementsAre(0, 7));
  EXPECT_THAT(file.metadata(), ElementsAre(Pair("format", "pt")));
  EXPECT_EQ(ReadAll(file, "first"), "ffff");
  EXPECT_EQ(ReadAll(file, "second"), "sss");
  EXPECT_EQ(ReadAll(file, "empty"), "");
  EXPECT_EQ(ReadAll(file, "odd"), "odd!");
}

TEST_F(SafetensorsFileTest, AFileWithoutTensorsIsOne) {
  ASSERT_OK_AND_ASSIGN(const SafetensorsFile file, SafetensorsFile::Open(WriteText("empty", FileBytes("{}", ""))));
  EXPECT_THAT(file.tensors(), IsEmpty());
}

TEST_F(SafetensorsFileTest, LengthsAreCheckedAgainstTheFile) {
  EXPECT_THAT(SafetensorsFile::Open(Path("none")), StatusIs(absl::StatusCode::kNotFound, HasSubstr("none")));
  EXPECT_THAT(SafetensorsFile::Open(WriteText("f", "")), StatusIs(kLost, HasSubstr("a file of 0")));
  EXPECT_THAT(SafetensorsFile::Open(WriteText("f", "1234567")), StatusIs(kLost, HasSubstr("a file of 7")));
  const std::string good = FileBytes("{" + Entry("w", "F32", "[4]", "[0,16]") + "}", std::string(16, 'd'));
  for (size_t size = 8; size < good.size(); ++size) {
    EXPECT_THAT(SafetensorsFile::Open(WriteText("f", good.substr(0, size))), StatusIs(kLost)) << size;
  }
  EXPECT_OK(SafetensorsFile::Open(WriteText("f", good)));
  EXPECT_THAT(SafetensorsFile::Open(WriteText("f", good + "d")), StatusIs(kLost, HasSubstr("got 17")));
}

TEST_F(SafetensorsFileTest, AHeaderHasABound) {
  std::string length(8, '\0');
  for (const uint64_t size : {uint64_t{100'000'001}, ~uint64_t{0}, uint64_t{1} << 63, ~uint64_t{0} - 7}) {
    std::memcpy(length.data(), &size, sizeof(size));
    EXPECT_THAT(SafetensorsFile::Open(WriteText("f", length + "{}")),
                StatusIs(kInvalid, HasSubstr("want a header of at most 100000000 bytes")));
  }
}

TEST_F(SafetensorsFileTest, OnlyRegularFilesAreOpened) {
  EXPECT_THAT(SafetensorsFile::Open(folder_), StatusIs(kInvalid, HasSubstr("want a regular file")));
  ASSERT_EQ(mkfifo(Path("pipe").c_str(), 0600), 0);
  EXPECT_THAT(SafetensorsFile::Open(Path("pipe")), StatusIs(kInvalid, HasSubstr("want a regular file")));
}

TEST_F(SafetensorsFileTest, AHeaderIsOneJsonObject) {
  ExpectInvalid("", "{ as its first byte");
  ExpectInvalid(" {}", "{ as its first byte");
  ExpectInvalid("[]", "{ as its first byte");
  ExpectInvalid("{", "want JSON");
  ExpectInvalid("{} x", "want JSON");
  ExpectInvalid("{}{}", "want JSON");
  ExpectInvalid(std::string("{}\0{", 4), "zero byte");
  ExpectInvalid("{\"w\xff\":{}}", "want JSON");
  ExpectInvalid("{" + std::string(100000, '['), "want JSON");
  ExpectInvalid("{\"w\":" + std::string(100000, '['), "an array");
}

TEST_F(SafetensorsFileTest, ATensorHasItsThreeMembers) {
  for (const char* value : {"null", "true", "1", "-1", "1.5", "\"x\"", "[]"}) {
    ExpectInvalid(absl::StrCat("{\"w\":", value, "}"), "tensor w: want an object of dtype, shape and data_offsets");
  }
  ExpectInvalid("{\"w\":{}}", "dtype is missing");
  ExpectInvalid(R"({"w":{"dtype":"F32","data_offsets":[0,16]}})", "shape is missing");
  ExpectInvalid(R"({"w":{"dtype":"F32","shape":[4]}})", "data_offsets is missing");
  ExpectInvalid(R"({"w":{"dtype":"F32","shape":[4],"data_offsets":[0,16],"extra":1}})", "got a member extra");
  ExpectInvalid(R"({"w":{"dtype":"F32","dtype":"F32","shape":[4],"data_offsets":[0,16]}})", "duplicate dtype");
  ExpectInvalid(R"({"w":{"dtype":"F32","shape":[4],"shape":[4],"data_offsets":[0,16]}})", "duplicate shape");
  ExpectInvalid(R"({"w":{"dtype":{"w":1},"shape":[4],"data_offsets":[0,16]}})", "got an object");
}

TEST_F(SafetensorsFileTest, ADtypeIsKnown) {
  ExpectInvalid("{" + Entry("w", "F33", "[4]", "[0,16]") + "}", "tensor w: unknown dtype \"F33\"");
  ExpectInvalid(R"({"w":{"dtype":32,"shape":[4],"data_offsets":[0,16]}})", "want the name of a dtype, got 32");
}

TEST_F(SafetensorsFileTest, AShapeIsOfNumbersThatFit) {
  for (const char* shape :
       {"[-4]", "[4.0]", "[\"4\"]", "[null]", "[[4]]", "4", "{}", "[9223372036854775808]", "[1e3]"}) {
    ExpectInvalid("{" + Entry("w", "F32", shape, "[0,16]") + "}", "tensor w: want a shape of numbers 0 <= n < 2^63");
  }
  for (const char* shape : {"[4294967296,4294967296]", "[4611686018427387904,4]", "[9223372036854775807]",
                            "[0,9223372036854775807,9223372036854775807]"}) {
    ExpectInvalid("{" + Entry("w", "F32", shape, "[0,16]") + "}", "want a size of whole bytes below 2^60");
  }
  ExpectInvalid("{" + Entry("w", "F4", "[33]", "[0,16]") + "}", "whole bytes");
}

TEST_F(SafetensorsFileTest, OffsetsAreTheSizeOfTheTensor) {
  for (const char* offsets : {"[0,15]", "[0,17]", "[16,0]", "[0,0]", "[0,9223372036854775807]"}) {
    ExpectInvalid("{" + Entry("w", "F32", "[4]", offsets) + "}", "tensor w: want 16 bytes of data for F32 [4]");
  }
  for (const char* offsets : {"[]", "[0]", "[0,16,16]", "[-1,15]", "[0,18446744073709551615]", "16"}) {
    ExpectInvalid("{" + Entry("w", "F32", "[4]", offsets) + "}", "want two data_offsets 0 <= n < 2^63");
  }
}

TEST_F(SafetensorsFileTest, DataNeitherOverlapNorLeaveHolesNorPassTheEnd) {
  ExpectInvalid("{" + Entry("a", "U8", "[8]", "[0,8]") + "," + Entry("b", "U8", "[9]", "[7,16]") + "}",
                "tensor b: want data from byte 8 on, where the tensor before it ends, got data that overlap");
  ExpectInvalid("{" + Entry("a", "U8", "[8]", "[0,8]") + "," + Entry("b", "U8", "[8]", "[0,8]") + "}", "overlap");
  ExpectInvalid("{" + Entry("a", "U8", "[7]", "[0,7]") + "," + Entry("b", "U8", "[8]", "[8,16]") + "}",
                "tensor b: want data from byte 7 on, where the tensor before it ends, got a hole up to byte 8");
  ExpectInvalid("{" + Entry("a", "U8", "[15]", "[1,16]") + "}", "a hole up to byte 1");
  ExpectInvalid("{" + Entry("e", "U8", "[0]", "[5,5]") + "," + Entry("a", "U8", "[16]", "[0,16]") + "}", "tensor e");
  const std::string data(16, 'd');
  ExpectRefused("{" + Entry("a", "U8", "[17]", "[0,17]") + "}", data, kLost, "want 17 bytes of data");
  ExpectRefused("{" + Entry("a", "U8", "[15]", "[0,15]") + "}", data, kLost, "want 15 bytes of data");
  ExpectRefused("{}", data, kLost, "want 0 bytes of data");
}

TEST_F(SafetensorsFileTest, NamesAreThereOnce) {
  ExpectInvalid("{" + Entry("w", "U8", "[8]", "[0,8]") + "," + Entry("w", "U8", "[8]", "[8,16]") + "}",
                "duplicate name w");
  ExpectInvalid(R"({"__metadata__":{},"__metadata__":{}})", "duplicate name __metadata__");
  ExpectInvalid(R"({"__metadata__":{"k":"1","k":"2"}})", "duplicate key k");
}

TEST_F(SafetensorsFileTest, MetadataAreTexts) {
  for (const char* value : {"null", "1", "[]", "\"x\""}) {
    ExpectInvalid(absl::StrCat("{\"__metadata__\":", value, "}"), "__metadata__: want an object of texts");
  }
  for (const char* value : {"null", "1", "-1", "1.5", "true", "[]", "{}"}) {
    ExpectInvalid(absl::StrCat("{\"__metadata__\":{\"k\":", value, "}}"), "__metadata__: want a text");
  }
}

TEST_F(SafetensorsFileTest, NamesInMessagesAreEscapedAndShort) {
  const std::string name = "\\u001b[2J" + std::string(100000, 'x');
  const std::string path = WriteText("f", FileBytes("{" + Entry(name, "F99", "[]", "[0,1]") + "}", "d"));
  const absl::Status status = SafetensorsFile::Open(path).status();
  EXPECT_THAT(status, StatusIs(kInvalid, HasSubstr("tensor \\x1b[2Jxxx")));
  EXPECT_LT(status.message().size(), 1000u);
}

TEST_F(SafetensorsFileTest, AFileThatIsCutMeanwhileIsAnError) {
  const std::string path = WriteTensors("f", {FloatTensor("w", {4}, {1, 2, 3, 4})});
  ASSERT_OK_AND_ASSIGN(const SafetensorsFile file, SafetensorsFile::Open(path));
  std::filesystem::resize_file(path, std::filesystem::file_size(path) - 1);
  std::vector<uint8_t> bytes(16);
  EXPECT_THAT(file.Read(file.tensors()[0], 0, absl::MakeSpan(bytes)), StatusIs(kLost, HasSubstr("tensor w")));
}

class SafetensorsWriterTest : public FolderTest {
 protected:
  bool HasFilesWithoutNames() const {
    return wire::FileDescriptor(open(folder_.c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, 0600)).valid();
  }
};

TEST_F(SafetensorsWriterTest, WhatIsWrittenIsRead) {
  const std::vector<TestTensor> tensors = {{"bytes", Dtype::kU8, {3}, {1, 2, 3}},
                                           {"scalar", Dtype::kF64, {}, BytesOf<double>({1.5})},
                                           {"empty", Dtype::kBF16, {4, 0}, {}},
                                           {"nibbles", Dtype::kF4, {2, 3}, {7, 8, 9}},
                                           {"naïve \"name\"", Dtype::kI16, {2}, BytesOf<int16_t>({-1, 2})},
                                           FloatTensor("matrix", {2, 2}, {1, 2, 3, 4})};
  const std::string path = WriteTensors("out", tensors, {{"format", "pt"}, {"text", "a\nb"}});
  ASSERT_OK_AND_ASSIGN(const SafetensorsFile file, SafetensorsFile::Open(path));
  EXPECT_EQ(file.tensors().size(), tensors.size());
  for (const TestTensor& tensor : tensors) {
    EXPECT_EQ(ReadAll(file, tensor.name), std::string(tensor.bytes.begin(), tensor.bytes.end())) << tensor.name;
  }
  for (const TensorInfo& info : file.tensors())
    EXPECT_EQ(info.offset_bytes * 8 % DtypeBits(info.dtype), 0) << info.name;
  EXPECT_THAT(file.metadata(), ElementsAre(Pair("format", "pt"), Pair("text", "a\nb")));
  EXPECT_THAT(Names(), ElementsAre("out"));
}

TEST_F(SafetensorsWriterTest, DataBeginAtAMultipleOfEight) {
  for (size_t length = 1; length < 17; ++length) {
    Header header;
    header.tensors.push_back({std::string(length, 'n'), Dtype::kF64, {}, 0, 8});
    EXPECT_EQ(SerializeHeader(header).size() % 8, 0u);
  }
}

TEST_F(SafetensorsWriterTest, TensorsMayBeWrittenInPiecesAndInAnyOrder) {
  ASSERT_OK_AND_ASSIGN(SafetensorsWriter writer,
                       SafetensorsWriter::Create(Path("out"), {{"a", Dtype::kU8, {4}}, {"b", Dtype::kU8, {2}}}, {}));
  ASSERT_OK(writer.Append("b", {1}));
  ASSERT_OK(writer.Append("a", {1, 2, 3}));
  ASSERT_OK(writer.Append("b", {2}));
  EXPECT_THAT(writer.Append("b", {3}), StatusIs(kInvalid, HasSubstr("tensor b: want at most 0 more bytes, got 1")));
  EXPECT_THAT(writer.Append("c", {3}), StatusIs(kInvalid, HasSubstr("tensor c: not a tensor of the header")));
  EXPECT_THAT(writer.Commit(),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("tensor a: want 1 more bytes")));
  ASSERT_OK(writer.Append("a", {4}));
  ASSERT_OK(writer.Commit());
  ASSERT_OK_AND_ASSIGN(const SafetensorsFile file, SafetensorsFile::Open(Path("out")));
  EXPECT_EQ(ReadAll(file, "a"), "\1\2\3\4");
  EXPECT_EQ(ReadAll(file, "b"), "\1\2");
}

TEST_F(SafetensorsWriterTest, WithoutACommitTheOldFileStaysAndNothingElse) {
  WriteText("out", "old");
  {
    ASSERT_OK_AND_ASSIGN(SafetensorsWriter writer,
                         SafetensorsWriter::Create(Path("out"), {{"a", Dtype::kU8, {4}}}, {}));
    ASSERT_OK(writer.Append("a", {1, 2, 3, 4}));
    const SafetensorsWriter moved = std::move(writer);
    EXPECT_EQ(Names().size(), HasFilesWithoutNames() ? 1u : 2u);
  }
  EXPECT_THAT(Names(), ElementsAre("out"));
  EXPECT_EQ(std::filesystem::file_size(Path("out")), 3u);
}

TEST_F(SafetensorsWriterTest, AProcessThatIsKilledLeavesNothing) {
  if (!HasFilesWithoutNames()) GTEST_SKIP() << "no O_TMPFILE in " << folder_;
  const pid_t pid = fork();
  if (pid == 0) {
    auto writer = SafetensorsWriter::Create(Path("out"), {{"a", Dtype::kU8, {4}}}, {});
    if (!writer.ok() || !writer->Append("a", {1, 2}).ok()) _exit(1);
    raise(SIGKILL);
  }
  int status = 0;
  ASSERT_EQ(waitpid(pid, &status, 0), pid);
  ASSERT_TRUE(WIFSIGNALED(status));
  EXPECT_TRUE(std::filesystem::is_empty(folder_));
}

TEST_F(SafetensorsWriterTest, WhatIsNoFileIsRefused) {
  const auto create = [&](const std::vector<SafetensorsWriter::Tensor>& tensors) {
    return SafetensorsWriter::Create(Path("out"), tensors, {}).status();
  };
  EXPECT_THAT(create({{"a", Dtype::kU8, {}}, {"a", Dtype::kU8, {}}}), StatusIs(kInvalid, HasSubstr("tensor a")));
  EXPECT_THAT(create({{"__metadata__", Dtype::kU8, {}}}), StatusIs(kInvalid));
  EXPECT_THAT(create({{"a", Dtype::kU8, {-1}}}), StatusIs(kInvalid, HasSubstr("U8 [-1]")));
  EXPECT_THAT(create({{"a", Dtype::kF4, {1}}}), StatusIs(kInvalid));
  EXPECT_THAT(create({{std::string(kMaxHeaderBytes, 'n'), Dtype::kU8, {1}}}), StatusIs(kInvalid, HasSubstr("header")));
  EXPECT_THAT(SafetensorsWriter::Create(Path("no/out"), {}, {}), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(Names(), IsEmpty());
}

class CheckpointTest : public FolderTest {
 protected:
  CheckpointTest() {
    WriteTensors("one.safetensors", {FloatTensor("a", {1}, {1}), FloatTensor("b", {1}, {2})});
    WriteTensors("two.safetensors", {FloatTensor("c", {1}, {3})});
  }
  absl::Status OpenIndex(const std::string& weight_map) {
    return Checkpoint::Open(WriteText("model.safetensors.index.json", weight_map)).status();
  }
};

TEST_F(CheckpointTest, AnIndexMakesSeveralFilesOne) {
  WriteText(kIndexFileName,
            SerializeIndex({{"a", "one.safetensors"}, {"b", "one.safetensors"}, {"c", "two.safetensors"}}, 12));
  for (const std::string& path : {Path(kIndexFileName), folder_}) {
    ASSERT_OK_AND_ASSIGN(const Checkpoint checkpoint, Checkpoint::Open(path));
    EXPECT_EQ(checkpoint.files().size(), 2u);
    EXPECT_EQ(checkpoint.tensors().size(), 3u);
    EXPECT_EQ(checkpoint.index_path(), Path(kIndexFileName));
    const Checkpoint::Tensor* tensor = checkpoint.Find("c");
    ASSERT_NE(tensor, nullptr);
    EXPECT_EQ(tensor->file->path(), Path("two.safetensors"));
    EXPECT_EQ(tensor->info->name, "c");
    EXPECT_EQ(checkpoint.Find("d"), nullptr);
  }
}

TEST_F(CheckpointTest, ATensorMayHaveTheNameOfASection) {
  WriteTensors("three.safetensors", {FloatTensor("weight_map", {1}, {1}), FloatTensor("metadata", {1}, {2})});
  EXPECT_OK(OpenIndex(SerializeIndex({{"weight_map", "three.safetensors"}, {"metadata", "three.safetensors"}}, 8)));
}

TEST_F(CheckpointTest, AFileOrAFolderWithOneFileIsOne) {
  ASSERT_OK_AND_ASSIGN(const Checkpoint file, Checkpoint::Open(Path("one.safetensors")));
  EXPECT_EQ(file.tensors().size(), 2u);
  EXPECT_THAT(file.index_path(), IsEmpty());
  EXPECT_THAT(Checkpoint::Open(folder_),
              StatusIs(kInvalid, HasSubstr("one file, an index, or files of one sharded checkpoint")));
  std::filesystem::remove(Path("one.safetensors"));
  ASSERT_OK_AND_ASSIGN(const Checkpoint folder, Checkpoint::Open(folder_));
  EXPECT_EQ(folder.tensors().size(), 1u);
  std::filesystem::remove(Path("two.safetensors"));
  EXPECT_THAT(Checkpoint::Open(folder_), StatusIs(kInvalid, HasSubstr("got none")));
}

// Files as torch 2.15 writes them with HuggingFaceStorageWriter(save_distributed=True) for three ranks.
class ShardedCheckpointTest : public FolderTest {
 protected:
  // Writes a part of w [7, 2] from a row on, with elements that count up from 0, and some of the other tensors.
  void WriteShard(int number, int64_t first_row, int64_t rows, const std::string& more_info = "",
                  const std::vector<TestTensor>& more = {}) {
    std::vector<float> values;
    for (int64_t i = 2 * first_row; i < 2 * (first_row + rows); ++i) values.push_back(static_cast<float>(i));
    std::vector<TestTensor> tensors = {FloatTensor("w", {rows, 2}, values)};
    tensors.insert(tensors.end(), more.begin(), more.end());
    const std::string info = absl::StrCat("{\"w\": {\"saved_offsets\": [", first_row, ", 0]}", more_info, "}");
    WriteTensors(absl::StrCat("shard-0000", number, "-model-00001-of-00001.safetensors"), tensors,
                 {{"DCP_SHARDING_INFO", info}, {"DCP_VERSION", "1.0"}, {"format", "pt"}});
  }
};

TEST_F(ShardedCheckpointTest, PartsOfTensorsAreReadAsOne) {
  // The files' order differs from the order of the rows.
  WriteShard(1, 6, 1, ", \"plain\": {\"saved_offsets\": [0]}", {FloatTensor("plain", {3}, {7, 8, 9})});
  WriteShard(2, 0, 3, ", \"one\": {\"saved_offsets\": []}", {FloatTensor("one", {}, {5})});
  WriteShard(3, 3, 3);
  WriteShard(4, 7, 0);
  ASSERT_OK_AND_ASSIGN(const Checkpoint checkpoint, Checkpoint::Open(folder_));
  EXPECT_TRUE(checkpoint.is_sharded());
  EXPECT_EQ(checkpoint.tensors().size(), 3u);
  const Checkpoint::Tensor& w = *checkpoint.Find("w");
  EXPECT_THAT(w.info->shape, ElementsAre(7, 2));
  EXPECT_EQ(w.info->size_bytes, 56);
  for (int first = 0; first < 14; ++first) {
    for (int count = 0; first + count <= 14; ++count) {
      std::vector<float> values(count);
      ASSERT_OK(w.Read(first * 4, absl::MakeSpan(reinterpret_cast<uint8_t*>(values.data()), 4 * values.size())));
      for (int i = 0; i < count; ++i) ASSERT_EQ(values[i], first + i);
    }
  }
  EXPECT_THAT(checkpoint.Find("plain")->info->shape, ElementsAre(3));
  EXPECT_THAT(checkpoint.Find("one")->info->shape, IsEmpty());
}

// Returns the bytes that this process has read from files until now; nullopt if the kernel does not count them.
std::optional<int64_t> BytesRead() {
  std::ifstream counts("/proc/self/io");
  std::string name;
  int64_t value = 0;
  while (counts >> name >> value) {
    if (name == "rchar:") return value;
  }
  return std::nullopt;
}

TEST_F(ShardedCheckpointTest, FilesOfAnIndexAreReadOnceEach) {
  constexpr int kFiles = 40;
  std::map<std::string, std::string> weight_map;
  int64_t header_bytes = 0;
  for (int file = 0; file < kFiles; ++file) {
    const std::string tensor = absl::StrCat(std::string(10'000, 'w'), file);
    const std::string name = absl::StrCat("model-", file, ".safetensors");
    WriteTensors(name, {FloatTensor(tensor, {1}, {1})},
                 {{"DCP_SHARDING_INFO", absl::StrCat("{\"", tensor, "\": {\"saved_offsets\": [0]}}")}});
    weight_map[tensor] = name;
    header_bytes += static_cast<int64_t>(std::filesystem::file_size(Path(name)));
  }
  WriteText(kIndexFileName, SerializeIndex(weight_map, 4 * kFiles));
  header_bytes += static_cast<int64_t>(std::filesystem::file_size(Path(kIndexFileName)));
  const std::optional<int64_t> before = BytesRead();
  if (!before.has_value()) GTEST_SKIP() << "the kernel does not count what is read";
  ASSERT_OK_AND_ASSIGN(const Checkpoint checkpoint, Checkpoint::Open(folder_));
  EXPECT_EQ(checkpoint.tensors().size(), size_t{kFiles});
  EXPECT_LT(*BytesRead() - *before, 2 * header_bytes);
}

TEST_F(ShardedCheckpointTest, HolesAndRowsThatAreThereTwiceAreRefused) {
  WriteShard(1, 0, 3);
  WriteShard(2, 4, 3);
  EXPECT_THAT(Checkpoint::Open(folder_), StatusIs(kInvalid, HasSubstr("tensor w: want rows from 3 on")));
  WriteShard(2, 2, 3);
  EXPECT_THAT(Checkpoint::Open(folder_), StatusIs(kInvalid, HasSubstr("got rows from 2 on")));
  WriteShard(2, 3, 4);
  EXPECT_OK(Checkpoint::Open(folder_));
  WriteShard(1, 1, 2);
  EXPECT_THAT(Checkpoint::Open(folder_), StatusIs(kInvalid, HasSubstr("want rows from 0 on")));
}

TEST_F(ShardedCheckpointTest, CutsOnOtherDimensionsAreRefused) {
  WriteShard(1, 0, 3, ", \"c\": {\"saved_offsets\": [0, 0]}", {FloatTensor("c", {2, 1}, {1, 2})});
  WriteShard(2, 3, 4, ", \"c\": {\"saved_offsets\": [0, 1]}", {FloatTensor("c", {2, 1}, {3, 4})});
  EXPECT_THAT(Checkpoint::Open(folder_),
              StatusIs(kInvalid, HasSubstr("tensor c: cut on a dimension other than the first")));
}

TEST_F(ShardedCheckpointTest, PartsThatDoNotFitEachOtherAreRefused) {
  WriteShard(1, 0, 3, ", \"c\": {\"saved_offsets\": [0, 0]}", {FloatTensor("c", {2, 1}, {1, 2})});
  WriteShard(2, 3, 4, ", \"c\": {\"saved_offsets\": [2, 0]}", {FloatTensor("c", {1, 2}, {3, 4})});
  EXPECT_THAT(Checkpoint::Open(folder_), StatusIs(kInvalid, HasSubstr("tensor c: ")));
}

TEST_F(ShardedCheckpointTest, OtherMembersOfTheInfoArePassedOver) {
  WriteShard(1, 0, 3);
  for (const std::string other :
       {"3", "\"text\"", "null", "[1, [2, {\"saved_offsets\": [9]}]]", "{\"a\": [1], \"b\": {}}"}) {
    WriteTensors("shard-00002-model-00001-of-00001.safetensors", {FloatTensor("w", {1, 2}, {6, 7})},
                 {{"DCP_SHARDING_INFO",
                   absl::StrCat("{\"w\": {\"a\": ", other, ", \"saved_offsets\": [3, 0], \"b\": ", other, "}}")}});
    ASSERT_OK_AND_ASSIGN(const Checkpoint checkpoint, Checkpoint::Open(folder_));
    EXPECT_THAT(checkpoint.Find("w")->info->shape, ElementsAre(4, 2)) << other;
  }
}

TEST_F(ShardedCheckpointTest, InfoThatIsNoneIsRefused) {
  WriteShard(1, 0, 3);
  for (const std::string info : {"", "[]", "{}", R"({"w":1})", R"({"w":{}})", R"({"w":{"saved_offsets":[3]}})",
                                 R"({"w":{"saved_offsets":[-3,0]}})", R"({"w":{"saved_offsets":[3.0,0]}})",
                                 R"({"w":{"saved_offsets":[9223372036854775807,0]}})", R"({"w":{"saved_offsets":"3"}})",
                                 R"({"w":{"saved_offsets":[[3],0]}})", R"({"w":{"saved_offsets":[3,0,0]}})",
                                 R"({"w":{"saved_offsets":[3,0]},"w":{"saved_offsets":[3,0]}})",
                                 R"({"w":{"saved_offsets":[3],"saved_offsets":[0],"saved_offsets":[0]}})",
                                 R"({"w":{"saved_offsets":[3,0]},"v":{"saved_offsets":[0]}})",
                                 R"({"w":{"saved_offsets":[3,0]}} {})", R"({"w":{"saved_offsets":[3,0]})"}) {
    WriteTensors("shard-00002-model-00001-of-00001.safetensors", {FloatTensor("w", {1, 2}, {6, 7})},
                 {{"DCP_SHARDING_INFO", info}});
    EXPECT_THAT(Checkpoint::Open(folder_), StatusIs(kInvalid, HasSubstr("shard-00002"))) << info;
  }
}

TEST_F(CheckpointTest, AFolderIsReadAsTransformersReadsIt) {
  // Neither of these names the model.
  EXPECT_THAT(Checkpoint::Open(folder_), StatusIs(kInvalid));
  for (const char* const beside :
       {"consolidated.safetensors", "consolidated.00-of-02.safetensors", "adapter_model.safetensors"}) {
    std::filesystem::remove(Path("two.safetensors"));
    WriteTensors(beside, {FloatTensor("wq", {1}, {9})});
    ASSERT_OK_AND_ASSIGN(const Checkpoint checkpoint, Checkpoint::Open(folder_));
    EXPECT_EQ(checkpoint.files().front().path(), Path("one.safetensors"));
    EXPECT_THAT(checkpoint.notes(), ElementsAre(HasSubstr("read one.safetensors")));
  }
  for (const char* const of_torch : {"pytorch_model.bin", "pytorch_model.bin.index.json"}) {
    WriteText(of_torch, "");
    EXPECT_THAT(Checkpoint::Open(folder_), StatusIs(kInvalid, HasSubstr(of_torch)));
    std::filesystem::remove(Path(of_torch));
  }
  WriteTensors("model.safetensors", {FloatTensor("old", {1}, {1})});
  EXPECT_TRUE(Checkpoint::Open(folder_)->notes().empty());
  WriteText(kIndexFileName, SerializeIndex({{"a", "one.safetensors"}, {"b", "one.safetensors"}}, 8));
  ASSERT_OK_AND_ASSIGN(const Checkpoint both, Checkpoint::Open(folder_));
  EXPECT_NE(both.Find("old"), nullptr);
  EXPECT_EQ(both.notes().size(), 1u);
  std::filesystem::remove(Path("model.safetensors"));
  ASSERT_OK_AND_ASSIGN(const Checkpoint indexed, Checkpoint::Open(folder_));
  EXPECT_EQ(indexed.tensors().size(), 2u);
}

TEST_F(CheckpointTest, FilesOfDistributedCheckpointsAreNamed) {
  for (const char* const file : {"one.safetensors", "two.safetensors"}) std::filesystem::remove(Path(file));
  EXPECT_THAT(Checkpoint::Open(folder_), StatusIs(kInvalid, HasSubstr("model.safetensors")));
  WriteText("__0_0.distcp", "");
  EXPECT_THAT(Checkpoint::Open(folder_), StatusIs(kInvalid, HasSubstr(".distcp")));
}

TEST_F(CheckpointTest, OneFileOfSeveralIsNotTheWhole) {
  std::filesystem::remove(Path("one.safetensors"));
  std::filesystem::rename(Path("two.safetensors"), Path("model-00002-of-00003.safetensors"));
  EXPECT_THAT(Checkpoint::Open(folder_), StatusIs(kInvalid, HasSubstr("all 3 files")));
  EXPECT_OK(Checkpoint::Open(Path("model-00002-of-00003.safetensors")));
}

TEST_F(CheckpointTest, AnIndexMayLeaveTensorsOut) {
  WriteText(kIndexFileName, SerializeIndex({{"a", "one.safetensors"}, {"c", "two.safetensors"}}, 8));
  ASSERT_OK_AND_ASSIGN(const Checkpoint checkpoint, Checkpoint::Open(folder_));
  EXPECT_EQ(checkpoint.Find("b"), nullptr);
  EXPECT_EQ(checkpoint.TensorsOf(checkpoint.files()[0]).size(), 1u);
  EXPECT_THAT(checkpoint.notes(), ElementsAre(HasSubstr("b")));
}

TEST_F(ShardedCheckpointTest, APartIsNotTakenForTheWhole) {
  WriteShard(1, 0, 3);
  WriteShard(2, 3, 4);
  for (const int number : {1, 2}) {
    const std::string name = absl::StrCat("shard-0000", number, "-model-00001-of-00001.safetensors");
    EXPECT_THAT(Checkpoint::Open(Path(name)), StatusIs(kInvalid, HasSubstr("tensor w: want the whole tensor"))) << name;
    WriteText(kIndexFileName, SerializeIndex({{"w", name}}, 8));
    EXPECT_THAT(Checkpoint::Open(folder_), StatusIs(kInvalid, HasSubstr("tensor w: want the whole tensor"))) << name;
  }
  std::filesystem::remove(Path(kIndexFileName));
  std::filesystem::remove(Path("shard-00002-model-00001-of-00001.safetensors"));
  WriteShard(1, 0, 7);
  EXPECT_OK(Checkpoint::Open(folder_));
}

TEST_F(CheckpointTest, AnIndexGivesEveryTensorItsFileInTheFolder) {
  const std::string c = R"(,"c":"two.safetensors"}})";
  EXPECT_THAT(OpenIndex("{"), StatusIs(kInvalid, HasSubstr("\"weight_map\"")));
  EXPECT_THAT(OpenIndex("[]"), StatusIs(kInvalid));
  EXPECT_THAT(OpenIndex("{}"), StatusIs(kInvalid));
  EXPECT_THAT(OpenIndex(R"({"weight_map":[]})"), StatusIs(kInvalid));
  EXPECT_THAT(OpenIndex(R"({"weight_map":{"a":1}})"), StatusIs(kInvalid, HasSubstr("tensor a")));
  EXPECT_THAT(OpenIndex(R"({"weight_map":{"a":["one.safetensors"]}})"), StatusIs(kInvalid, HasSubstr("tensor a")));
  EXPECT_THAT(OpenIndex(R"({"weight_map":{"a":{"b":{"c":{}}}}})"), StatusIs(kInvalid, HasSubstr("tensor a")));
  for (const char* outside : {"/etc/passwd", "../one.safetensors", "x/../../one.safetensors", "", ".."}) {
    EXPECT_THAT(OpenIndex(absl::StrCat(R"({"weight_map":{"a":")", outside, "\"}}")),
                StatusIs(kInvalid, HasSubstr("in the index's folder")));
  }
  EXPECT_THAT(OpenIndex(R"({"weight_map":{"a":"none.safetensors"}})"), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(OpenIndex(R"({"weight_map":{"a":"one.safetensors","a":"two.safetensors"}})"),
              StatusIs(kInvalid, HasSubstr("duplicate name a")));
  EXPECT_THAT(OpenIndex(R"({"weight_map":{"c":"two.safetensors"},"weight_map":{}})"),
              StatusIs(kInvalid, HasSubstr("duplicate name weight_map")));
  EXPECT_THAT(OpenIndex(R"({"weight_map":{"c":"two.safetensors\u0000"}})"),
              StatusIs(kInvalid, HasSubstr("in the index's folder")));
  EXPECT_THAT(OpenIndex(R"({"weight_map":{"a":"one.safetensors","b":"two.safetensors")" + c),
              StatusIs(kInvalid, HasSubstr("tensor b: want it in one file")));
  EXPECT_THAT(OpenIndex(R"({"weight_map":{"a":"one.safetensors","b":"one.safetensors","d":"two.safetensors")" + c),
              StatusIs(kInvalid, HasSubstr("tensor d not found in")));
  EXPECT_OK(OpenIndex(R"({"weight_map":{"a":"./one.safetensors","b":"one.safetensors")" + c));
}

}  // namespace
}  // namespace paramshard::safetensors
