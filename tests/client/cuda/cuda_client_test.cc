// The client library in memory of GPUs, against a real daemon.
#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/cuda.h"
#include "gmock/gmock.h"
#include "kernels/formats/format.h"
#include "kernels/gpu/status.h"
#include "kernels/gpu/stream.h"
#include "tests/client/cuda/cuda_client_fixture.h"
#include "tests/client/cuda/trainers.h"
#include "tests/support/daemon_process.h"
#include "tests/support/environment.h"
#include "tests/support/status_matchers.h"

namespace paramshard {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Ranks are threads of one process here: loading a kernel while another rank's stream waits would hold them all up.
const bool kKernelsAreLoadedAtStart = setenv("CUDA_MODULE_LOADING", "EAGER", 0) == 0;

// Long enough for a daemon that does not wait to be seen.
constexpr absl::Duration kMoment = absl::Milliseconds(50);

class CudaClientTest : public CudaClientFixture {
 protected:
  // Trains with a fresh daemon, and returns the planes and answers of every rank.
  std::vector<Seen> Train(absl::string_view kind, int ranks, const ModelSpec& spec,
                          const std::function<absl::StatusOr<Seen>(Model&)>& train) {
    std::vector<Seen> seen(ranks);
    StartDaemon(kind, ranks);
    if (HasFatalFailure()) return seen;
    RunTrainers(ranks, spec, [&](int rank, Model& model) -> absl::Status {
      EXPECT_EQ(model.gpu() >= 0, kind == "cuda");
      ASSIGN_OR_RETURN(seen[rank], train(model));
      // No rank leaves before all ranks have read everything.
      ASSIGN_OR_RETURN(PendingCommit last, model.Commit({.learning_rate = 0.0f}));
      return last.Wait().status();
    });
    return seen;
  }

  // A training on GPUs, by the host and on streams, sees what one in host memory sees.
  void ExpectSameBits(int ranks, const ModelSpec& spec) {
    const std::vector<Seen> expected = Train("cpu", ranks, spec, TrainByHost);
    const std::vector<Seen> by_host = Train("cuda", ranks, spec, TrainByHost);
    const std::vector<Seen> on_streams = Train("cuda", ranks, spec, TrainOnStreams);
    for (int rank = 0; rank < ranks; ++rank) {
      ASSERT_FALSE(expected[rank].planes.empty());
      EXPECT_TRUE(by_host[rank].planes == expected[rank].planes) << "by the host, rank " << rank;
      EXPECT_TRUE(on_streams[rank].planes == expected[rank].planes) << "on streams, rank " << rank;
      EXPECT_EQ(by_host[rank].gradient_norms, expected[rank].gradient_norms) << "rank " << rank;
      EXPECT_EQ(on_streams[rank].gradient_norms, expected[rank].gradient_norms) << "rank " << rank;
    }
  }
};

// --- Without a GPU

TEST_F(CudaClientTest, WhereTheDaemonHasHostMemoryThereIsNoWorkForStreams) {
  StartDaemon("cpu", 1);
  RunTrainers(1, TwoUnits(Format::kMXFP8), [](int, Model& model) -> absl::Status {
    const auto is_refused = StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("want a session with a GPU"));
    EXPECT_EQ(model.gpu(), -1);
    EXPECT_THAT(cuda::Gradients(model, "a", nullptr), is_refused);
    ASSIGN_OR_RETURN(GatheredUnit unit, model.Gather("a", Phase::kForward));
    EXPECT_THAT(cuda::WaitOn(unit, nullptr), is_refused);
    RETURN_IF_ERROR(unit.Wait());
    ASSIGN_OR_RETURN(const Matrix matrix, unit.Get("a.w"));
    EXPECT_EQ(matrix.gpu, -1);
    EXPECT_THAT(cuda::Decode(matrix, cuda::DecodedType::kFP32, nullptr, nullptr),
                StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("host memory")));
    EXPECT_THAT(cuda::Transpose(matrix, nullptr, nullptr), StatusIs(absl::StatusCode::kFailedPrecondition));
    EXPECT_THAT(cuda::CopyScales(matrix, ScaleLayout::kSwizzled128x4, nullptr, nullptr),
                StatusIs(absl::StatusCode::kFailedPrecondition));
    EXPECT_THAT(cuda::Release(unit, nullptr), is_refused);
    EXPECT_THAT(cuda::Release(unit, nullptr),
                StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("already released")));
    EXPECT_THAT(cuda::WaitOn(unit, nullptr),
                StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("already released")));
    return absl::OkStatus();
  });
}

