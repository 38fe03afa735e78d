#include "server/observe/line_writer.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/shared_memory/file_descriptor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/base/check.h"
#include "server/base/thread.h"
#include "tests/support/status_matchers.h"

namespace paramshard::server {
namespace {

constexpr absl::Duration kTimeout = absl::Seconds(30);

// A writer whose lines go into a pipe.
class LineWriterTest : public testing::Test {
 protected:
  LineWriterTest() {
    std::signal(SIGPIPE, SIG_IGN);
    int ends[2];
    PARAMSHARD_CHECK(pipe2(ends, O_CLOEXEC) == 0);
    reader_ = wire::FileDescriptor(ends[0]);
    // The smallest pipe of the kernel.
    PARAMSHARD_CHECK(fcntl(ends[1], F_SETPIPE_SZ, 4096) == 4096);
    // Not closed, because the writer's thread may still use it.
    pipe_ = ends[1];
  }
  ~LineWriterTest() override { reader_.Reset(); }

  void Start(size_t capacity_bytes) {
    auto writer = LineWriter::Start({.fd = pipe_, .capacity_bytes = capacity_bytes, .gap = [](int64_t count) {
                                       return absl::StrCat("missing ", count);
                                     }});
    ASSERT_OK(writer);
    writer_ = *std::move(writer);
  }

  // Returns the next line from the pipe.
  std::string ReadLine() {
    std::string line;
    char c;
    while (read(reader_.get(), &c, 1) == 1 && c != '\n') line.push_back(c);
    return line;
  }
  // Until a write would block.
  void FillPipe() const {
    const std::string block(4096, '.');
    fcntl(pipe_, F_SETFL, O_NONBLOCK);
    while (write(pipe_, block.data(), block.size()) > 0) {
    }
    fcntl(pipe_, F_SETFL, 0);
  }

  wire::FileDescriptor reader_;
  int pipe_ = -1;
  std::unique_ptr<LineWriter> writer_;
};

TEST_F(LineWriterTest, LinesAreWrittenInOrder) {
  Start(1 << 20);
  for (int i = 0; i < 100; ++i) writer_->Write(absl::StrCat("line ", i));
  EXPECT_TRUE(writer_->Flush(kTimeout));
  for (int i = 0; i < 100; ++i) EXPECT_EQ(ReadLine(), absl::StrCat("line ", i));
}

TEST_F(LineWriterTest, AFullPipeHoldsNobodyUpAndTheGapIsTold) {
  FillPipe();
  Start(100);
  constexpr int kLines = 10'000;
  // Neither these calls nor the flush wait for a reader.
  for (int i = 0; i < kLines; ++i) writer_->Write(absl::StrCat("line ", i));
  EXPECT_FALSE(writer_->Flush(absl::Milliseconds(1)));
  std::string block(4096, 0);
  ASSERT_EQ(read(reader_.get(), block.data(), block.size()), 4096);
  int told = 0;
  int missing = 0;
  while (told + missing < kLines) {
    const std::string line = ReadLine();
    if (const size_t at = line.find("missing "); at == 0) {
      missing += std::stoi(line.substr(8));
    } else {
      EXPECT_EQ(line, absl::StrCat("line ", told + missing)) << "the gap stands where lines are missing";
      ++told;
    }
  }
  EXPECT_EQ(told + missing, kLines);
  EXPECT_GT(missing, 0);
  EXPECT_TRUE(writer_->Flush(kTimeout));
  writer_->Write("later");
  EXPECT_EQ(ReadLine(), "later");
}

TEST_F(LineWriterTest, LinesThatNobodyCanReadAreDropped) {
  reader_.Reset();
  Start(1 << 20);
  writer_->Write("lost");
  EXPECT_TRUE(writer_->Flush(kTimeout)) << "with SIGPIPE ignored the write just fails";
}

TEST_F(LineWriterTest, ALostLineIsToldWhenTheNextCanBeWritten) {
  const std::string path = testing::TempDir() + "/line_writer_fifo";
  unlink(path.c_str());
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  reader_ = wire::FileDescriptor(open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  pipe_ = open(path.c_str(), O_WRONLY | O_CLOEXEC);
  reader_.Reset();
  Start(1 << 20);
  writer_->Write("lost");
  ASSERT_TRUE(writer_->Flush(kTimeout));
  reader_ = wire::FileDescriptor(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  writer_->Write("kept");
  EXPECT_EQ(ReadLine(), "missing 1");
  EXPECT_EQ(ReadLine(), "kept");
  unlink(path.c_str());
}

TEST_F(LineWriterTest, ADescriptorThatDoesNotBlockIsWaitedFor) {
  ASSERT_EQ(fcntl(pipe_, F_SETFL, O_NONBLOCK), 0);
  Start(1 << 20);
  for (int i = 0; i < 2000; ++i) writer_->Write(absl::StrCat("line ", i));
  for (int i = 0; i < 2000; ++i) EXPECT_EQ(ReadLine(), absl::StrCat("line ", i));
}

TEST_F(LineWriterTest, WithoutAThreadThereIsNone) {
  const ThreadShortage shortage(0);
  EXPECT_THAT(LineWriter::Start({.fd = pipe_, .gap = nullptr}), StatusIs(absl::StatusCode::kResourceExhausted));
}

}  // namespace
}  // namespace paramshard::server
