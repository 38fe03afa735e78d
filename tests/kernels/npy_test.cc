#include "client/ctl/npy.h"

#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace paramshard {
namespace {

using ::testing::HasSubstr;

// A file of version 1.0 with this header and these elements.
std::string File(const std::string& header, const std::string& elements) {
  std::string file("\x93NUMPY\x01\x00", 8);
  file.push_back(static_cast<char>(header.size() & 0xff));
  file.push_back(static_cast<char>(header.size() >> 8));
  return file + header + elements;
}

std::string HeaderOfShape(const std::string& shape) {
  return absl::StrCat("{'descr': '|u1', 'fortran_order': False, 'shape': ", shape, ", }\n");
}

void ExpectRefused(const std::string& file, absl::StatusCode code, const std::string& message) {
  const absl::Status status = ParseNpy(file).status();
  EXPECT_EQ(status.code(), code) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(message));
}

TEST(NpyTest, ArraysOfEveryDtypeComeBack) {
  for (const NpyArray& array : {NpyArray{"<f4", {2, 1}, {1, 2, 3, 4, 5, 6, 7, 8}}, NpyArray{"|u1", {3}, {1, 2, 3}},
                                NpyArray{"<u2", {}, {1, 2}}, NpyArray{"<i2", {0, 5}, {}}}) {
    const std::string file = SerializeNpy(array).value();
    const NpyArray back = ParseNpy(file).value();
    EXPECT_EQ(back.dtype, array.dtype);
    EXPECT_EQ(back.shape, array.shape);
    EXPECT_EQ(back.bytes, array.bytes);
    EXPECT_EQ((file.size() - array.bytes.size()) % 64, 0u);
  }
}

TEST(NpyTest, FilesComeBack) {
  const std::string path = testing::TempDir() + "/npy_test.npy";
  ASSERT_TRUE(WriteNpy(path, {"<u2", {2}, {1, 2, 3, 4}}).ok());
  EXPECT_EQ(ReadNpy(path).value().bytes, (std::vector<uint8_t>{1, 2, 3, 4}));
}

TEST(NpyTest, MissingFileIsNotFound) {
  const absl::Status status = ReadNpy(testing::TempDir() + "/no-such.npy").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), HasSubstr("no-such.npy"));
}

TEST(NpyTest, DirectoryIsRefused) {
  EXPECT_EQ(ReadNpy(testing::TempDir()).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(NpyTest, RefusalNamesTheFile) {
  const std::string path = testing::TempDir() + "/npy_test_empty.npy";
  std::ofstream file(path);
  file.close();
  const absl::Status status = ReadNpy(path).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), path + ": npy: not a .npy file");
}

TEST(NpyTest, KeysMayComeInAnyOrder) {
  const NpyArray array = ParseNpy(File("{'shape':(2,),'fortran_order':False,'descr':'|u1'}", "ab")).value();
  EXPECT_EQ(array.shape, (std::vector<int64_t>{2}));
}

TEST(NpyTest, EveryTruncationIsRefused) {
  const std::string file = SerializeNpy({"|u1", {3}, {1, 2, 3}}).value();
  for (size_t size = 0; size < file.size(); ++size) {
    EXPECT_EQ(ParseNpy(file.substr(0, size)).status().code(), absl::StatusCode::kInvalidArgument) << size;
  }
  ExpectRefused(file + "x", absl::StatusCode::kInvalidArgument, "want 3 bytes, got 4");
}

TEST(NpyTest, OtherFilesAreRefused) {
  ExpectRefused("PK\x03\x04 something else", absl::StatusCode::kInvalidArgument, "not a .npy file");
  std::string file = SerializeNpy({"|u1", {0}, {}}).value();
  file[6] = 2;
  ExpectRefused(file, absl::StatusCode::kUnimplemented, "version 1.0");
}

TEST(NpyTest, OtherDtypesAndOrdersAreUnimplemented) {
  ExpectRefused(File("{'descr': '<f8', 'fortran_order': False, 'shape': (0,), }", ""), absl::StatusCode::kUnimplemented,
                "<f8");
  ExpectRefused(File("{'descr': '|u1', 'fortran_order': True, 'shape': (0,), }", ""), absl::StatusCode::kUnimplemented,
                "Fortran");
}

TEST(NpyTest, HugeShapesAreRefused) {
  ExpectRefused(File(HeaderOfShape("(4294967296, 4294967296)"), ""), absl::StatusCode::kInvalidArgument, "too large");
  ExpectRefused(File(HeaderOfShape("(99999999999999999999,)"), ""), absl::StatusCode::kInvalidArgument, "shape");
  ExpectRefused(File(HeaderOfShape("(1000000000000,)"), "x"), absl::StatusCode::kInvalidArgument, "bytes, got");
}

TEST(NpyTest, MalformedHeadersAreRefused) {
  for (const char* header : {"", "{", "[]", "{'descr': '|u1'}", "{'descr': '|u1', 'fortran_order': 0, 'shape': (1,)}",
                             "{'descr': '|u1', 'fortran_order': False, 'shape': (-1,)}",
                             "{'descr': '|u1', 'fortran_order': False, 'shape': (1)}",
                             "{'descr': '|u1', 'fortran_order': False, 'shape': (1,,)}",
                             "{'descr': '|u1', 'fortran_order': False, 'shape': (1,}",
                             "{'descr': '|u1', 'fortran_order': False, 'shape': (1,)} x",
                             "{'descr': '|u1', 'fortran_order': False 'shape': (1,)}",
                             "{'descr': '|u1', 'descr': '|u1', 'fortran_order': False, 'shape': (1,)}",
                             "{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,)}",
                             "{'descr': '|u1', 'fortran_order': False, 'shape': (1,), 'more': 1}"}) {
    EXPECT_EQ(ParseNpy(File(header, "x")).status().code(), absl::StatusCode::kInvalidArgument) << header;
  }
}

TEST(NpyTest, ArrayThatDoesNotFitItsShapeIsNotWritten) {
  EXPECT_EQ(SerializeNpy({"<f4", {2}, {1, 2, 3, 4}}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(SerializeNpy({"<f8", {0}, {}}).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace paramshard