// --- The same bits

class SameBitsTest : public CudaClientTest, public testing::WithParamInterface<std::tuple<Format, int>> {};

TEST_P(SameBitsTest, ATrainingOnGpusSeesWhatOneInHostMemorySees) {
  const auto [format, ranks] = GetParam();
  SKIP_WITHOUT_GPUS(ranks);
  ExpectSameBits(ranks, TwoUnits(format));
}

std::string NameOf(const testing::TestParamInfo<std::tuple<Format, int>>& info) {
  return absl::StrCat(FormatName(std::get<0>(info.param)), "On", std::get<1>(info.param));
}

INSTANTIATE_TEST_SUITE_P(All, SameBitsTest,
                         testing::Combine(testing::Values(Format::kMXFP8, Format::kFP8Block128x128, Format::kBF16,
                                                          Format::kFP32),
                                          testing::Values(1, 2, 4)),
                         NameOf);
INSTANTIATE_TEST_SUITE_P(OnTwo, SameBitsTest,
                         testing::Combine(testing::Values(Format::kFP16, Format::kFP8TensorCurrent,
                                                          Format::kFP8TensorDelayed, Format::kMXFP8_2D,
                                                          Format::kNVFP4_2D),
                                          testing::Values(2)),
                         NameOf);

// Matrices that have owners, at both times of sums.
class SameBitsOfOwnersTest : public CudaClientTest,
                             public testing::WithParamInterface<std::tuple<Format, int, GradientSums>> {};

TEST_P(SameBitsOfOwnersTest, ATrainingOnGpusSeesWhatOneInHostMemorySees) {
  const auto [format, ranks, sums] = GetParam();
  SKIP_WITHOUT_GPUS(ranks);
  ModelSpec spec = TwoUnits(format);
  spec.gradient_sums = sums;
  ParameterSpec& experts = spec.units[0].parameters[0];
  experts.shape.insert(experts.shape.begin(), 4);
  experts.shape[1] /= 4;
  experts.placement = Placement::kOwned;
  ExpectSameBits(ranks, spec);
}

INSTANTIATE_TEST_SUITE_P(
    All, SameBitsOfOwnersTest,
    testing::Combine(testing::Values(Format::kMXFP8, Format::kFP8TensorCurrent, Format::kNVFP4_2D, Format::kBF16),
                     testing::Values(1, 2, 4), testing::Values(GradientSums::kAtCommit, GradientSums::kAtPush)));

// Gradients of both types, masters of both types, and moments with scales and without.
class SameBitsOfBF16SumsTest : public CudaClientTest,
                               public testing::WithParamInterface<std::tuple<GradientSums, int>> {};

TEST_P(SameBitsOfBF16SumsTest, ATrainingOnGpusSeesWhatOneInHostMemorySees) {
  const auto [sums, ranks] = GetParam();
  SKIP_WITHOUT_GPUS(ranks);
  ModelSpec spec = TwoUnits(Format::kBF16);
  spec.accumulator_type = GradientType::kBF16;
  spec.gradient_sums = sums;
  ParameterSpec& weight = spec.units[0].parameters[0];
  weight.master_type = MasterType::kBF16Remainder;
  weight.exp_avg_type = weight.exp_avg_sq_type = MomentType::kFP8;
  ExpectSameBits(ranks, spec);
}

INSTANTIATE_TEST_SUITE_P(AtCommitAndAtPush, SameBitsOfBF16SumsTest,
                         testing::Combine(testing::Values(GradientSums::kAtCommit, GradientSums::kAtPush),
                                          testing::Values(1, 2, 4)));

