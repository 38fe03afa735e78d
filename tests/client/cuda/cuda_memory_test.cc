// The memory of a session on a GPU, without a daemon: what the host waits for has an end.
#include <cuda_runtime.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "client/internal/gpu_memory.h"
#include "common/shared_memory/file_descriptor.h"
#include "gmock/gmock.h"
#include "kernels/base/align.h"
#include "kernels/base/status_macros.h"
#include "kernels/gpu/memory.h"
#include "kernels/gpu/stream.h"
#include "tests/support/status_matchers.h"

namespace paramshard::internal {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

constexpr int kGpu = 0;
constexpr int64_t kWordsBytes = 4096;
constexpr int64_t kTensorBytes = int64_t{2} << 20;
constexpr absl::Duration kMoment = absl::Milliseconds(20);

absl::StatusOr<std::shared_ptr<const MappedMemory>> MapWords() {
  const wire::FileDescriptor fd(memfd_create("words", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (ftruncate(fd.get(), kWordsBytes) != 0 || fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK) != 0) {
    return absl::InternalError("no file for words");
  }
  ASSIGN_OR_RETURN(MappedMemory words, MappedMemory::Map("words", fd, kWordsBytes, MappedMemory::Access::kReadWrite));
  return std::make_shared<const MappedMemory>(std::move(words));
}

absl::StatusOr<wire::FileDescriptor> ShareTensors() {
  const int accessors[] = {kGpu};
  ASSIGN_OR_RETURN(const gpu::DeviceMemory memory,
                   gpu::DeviceMemory::Create(kGpu, kTensorBytes, accessors, /*shareable=*/true));
  ASSIGN_OR_RETURN(const int fd, memory.Export());
  return wire::FileDescriptor(fd);
}

class CudaMemoryTest : public testing::Test {
 protected:
  void SetUp() override {
    int count = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) GTEST_SKIP() << "no GPU";
    ASSERT_OK_AND_ASSIGN(words_, MapWords());
    ASSERT_OK_AND_ASSIGN(stream_, gpu::Stream::Create(kGpu));
    ASSERT_OK(Map());
  }
  // Wakes all waits.
  void TearDown() override {
    if (words_ != nullptr) Write(word(), UINT32_MAX / 2);
  }

  absl::Status Map() {
    cudaDeviceProp properties;
    cudaGetDeviceProperties(&properties, kGpu);
    SessionMemory memory;
    memory.sizes.planes_bytes = memory.sizes.slots_bytes = kTensorBytes;
    ASSIGN_OR_RETURN(memory.planes, ShareTensors());
    ASSIGN_OR_RETURN(memory.slots, ShareTensors());
    ASSIGN_OR_RETURN(
        memory_,
        MapGpuTensors(std::string(properties.uuid.bytes, 16),
                      {.memory = &memory, .words = words_, .scratch_bytes = 4096, .marks = 1, .timeout = kMoment}));
    return absl::OkStatus();
  }

  wire::Word& word(int index = 0) const { return reinterpret_cast<wire::Word*>(words_->data())[index]; }
  static void Write(wire::Word& word, uint32_t value) { word.value.store(value, std::memory_order_release); }

  // The stream waits for the first word, and writes the second.
  absl::Status Park() {
    const WordOperation operations[] = {{WordOperation::Kind::kAwait, &word(0), 1},
                                        {WordOperation::Kind::kWrite, &word(1), 1}};
    return memory_->EnqueueWords(operations, stream_.get());
  }

  std::shared_ptr<const MappedMemory> words_;
  gpu::Stream stream_;
  std::unique_ptr<TensorMemory> memory_;
};

TEST_F(CudaMemoryTest, TheWaitForAStreamThatStandsStillEnds) {
  ASSERT_OK(Park());
  EXPECT_THAT(memory_->Synchronize(stream_.get()),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("wait for a stream of cuda:0")));
  Write(word(0), 1);
  EXPECT_OK(stream_.Synchronize());
  EXPECT_OK(memory_->Synchronize(stream_.get()));
  EXPECT_EQ(word(1).value.load(), 1);
}

