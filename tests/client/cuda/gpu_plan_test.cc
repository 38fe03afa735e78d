// Plans of readers into memory of GPUs, from planes on GPUs and on the host.
#include <algorithm>
#include <cstdint>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "client/plan.h"
#include "client/reader.h"
#include "gmock/gmock.h"
#include "kernels/formats/format.h"
#include "kernels/gpu/memory.h"
#include "kernels/gpu/status.h"
#include "tests/client/cuda/cuda_client_fixture.h"
#include "tests/client/cuda/trainers.h"

namespace paramshard {
namespace {

using ::testing::HasSubstr;

class GpuPlanTest : public CudaClientFixture {
 protected:
  static constexpr uint8_t kUntouched = 0x5a;

  // Boxes of every content that the parameter has: whole, cut at odd places, and cut at blocks.
  static std::vector<Box> BoxesOf(const ReadParameter& parameter) {
    std::vector<Box> boxes;
    for (const BoxContent content : {BoxContent::kFloat32, BoxContent::kBFloat16}) {
      boxes.push_back({.parameter = parameter.name, .content = content});
      boxes.push_back({.parameter = parameter.name, .first_row = 5, .rows = 300, .content = content});
      boxes.push_back({.parameter = parameter.name, .first_column = 17, .columns = 200, .content = content});
      boxes.push_back({.parameter = parameter.name,
                       .first_row = 131,
                       .rows = 1,
                       .first_column = 3,
                       .columns = 5,
                       .content = content});
    }
    boxes.push_back({.parameter = parameter.name, .content = BoxContent::kCodes});
    boxes.push_back({.parameter = parameter.name,
                     .first_row = 128,
                     .rows = 256,
                     .first_column = 128,
                     .columns = 128,
                     .content = BoxContent::kCodes});
    if (ScaleBytes(parameter.encoding, Plane::kRowWise, 1, 1) > 0) {
      boxes.push_back({.parameter = parameter.name, .content = BoxContent::kScales});
      boxes.push_back({.parameter = parameter.name,
                       .first_row = 128,
                       .rows = 256,
                       .first_column = 128,
                       .columns = 128,
                       .content = BoxContent::kScales});
    }
    if (AmaxBytes(parameter.encoding.format) > 0) {
      boxes.push_back({.parameter = parameter.name, .content = BoxContent::kAmax});
    }
    return boxes;
  }

  // Gives each box memory from `begin` on, every other one with gaps between its rows. Returns the bytes of all.
  static absl::StatusOr<int64_t> Place(const Snapshot& snapshot, std::vector<Box>& boxes, uint8_t* begin) {
    ASSIGN_OR_RETURN(const std::vector<BoxOutput> outputs, Plan::OutputsOf(snapshot.parameters(), boxes));
    int64_t bytes = 0;
    for (size_t i = 0; i < boxes.size(); ++i) {
      const int64_t stride = outputs[i].row_bytes + (i % 2 == 0 ? 0 : 12);
      boxes[i].out = begin + bytes;
      boxes[i].out_stride_bytes = stride;
      bytes += (outputs[i].rows * stride + 63) / 64 * 64;
    }
    return bytes;
  }