// Gradients of both types, which one rank keeps as they were pushed.
class SameBitsOfOnePushTest : public CudaClientTest, public testing::WithParamInterface<int> {};

TEST_P(SameBitsOfOnePushTest, ATrainingOnGpusSeesWhatOneInHostMemorySees) {
  SKIP_WITHOUT_GPUS(GetParam());
  ModelSpec spec = TwoUnits(Format::kFP8Block128x128);
  spec.pushes_per_step = 1;
  ExpectSameBits(GetParam(), spec);
}

INSTANTIATE_TEST_SUITE_P(, SameBitsOfOnePushTest, testing::Values(1, 2, 4));

TEST_F(CudaClientTest, ScalesAsProductsReadThemAreThoseOfTheHost) {
  SKIP_WITHOUT_GPUS(1);
  StartDaemon("cuda", 1);
  RunTrainers(1, TwoUnits(Format::kMXFP8), [](int, Model& model) -> absl::Status {
    ASSIGN_OR_RETURN(gpu::DeviceMemory out, DeviceFloats(model.gpu(), int64_t{480} * 352));
    ASSIGN_OR_RETURN(const gpu::Stream stream, gpu::Stream::Create(model.gpu()));
    ASSIGN_OR_RETURN(GatheredUnit unit, model.Gather("a", Phase::kBackward));
    RETURN_IF_ERROR(cuda::WaitOn(unit, stream.get()));
    ASSIGN_OR_RETURN(const Matrix matrix, unit.Get("a.w"));
    EXPECT_THAT(cuda::CopyScales(matrix, static_cast<ScaleLayout>(9), out.data(), stream.get()),
                StatusIs(absl::StatusCode::kInvalidArgument));
    for (ScaleLayout layout : {ScaleLayout::kCompact, ScaleLayout::kPadded128x4, ScaleLayout::kSwizzled128x4}) {
      ASSIGN_OR_RETURN(const int64_t bytes, matrix.ScaleLayoutBytes(layout));
      RETURN_IF_ERROR(cuda::CopyScales(matrix, layout, out.data(), stream.get()));
      RETURN_IF_ERROR(unit.Wait());
      std::vector<uint8_t> expected(bytes), scales(bytes);
      RETURN_IF_ERROR(matrix.CopyScales(layout, absl::MakeSpan(expected)));
      RETURN_IF_ERROR(
          gpu::ToStatus(cudaMemcpy(scales.data(), out.data(), bytes, cudaMemcpyDeviceToHost), "read scales"));
      EXPECT_EQ(scales, expected) << "layout " << static_cast<int>(layout);
    }
    return absl::OkStatus();
  });
}

TEST_F(CudaClientTest, AUnitThatAStreamWaitsForAloneHasNoOtherStreams) {
  SKIP_WITHOUT_GPUS(1);
  StartDaemon("cuda", 1);
  RunTrainers(1, TwoUnits(Format::kMXFP8), [](int, Model& model) -> absl::Status {
    ASSIGN_OR_RETURN(const gpu::Stream stream, gpu::Stream::Create(model.gpu()));
    ASSIGN_OR_RETURN(const gpu::Stream other, gpu::Stream::Create(model.gpu()));
    ASSIGN_OR_RETURN(GatheredUnit unit, model.Gather("a", Phase::kForward));
    RETURN_IF_ERROR(cuda::WaitAloneOn(unit, stream.get()));
    EXPECT_THAT(cuda::WaitOn(unit, other.get()), StatusIs(absl::StatusCode::kFailedPrecondition));
    RETURN_IF_ERROR(cuda::WaitOn(unit, stream.get()));
    return unit.Wait();
  });
}