// The stream may be any of the trainer's: nothing was given to it through the session but the words.
TEST_F(CudaMemoryTest, AnEndThatAStreamHoldsUpKeepsWhatTheStreamTouches) {
  ASSERT_OK(Park());
  const std::weak_ptr<const MappedMemory> words = words_;
  memory_.reset();
  Write(word(0), 1);
  EXPECT_OK(stream_.Synchronize());
  EXPECT_EQ(word(1).value.load(), 1);
  words_.reset();
  EXPECT_FALSE(words.expired());
}

TEST_F(CudaMemoryTest, AnEndAfterAllStreamsUnmaps) {
  ASSERT_OK(Park());
  Write(word(0), 1);
  const std::weak_ptr<const MappedMemory> words = words_;
  words_.reset();
  memory_.reset();
  EXPECT_TRUE(words.expired());
}

// The same bytes as on the host, from and to addresses that are aligned for their elements alone.
TEST_F(CudaMemoryTest, GradientsOfEitherTypeAreCopiedIntoEither) {
  constexpr int64_t kCount = 4099, kOffset = 3;
  std::vector<uint8_t> values((kCount + kOffset) * sizeof(float));
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<uint8_t>(i * 37 % 253);
  const int accessors[] = {kGpu};
  ASSERT_OK_AND_ASSIGN(
      const gpu::DeviceMemory memory,
      gpu::DeviceMemory::Create(kGpu, static_cast<int64_t>(values.size()), accessors, /*shareable=*/false));
  ASSERT_OK(CopyToGpu(kGpu, values, memory.data()));
  std::vector<GradientCopy> copies;
  std::vector<uint8_t> expected(kTensorBytes, 0), got(kTensorBytes);
  ASSERT_OK(memory_->Zero(memory_->slots(), kTensorBytes, stream_.get()));
  int64_t end = 0;
  for (const GradientType from : {GradientType::kFP32, GradientType::kBF16}) {
    for (const GradientType to : {GradientType::kFP32, GradientType::kBF16}) {
      const int64_t source = kOffset * GradientBytes(from), target = end + kOffset * GradientBytes(to);
      copies.push_back({{memory.data() + source, from}, {memory_->slots() + target, to}, kCount});
      CopyGradientOnHost({{values.data() + source, from}, {expected.data() + target, to}, kCount});
      end = AlignUp(target + kCount * GradientBytes(to), sizeof(float));
    }
  }
  ASSERT_LE(end, kTensorBytes);
  ASSERT_OK(memory_->CopyGradients(copies, stream_.get()));
  ASSERT_OK(stream_.Synchronize());
  ASSERT_OK(CopyFromGpu(kGpu, absl::MakeConstSpan(memory_->slots(), kTensorBytes), got.data()));
  EXPECT_EQ(got, expected);
}

TEST_F(CudaMemoryTest, AStreamWithTheHandleOfAnotherHasAnotherId) {
  std::set<uint64_t> ids;
  for (int i = 0; i < 10; ++i) {
    ASSERT_OK_AND_ASSIGN(const gpu::Stream stream, gpu::Stream::Create(kGpu));
    ids.insert(memory_->IdOf(stream.get()));
  }
  EXPECT_THAT(ids, SizeIs(10));
  EXPECT_FALSE(ids.contains(0));
  EXPECT_NE(memory_->IdOf(nullptr), 0);
}

// More than is copied at once.
TEST_F(CudaMemoryTest, CopiesToAndFromTheHostWaitForNoOtherStream) {
  constexpr int64_t kBytes = (int64_t{9} << 20) + 5;
  const int accessors[] = {kGpu};
  ASSERT_OK_AND_ASSIGN(const gpu::DeviceMemory memory,
                       gpu::DeviceMemory::Create(kGpu, kBytes, accessors, /*shareable=*/false));
  std::vector<uint8_t> sent(kBytes), got(kBytes);
  for (int64_t i = 0; i < kBytes; ++i) sent[i] = static_cast<uint8_t>(i * 31 % 251);
  ASSERT_OK(Park());
  EXPECT_OK(CopyToGpu(kGpu, sent, memory.data()));
  EXPECT_OK(CopyFromGpu(kGpu, absl::MakeConstSpan(memory.data(), kBytes), got.data()));
  EXPECT_TRUE(sent == got);
  EXPECT_EQ(cudaStreamQuery(stream_.get()), cudaErrorNotReady);
}

}  // namespace
}  // namespace paramshard::internal