  // The same boxes give the same bytes on a GPU as on the host, and touch nothing else.
  static absl::Status ExpectSame(const Snapshot& snapshot, int gpu) {
    std::vector<Box> boxes;
    for (const ReadParameter& parameter : snapshot.parameters()) {
      if (parameter.rows < 384 || parameter.columns < 256) continue;
      for (Box& box : BoxesOf(parameter)) boxes.push_back(std::move(box));
    }
    EXPECT_FALSE(boxes.empty());
    ASSIGN_OR_RETURN(const int64_t bytes, Place(snapshot, boxes, nullptr));
    std::vector<uint8_t> expected(bytes, kUntouched), copied(bytes);
    RETURN_IF_ERROR(Place(snapshot, boxes, expected.data()).status());
    ASSIGN_OR_RETURN(const Plan on_host, Plan::Create(snapshot.parameters(), boxes));
    RETURN_IF_ERROR(snapshot.CopyTo(on_host));

    cudaSetDevice(gpu);
    ASSIGN_OR_RETURN(const gpu::DeviceMemory memory, gpu::DeviceMemory::Create(gpu, bytes, {gpu}, /*shareable=*/false));
    RETURN_IF_ERROR(gpu::ToStatus(cudaMemset(memory.data(), kUntouched, bytes), "fill"));
    RETURN_IF_ERROR(Place(snapshot, boxes, memory.data()).status());
    ASSIGN_OR_RETURN(const Plan on_gpu, Plan::Create(snapshot.parameters(), boxes, gpu));
    for (int round = 0; round < 2; ++round) RETURN_IF_ERROR(snapshot.CopyTo(on_gpu));
    RETURN_IF_ERROR(gpu::ToStatus(cudaMemcpy(copied.data(), memory.data(), bytes, cudaMemcpyDeviceToHost), "read"));
    const auto differs = std::mismatch(expected.begin(), expected.end(), copied.begin()).first;
    EXPECT_TRUE(differs == expected.end()) << "at byte " << differs - expected.begin() << " of " << bytes;

    EXPECT_OK(snapshot.Verify(on_gpu));
    const uint8_t other = ~expected[0];
    RETURN_IF_ERROR(gpu::ToStatus(cudaMemcpy(memory.data(), &other, 1, cudaMemcpyHostToDevice), "change a byte"));
    EXPECT_THAT(snapshot.Verify(on_gpu),
                StatusIs(absl::StatusCode::kDataLoss, HasSubstr(absl::StrCat(boxes[0].parameter, " differs"))));
    return absl::OkStatus();
  }

  void ExpectSameFrom(absl::string_view kind, int ranks, Format format) {
    StartDaemon(kind, ranks);
    ASSERT_FALSE(HasFatalFailure());
    absl::Notification read;
    RunTrainers(ranks, TwoUnits(format), [&](int rank, Model& model) -> absl::Status {
      RETURN_IF_ERROR(TrainByHost(model).status());
      if (rank > 0) {
        read.WaitForNotificationWithTimeout(absl::Minutes(1));
        return absl::OkStatus();
      }
      const absl::Cleanup done = [&] { read.Notify(); };
      ASSIGN_OR_RETURN(const std::unique_ptr<Reader> reader,
                       Reader::Create({.model = TwoUnits(format).name, .socket_dir = directory_->path()}));
      ASSIGN_OR_RETURN(const Snapshot snapshot, reader->Acquire());
      for (int gpu = 0; gpu < std::min(GpuCount(), 2); ++gpu) RETURN_IF_ERROR(ExpectSame(snapshot, gpu));
      return absl::OkStatus();
    });
  }
};

class GpuPlanOfFormatTest : public GpuPlanTest, public testing::WithParamInterface<std::tuple<Format, int>> {};

TEST_P(GpuPlanOfFormatTest, BytesAreThoseOfAPlanOnTheHost) {
  const auto [format, ranks] = GetParam();
  SKIP_WITHOUT_GPUS(ranks);
  ExpectSameFrom("cuda", ranks, format);
}

INSTANTIATE_TEST_SUITE_P(All, GpuPlanOfFormatTest,
                         testing::Combine(testing::Values(Format::kFP32, Format::kBF16, Format::kFP16,
                                                          Format::kFP8TensorCurrent, Format::kFP8TensorDelayed,
                                                          Format::kFP8Block128x128, Format::kMXFP8, Format::kMXFP8_2D,
                                                          Format::kNVFP4_2D),
                                          testing::Values(1, 2)),
                         [](const testing::TestParamInfo<std::tuple<Format, int>>& info) {
                           return absl::StrCat(FormatName(std::get<0>(info.param)), "On", std::get<1>(info.param));
                         });

TEST_F(GpuPlanTest, PlanesOfTheHostGoToAGpuToo) {
  SKIP_WITHOUT_GPUS(1);
  ExpectSameFrom("cpu", 2, Format::kFP8Block128x128);
}

}  // namespace
}  // namespace paramshard