TEST_F(CudaClientTest, TransposedDataIsThatOfTheHost) {
  SKIP_WITHOUT_GPUS(1);
  StartDaemon("cuda", 1);
  RunTrainers(1, TwoUnits(Format::kMXFP8), [](int, Model& model) -> absl::Status {
    ASSIGN_OR_RETURN(gpu::DeviceMemory out, DeviceFloats(model.gpu(), int64_t{480} * 352));
    ASSIGN_OR_RETURN(const gpu::Stream stream, gpu::Stream::Create(model.gpu()));
    ASSIGN_OR_RETURN(GatheredUnit unit, model.Gather("a", Phase::kForward));
    RETURN_IF_ERROR(cuda::WaitOn(unit, stream.get()));
    ASSIGN_OR_RETURN(const Matrix matrix, unit.Get("a.w"));
    ASSIGN_OR_RETURN(const Matrix bias, unit.Get("a.bias"));
    EXPECT_THAT(cuda::Transpose(bias, out.data(), stream.get()), StatusIs(absl::StatusCode::kUnimplemented));
    RETURN_IF_ERROR(cuda::Transpose(matrix, out.data(), stream.get()));
    RETURN_IF_ERROR(unit.Wait());
    std::vector<uint8_t> data(matrix.data.size()), transposed(matrix.data.size());
    RETURN_IF_ERROR(gpu::ToStatus(cudaMemcpy(data.data(), matrix.data.data(), data.size(), cudaMemcpyDeviceToHost),
                                  "read a plane"));
    RETURN_IF_ERROR(
        gpu::ToStatus(cudaMemcpy(transposed.data(), out.data(), data.size(), cudaMemcpyDeviceToHost), "read a plane"));
    int64_t different = 0;
    for (int64_t row = 0; row < matrix.rows; ++row) {
      for (int64_t column = 0; column < matrix.columns; ++column) {
        if (transposed[column * matrix.rows + row] != data[row * matrix.columns + column]) ++different;
      }
    }
    EXPECT_EQ(different, 0);
    return absl::OkStatus();
  });
}

// Both operands of a weight, in memory that is one element wider than their scales.
TEST_F(CudaClientTest, OperandsAreThoseOfThePlane) {
  SKIP_WITHOUT_GPUS(1);
  StartDaemon("cuda", 1);
  for (const Format format : {Format::kFP8Block128x128, Format::kFP8TensorCurrent}) {
    SCOPED_TRACE(FormatName(format));
    ModelSpec spec = TwoUnits(format);
    spec.name = std::string(FormatName(format));
    RunTrainers(1, spec, [&](int, Model& model) -> absl::Status {
      ASSIGN_OR_RETURN(const gpu::Stream stream, gpu::Stream::Create(model.gpu()));
      ASSIGN_OR_RETURN(GatheredUnit unit, model.Gather("a", Phase::kForward));
      RETURN_IF_ERROR(cuda::WaitOn(unit, stream.get()));
      ASSIGN_OR_RETURN(const Matrix matrix, unit.Get("a.w"));
      ASSIGN_OR_RETURN(const Matrix bias, unit.Get("a.bias"));
      EXPECT_THAT(cuda::CopyOperands({{.matrix = bias}}, stream.get()), StatusIs(absl::StatusCode::kUnimplemented));
      const int64_t rows = (matrix.rows + 127) / 128;
      const int64_t cols = (matrix.columns + 127) / 128;
      const int64_t bytes = matrix.rows * matrix.columns;
      const int64_t scales = rows * (cols + 1) + cols * (rows + 1);
      ASSIGN_OR_RETURN(gpu::DeviceMemory data, DeviceFloats(model.gpu(), bytes));
      ASSIGN_OR_RETURN(gpu::DeviceMemory scale_memory, DeviceFloats(model.gpu(), scales));
      auto* const floats = reinterpret_cast<float*>(scale_memory.data());
      RETURN_IF_ERROR(cuda::CopyOperands({{matrix, false, data.data(), floats, cols + 1},
                                          {matrix, true, data.data() + bytes, floats + rows * (cols + 1), rows + 1}},
                                         stream.get()));
      RETURN_IF_ERROR(stream.Synchronize());
      RETURN_IF_ERROR(unit.Wait());
      const auto read = [](const void* source, int64_t count, auto value) {
        std::vector<decltype(value)> values(count);
        EXPECT_EQ(cudaMemcpy(values.data(), source, count * sizeof(value), cudaMemcpyDeviceToHost), cudaSuccess);
        return values;
      };
      const std::vector<uint8_t> plane = read(matrix.data.data(), bytes, uint8_t{});
      const std::vector<float> compact = read(matrix.scales.data(), matrix.scales.size() / 4, 0.0f);
      const std::vector<uint8_t> copied = read(data.data(), 2 * bytes, uint8_t{});
      const std::vector<float> spread = read(floats, scales, 0.0f);
      int64_t different = 0;
      for (int64_t row = 0; row < matrix.rows; ++row) {
        for (int64_t col = 0; col < matrix.columns; ++col) {
          const uint8_t code = plane[row * matrix.columns + col];
          different += copied[row * matrix.columns + col] != code;
          different += copied[bytes + col * matrix.rows + row] != code;
        }
      }
      EXPECT_EQ(different, 0);
      for (int64_t row = 0; row < rows; ++row) {
        for (int64_t col = 0; col < cols; ++col) {
          const float scale = compact[compact.size() == 1 ? 0 : row * cols + col];
          EXPECT_EQ(spread[row * (cols + 1) + col], scale) << row << ", " << col;
          EXPECT_EQ(spread[rows * (cols + 1) + col * (rows + 1) + row], scale) << row << ", " << col;
        }
      }
      return absl::OkStatus();
    });
  }
}

