#include "common/safetensors/regular_file.h"

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

#include "common/safetensors/page_buffer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temporary_directory.h"

namespace paramshard::safetensors {
namespace {

using ::testing::HasSubstr;

using PageCache = RegularFile::PageCache;

// The content is not whole pages, and every byte differs from its neighbours.
constexpr int64_t kBytes = 5 * kPageBytes + 1234;

std::vector<uint8_t> Content() {
  std::vector<uint8_t> content(kBytes);
  for (int64_t i = 0; i < kBytes; ++i) content[i] = static_cast<uint8_t>(i * 131 + i / 256);
  return content;
}

class RegularFileTest : public testing::TestWithParam<PageCache> {
 protected:
  RegularFileTest() : path_(folder_.path() + "/file"), content_(Content()) {
    std::ofstream(path_, std::ios::binary).write(reinterpret_cast<const char*>(content_.data()), kBytes);
  }

  const test::TemporaryDirectory folder_;
  const std::string path_;
  const std::vector<uint8_t> content_;
};

TEST_P(RegularFileTest, AnyBytesAreThoseOfTheFile) {
  const auto file = RegularFile::Open(path_, GetParam());
  ASSERT_OK(file);
  EXPECT_EQ(file->size_bytes(), kBytes);
  PageBuffer buffer;
  const int64_t places[] = {0, 1, kPageBytes - 1, kPageBytes, kPageBytes + 1, 3 * kPageBytes, kBytes - 1, kBytes};
  for (const int64_t begin : places) {
    for (const int64_t end : places) {
      if (begin > end) continue;
      const std::vector<uint8_t> expected(content_.begin() + begin, content_.begin() + end);
      std::vector<uint8_t> read(end - begin);
      EXPECT_OK(file->ReadAt(begin, absl::MakeSpan(read)));
      EXPECT_EQ(read, expected) << begin << " to " << end;
      const auto bytes = file->ReadAt(begin, end - begin, buffer);
      ASSERT_OK(bytes);
      EXPECT_EQ(*bytes, absl::MakeConstSpan(expected)) << begin << " to " << end;
    }
  }
}

TEST_P(RegularFileTest, WhatIsNotThereIsLost) {
  const auto file = RegularFile::Open(path_, GetParam());
  ASSERT_OK(file);
  PageBuffer buffer;
  for (const int64_t begin : {int64_t{0}, kPageBytes, kBytes, kBytes + kPageBytes}) {
    const auto bytes = file->ReadAt(begin, kBytes - begin < 0 ? 1 : kBytes - begin + 1, buffer);
    EXPECT_THAT(bytes.status(), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("got the end of the file"))) << begin;
  }
}

TEST_P(RegularFileTest, AFileThatIsCutMeanwhileIsAnError) {
  const auto file = RegularFile::Open(path_, GetParam());
  ASSERT_OK(file);
  ASSERT_EQ(truncate(path_.c_str(), kPageBytes + 1), 0);
  PageBuffer buffer;
  EXPECT_OK(file->ReadAt(0, kPageBytes + 1, buffer));
  std::vector<uint8_t> read(kBytes);
  EXPECT_THAT(file->ReadAt(0, absl::MakeSpan(read)), StatusIs(absl::StatusCode::kDataLoss));
  EXPECT_THAT(file->ReadAt(2 * kPageBytes, 1, buffer).status(), StatusIs(absl::StatusCode::kDataLoss));
  EXPECT_OK(file->ReadAt(1, kPageBytes, buffer));
}

INSTANTIATE_TEST_SUITE_P(All, RegularFileTest, testing::Values(PageCache::kUsed, PageCache::kAvoided),
                         [](const auto& info) {
                           return info.param == PageCache::kUsed ? "ThroughThePageCache" : "AroundThePageCache";
                         });

TEST(PageBufferTest, GivesWholePages) {
  PageBuffer buffer;
  EXPECT_EQ(buffer.Take(0).size(), 0);
  for (const int64_t size : {int64_t{1}, kPageBytes, kPageBytes + 1, int64_t{3}}) {
    const absl::Span<uint8_t> pages = buffer.Take(size);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(pages.data()) % kPageBytes, 0);
    EXPECT_EQ(pages.size(), (size + kPageBytes - 1) / kPageBytes * kPageBytes);
    std::fill(pages.begin(), pages.end(), uint8_t{1});
  }
}

TEST(RegularFileTest, AMountThatDoesNotAnswerIsUnavailable) {
  for (const int error : {EIO, ESTALE, ENOTCONN}) {
    EXPECT_EQ(FileError(error, "f: open failed").code(), absl::StatusCode::kUnavailable) << error;
  }
  EXPECT_EQ(FileError(ENOENT, "f: open failed").code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(FileError(0, "f").code(), absl::StatusCode::kOk);
}

}  // namespace
}  // namespace paramshard::safetensors