// --- Order between streams

// Every rank's stream holds the only slot; the next unit may come only when all have let go.
TEST_F(CudaClientTest, ASlotThatIsReleasedLateIsNotOverwritten) {
  SKIP_WITHOUT_GPUS(1);
  const int ranks = std::min(GpuCount(), 2);
  StartDaemon("cuda", ranks);
  ModelSpec spec = TwoUnits(Format::kMXFP8);
  spec.gather_slots = 1;
  RunTrainers(ranks, spec, [](int, Model& model) -> absl::Status {
    std::vector<float> expected[2], seen[2];
    ASSIGN_OR_RETURN(gpu::DeviceMemory decoded, DeviceFloats(model.gpu(), int64_t{2} * 480 * 352));
    Gate gate;
    ASSIGN_OR_RETURN(const gpu::Stream first, gpu::Stream::Create(model.gpu()));
    ASSIGN_OR_RETURN(const gpu::Stream second, gpu::Stream::Create(model.gpu()));
    for (int i : {0, 1}) {
      const std::string name = i == 0 ? "a" : "b";
      ASSIGN_OR_RETURN(GatheredUnit unit, model.Gather(name, Phase::kForward));
      RETURN_IF_ERROR(unit.Wait());
      ASSIGN_OR_RETURN(const Matrix matrix, unit.Get(name + ".w"));
      expected[i].resize(matrix.rows * matrix.columns);
      RETURN_IF_ERROR(matrix.Decode(expected[i].data()));
    }
    const auto read = [&](int i, const gpu::Stream& stream, bool late) -> absl::Status {
      const std::string name = i == 0 ? "a" : "b";
      ASSIGN_OR_RETURN(GatheredUnit unit, model.Gather(name, Phase::kForward));
      RETURN_IF_ERROR(cuda::WaitOn(unit, stream.get()));
      if (late) RETURN_IF_ERROR(gate.Await(stream.get()));
      ASSIGN_OR_RETURN(const Matrix matrix, unit.Get(name + ".w"));
      RETURN_IF_ERROR(cuda::Decode(matrix, cuda::DecodedType::kFP32,
                                   reinterpret_cast<float*>(decoded.data()) + i * int64_t{480} * 352, stream.get()));
      return cuda::Release(unit, stream.get());
    };
    RETURN_IF_ERROR(read(0, first, true));
    RETURN_IF_ERROR(read(1, second, false));
    absl::SleepFor(kMoment);
    EXPECT_EQ(cudaStreamQuery(second.get()), cudaErrorNotReady);
    gate.Open();
    RETURN_IF_ERROR(first.Synchronize());
    RETURN_IF_ERROR(second.Synchronize());
    for (int i : {0, 1}) {
      seen[i].resize(expected[i].size());
      RETURN_IF_ERROR(gpu::ToStatus(cudaMemcpy(seen[i].data(), decoded.data() + i * int64_t{480} * 352 * 4,
                                               seen[i].size() * 4, cudaMemcpyDeviceToHost),
                                    "read what was decoded"));
      EXPECT_TRUE(seen[i] == expected[i]) << "unit " << i;
    }
    ASSIGN_OR_RETURN(PendingCommit last, model.Commit({.learning_rate = 0.0f}));
    return last.Wait().status();
  });
}

// How a trainer writes its gradients into memory of the GPU.
enum class WrittenBy : uint8_t {
  kHostCopy,       // cudaMemcpy from pageable memory, whose end may come after its return
  kDefaultStream,  // enqueued on the default stream, and pushed at once
  kOwnStream,      // by a stream that does not wait for the default one, and is synchronized before the push
};

class ReadyMemoryTest : public CudaClientTest, public testing::WithParamInterface<WrittenBy> {
 protected:
  static constexpr int64_t kElements = int64_t{1024} * 1024;
  static constexpr int kRounds = 100;

  // A model of one matrix whose first moments are the gradients themselves, where beta1 is 0.
  static ModelSpec OneMatrix() {
    ParameterSpec weight = {.name = "a.w", .shape = {1024, 1024}};
    weight.encoding.format = Format::kFP32;
    return {.name = "one", .units = {{.name = "a", .parameters = {weight}}}};
  }

  static std::vector<float> Values(int round) {
    std::vector<float> values(kElements);
    for (int64_t i = 0; i < kElements; ++i) values[i] = static_cast<float>(1 + (i * 7 + round) % 1021);
    return values;
  }

  static absl::Status Write(const GradientView& view, const std::vector<float>& values, const gpu::DeviceMemory& upload,
                            cudaStream_t own) {
    const size_t bytes = values.size() * sizeof(float);
    switch (GetParam()) {
      case WrittenBy::kHostCopy:
        return gpu::ToStatus(cudaMemcpy(view.data.data(), values.data(), bytes, cudaMemcpyHostToDevice), "write");
      case WrittenBy::kDefaultStream:
        return gpu::ToStatus(cudaMemcpyAsync(view.data.data(), upload.data(), bytes, cudaMemcpyDeviceToDevice, nullptr),
                             "write");
      case WrittenBy::kOwnStream:
        RETURN_IF_ERROR(gpu::ToStatus(
            cudaMemcpyAsync(view.data.data(), upload.data(), bytes, cudaMemcpyDeviceToDevice, own), "write"));
        return gpu::ToStatus(cudaStreamSynchronize(own), "write");
    }
    return absl::InternalError("an unknown way to write");
  }

  // Elements of the first moments that are not `expected`.
  static absl::StatusOr<int64_t> CountWrong(Client& client, const std::vector<float>& expected) {
    int64_t wrong = 0;
    RETURN_IF_ERROR(client
                        .Export("one", {.kinds = {TensorKind::kExpAvg}},
                                [&](const ExportedExtent& extent) {
                                  const float* const rows = expected.data() + extent.first_row * 1024;
                                  for (size_t i = 0; i < extent.values.size(); ++i)
                                    wrong += extent.values[i] != rows[i] ? 1 : 0;
                                  return absl::OkStatus();
                                })
                        .status());
    return wrong;
  }

  // One step. With `held` a slot is written and given back before, by the same way.
  static absl::Status Step(Model& model, const std::vector<float>& values, const gpu::DeviceMemory& upload,
                           cudaStream_t own, bool held) {
    if (held) {
      ASSIGN_OR_RETURN(UnitGradients dropped, model.Gradients("a"));
      ASSIGN_OR_RETURN(const GradientView view, dropped.Get("a.w"));
      RETURN_IF_ERROR(Write(view, values, upload, own));
    }
    ASSIGN_OR_RETURN(UnitGradients gradients, model.Gradients("a"));
    ASSIGN_OR_RETURN(const GradientView view, gradients.Get("a.w"));
    RETURN_IF_ERROR(Write(view, values, upload, own));
    RETURN_IF_ERROR(gradients.Push());
    ASSIGN_OR_RETURN(PendingCommit commit, model.Commit({.learning_rate = 0.0f, .beta1 = 0.0f}));
    return commit.Wait().status();
  }
};

TEST_P(ReadyMemoryTest, WhatIsWrittenAtOnceIsWhatIsPushed) {
  SKIP_WITHOUT_GPUS(1);
  StartDaemon("cuda", 1);
  ASSERT_OK_AND_ASSIGN(Client client, Connect(0));
  ASSERT_OK_AND_ASSIGN(Model model, client.OpenModel(OneMatrix()));
  cudaSetDevice(model.gpu());
  ASSERT_OK_AND_ASSIGN(const gpu::DeviceMemory upload, DeviceFloats(model.gpu(), kElements));
  ASSERT_OK_AND_ASSIGN(const gpu::Stream own, gpu::Stream::Create(model.gpu()));
  int64_t wrong = 0;
  for (int round = 0; round < kRounds; ++round) {
    const std::vector<float> values = Values(round);
    ASSERT_EQ(cudaMemcpy(upload.data(), values.data(), kElements * sizeof(float), cudaMemcpyHostToDevice), cudaSuccess);
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    ASSERT_OK(Step(model, values, upload, own.get(), /*held=*/round % 2 == 1));
    ASSERT_OK_AND_ASSIGN(const int64_t wrong_now, CountWrong(client, values));
    wrong += wrong_now;
  }
  EXPECT_EQ(wrong, 0) << "of " << kRounds * kElements;
}

INSTANTIATE_TEST_SUITE_P(By, ReadyMemoryTest,
                         testing::Values(WrittenBy::kHostCopy, WrittenBy::kDefaultStream, WrittenBy::kOwnStream),
                         [](const auto& info) {
                           switch (info.param) {
                             case WrittenBy::kHostCopy:
                               return "HostCopy";
                             case WrittenBy::kDefaultStream:
                               return "DefaultStream";
                             case WrittenBy::kOwnStream:
                               return "OwnStream";
                           }
                           return "Unknown";
                         });

// A unit whose slot the host released while the default stream still reads it keeps its bytes until that has.
TEST_F(CudaClientTest, AUnitThatTheDefaultStreamStillReadsIsNotOverwritten) {
  SKIP_WITHOUT_GPUS(1);
  const int ranks = std::min(GpuCount(), 2);
  StartDaemon("cuda", ranks);
  ModelSpec spec = TwoUnits(Format::kFP32);
  spec.gather_slots = 1;
  RunTrainers(ranks, spec, [](int, Model& model) -> absl::Status {
    constexpr int64_t kValues = int64_t{480} * 352;
    ASSIGN_OR_RETURN(gpu::DeviceMemory seen, DeviceFloats(model.gpu(), kValues));
    std::vector<float> expected(kValues), read(kValues);
    for (int round = 0; round < 20; ++round) {
      {
        ASSIGN_OR_RETURN(GatheredUnit unit, model.Gather("a", Phase::kForward));
        RETURN_IF_ERROR(unit.Wait());
        ASSIGN_OR_RETURN(const Matrix matrix, unit.Get("a.w"));
        RETURN_IF_ERROR(matrix.Decode(expected.data()));
        Gate gate;
        RETURN_IF_ERROR(gate.Await(nullptr));
        RETURN_IF_ERROR(gpu::ToStatus(
            cudaMemcpyAsync(seen.data(), matrix.data.data(), matrix.data.size(), cudaMemcpyDeviceToDevice, nullptr),
            "read"));
        unit.Release();
        ASSIGN_OR_RETURN(GatheredUnit next, model.Gather("b", Phase::kForward));
        absl::SleepFor(absl::Milliseconds(2));
        gate.Open();
        RETURN_IF_ERROR(next.Wait());
      }
      RETURN_IF_ERROR(
          gpu::ToStatus(cudaMemcpy(read.data(), seen.data(), kValues * sizeof(float), cudaMemcpyDeviceToHost), "read"));
      EXPECT_TRUE(read == expected) << "round " << round;
      ASSIGN_OR_RETURN(PendingCommit commit, model.Commit({}));
      RETURN_IF_ERROR(commit.Wait().status());
    }
    return absl::OkStatus();
  });
}

// --- The end

TEST_F(CudaClientTest, AStreamThatWaitsForARankThatLeftGoesOn) {
  SKIP_WITHOUT_GPUS(2);
  StartDaemon("cuda", 2);
  const ModelSpec spec = TwoUnits(Format::kMXFP8);
  std::thread leaver([&] {
    absl::StatusOr<Client> client = Connect(1);
    ASSERT_OK(client.status());
    absl::StatusOr<Model> model = client->OpenModel(spec);
    ASSERT_OK(model.status());
    absl::SleepFor(kMoment);
    EXPECT_OK(model->Detach());
  });
  ASSERT_OK_AND_ASSIGN(Client client, Connect(0));
  ASSERT_OK_AND_ASSIGN(Model model, client.OpenModel(spec));
  ASSERT_OK_AND_ASSIGN(const gpu::Stream stream, gpu::Stream::Create(model.gpu()));
  // The other rank never commits: a gather alone would not wait for it.
  ASSERT_OK_AND_ASSIGN(PendingCommit commit, model.Commit({}));
  ASSERT_OK_AND_ASSIGN(GatheredUnit unit, model.Gather("a", Phase::kForward));
  ASSERT_OK(cuda::WaitOn(unit, stream.get()));
  EXPECT_OK(stream.Synchronize());
  EXPECT_THAT(model.status(), StatusIs(absl::StatusCode::kAborted, HasSubstr("rank 1")));
  EXPECT_THAT(commit.Wait(), StatusIs(absl::StatusCode::kAborted));
  EXPECT_THAT(cuda::WaitOn(unit, stream.get()), StatusIs(absl::StatusCode::kAborted));
  leaver.join();
}

TEST_F(CudaClientTest, AStreamThatWaitsForADeadDaemonGoesOnAndItsTrainerAttachesToAnother) {
  SKIP_WITHOUT_GPUS(1);
  StartDaemon("cuda", 1);
  const ModelSpec spec = TwoUnits(Format::kMXFP8);
  {
    ASSERT_OK_AND_ASSIGN(Client client, Connect(0));
    ASSERT_OK_AND_ASSIGN(Model model, client.OpenModel(spec));
    Gate gate;
    ASSERT_OK_AND_ASSIGN(const gpu::Stream late, gpu::Stream::Create(model.gpu()));
    ASSERT_OK_AND_ASSIGN(const gpu::Stream waiting, gpu::Stream::Create(model.gpu()));
    // Both slots are pushed, but never filled: the third waits for the first to drain.
    ASSERT_OK(gate.Await(late.get()));
    for (int i = 0; i < spec.gradient_slots; ++i) {
      ASSERT_OK_AND_ASSIGN(UnitGradients gradients, cuda::Gradients(model, "a", late.get()));
      ASSERT_OK(cuda::Push(gradients, late.get()));
    }
    ASSERT_OK_AND_ASSIGN(const UnitGradients gradients, cuda::Gradients(model, "a", waiting.get()));
    absl::SleepFor(kMoment);
    EXPECT_EQ(cudaStreamQuery(waiting.get()), cudaErrorNotReady);
    daemon_->Signal(SIGKILL);
    EXPECT_OK(waiting.Synchronize());
    EXPECT_THAT(model.status(), StatusIs(absl::StatusCode::kUnavailable, HasSubstr("has died")));
    gate.Open();
    EXPECT_OK(late.Synchronize());
  }
  StartDaemon("cuda", 1);
  RunTrainers(1, spec, [](int, Model& model) { return TrainOnStreams(model).status(); });
}

}  // namespace
}  // namespace paramshard
