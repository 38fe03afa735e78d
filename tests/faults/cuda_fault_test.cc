// GPUs that break under the daemon, trainers that die with work on their GPU's streams, and a daemon that dies while
// streams wait for it. Afterwards the state equals an uninterrupted run's, and surviving processes have a working
// context.

#include <cuda_runtime.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/cuda.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/base/status_macros.h"
#include "kernels/gpu/faults.h"
#include "kernels/gpu/memory.h"
#include "kernels/gpu/status.h"
#include "kernels/gpu/stream.h"
#include "kernels/gpu/word_operations.h"
#include "kernels/optim/fused_step_cuda.h"
#include "nlohmann/json.hpp"
#include "server/process/daemon.h"
#include "tests/faults/bad_access.h"
#include "tests/faults/training.h"
#include "tests/support/child_process.h"
#include "tests/support/daemon_process.h"
#include "tests/support/environment.h"
#include "tests/support/status_matchers.h"

namespace paramshard::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

constexpr int64_t kFaultStep = 3;
// Numbers of a trainer's board.
enum BoardNumber { kWaiting, kGrandchild, kServing, kBreakNow, kBroken, kStep };

// This process must not open a GPU: its children do.
int GpuCount() {
  const auto count = OutputOf("nvidia-smi --list-gpus 2>/dev/null | wc -l");
  return count.ok() ? std::atoi(count->c_str()) : 0;
}

class CudaFaultTest : public testing::Test {
 protected:
  void SetUp() override {
    if (GpuCount() < 2) GTEST_SKIP() << "needs two GPUs, got " << GpuCount();
    absl::StatusOr<DaemonProcess> daemon =
        DaemonProcess::Start(Program(PARAMSHARDD), directory_.path(), {"--device=cuda:0,cuda:1"});
    ASSERT_OK(daemon.status());
    daemon_.emplace(*std::move(daemon));
  }

  Training TrainingOf(const std::string& model, int rank) const {
    return {.socket_dir = directory_.path(), .model = model, .rank = rank};
  }

  ChildProcess Start(const Training& training) const {
    return ChildProcess::Run([training](Board&) { return Train(training); });
  }

  std::string StateHash(const std::string& model) const {
    const auto output =
        OutputOf(absl::StrCat(Program(PARAMSHARDCTL), " --socket-dir=", directory_.path(), " -o json verify ", model));
    EXPECT_OK(output.status());
    if (!output.ok()) return "";
    const nlohmann::json verified = nlohmann::json::parse(*output);
    EXPECT_EQ(verified["summary"]["mismatchCount"], "0") << verified.dump(2);
    return verified["summary"]["stateHash"];
  }

  std::string UninterruptedHash() const {
    ChildProcess first = Start(TrainingOf("uninterrupted", 0));
    ChildProcess second = Start(TrainingOf("uninterrupted", 1));
    EXPECT_OK(first.Await());
    EXPECT_OK(second.Await());
    return StateHash("uninterrupted");
  }

  // A trainer of rank 1 that trains until the fault step and then calls `fault` with its model.
  ChildProcess StartVictim(const std::function<absl::Status(Model&, Board&)>& fault) const {
    return ChildProcess::Run([this, fault](Board& board) -> absl::Status {
      Training training = TrainingOf("interrupted", 1);
      training.commits = kFaultStep - 1;
      RETURN_IF_ERROR(Train(training));
      ASSIGN_OR_RETURN(Client client, Client::Connect({.rank = 1, .socket_dir = directory_.path()}));
      ASSIGN_OR_RETURN(Model model, client.OpenModel(SmallModel("interrupted")));
      return fault(model, board);
    });
  }

  // Rank 0 trains through; rank 1 dies as `fault` says and is replaced.
  void ExpectNoTrace(const std::function<absl::Status(Model&, Board&)>& fault) {
    const std::string expected = UninterruptedHash();
    ChildProcess survivor = Start(TrainingOf("interrupted", 0));
    ChildProcess victim = StartVictim(fault);
    EXPECT_THAT(victim.Await(), Not(IsOk()));
    ChildProcess replacement = Start(TrainingOf("interrupted", 1));
    EXPECT_OK(replacement.Await());
    EXPECT_OK(survivor.Await());
    EXPECT_EQ(StateHash("interrupted"), expected);
    const auto grandchild = static_cast<pid_t>(victim.board().numbers[kGrandchild].load());
    if (grandchild != 0) kill(grandchild, SIGKILL);
  }

  TemporaryDirectory directory_;
  std::optional<DaemonProcess> daemon_;
};

// --- Devices of the daemon that break

// A daemon in a process of its own that breaks its own GPU when the board says so.
absl::Status ServeAndBreak(const std::string& socket_dir, const std::function<absl::Status(Board&)>& break_gpu,
                           Board& board) {
  server::DaemonConfig config;
  config.devices = {"cuda:0"};
  config.socket_dir = socket_dir;
  ASSIGN_OR_RETURN(const auto daemon, server::Daemon::Start(config));
  Reach(board, kServing, 1);
  while (board.numbers[kBreakNow] == 0) usleep(1000);
  const absl::Status fault = break_gpu(board);
  Reach(board, kBroken, 1);
  while (true) pause();
  return fault;
}

// Needs one GPU, and starts no daemon of its own accord.
class BrokenGpuTest : public testing::Test {
 protected:
  void SetUp() override {
    if (GpuCount() < 1) GTEST_SKIP() << "needs a GPU";
  }

  std::string Ctl(const std::string& arguments) const {
    const auto output =
        OutputOf(absl::StrCat(Program(PARAMSHARDCTL), " --socket-dir=", directory_.path(), " ", arguments));
    EXPECT_OK(output.status());
    return output.value_or("");
  }

  ChildProcess Open(const std::string& model) const {
    return ChildProcess::Run([this, model](Board&) -> absl::Status {
      ASSIGN_OR_RETURN(Client client, Client::Connect({.rank = 0, .socket_dir = directory_.path()}));
      return client.OpenModel(SmallModel(model)).status();
    });
  }

  // Breaks the GPU and checks that the attached trainer and later trainers are told, and that inspection goes on.
  void ExpectAllIsToldAfter(const std::function<absl::Status(Board&)>& break_gpu, const std::string& what) {
    ChildProcess daemon =
        ChildProcess::Run([&](Board& board) { return ServeAndBreak(directory_.path(), break_gpu, board); });
    ASSERT_TRUE(daemon.AwaitNumber(kServing, 1));
    ChildProcess trainer = ChildProcess::Run([&](Board& board) -> absl::Status {
      Training training{.socket_dir = directory_.path(), .model = "interrupted", .rank = 0};
      training.resume = false;
      training.commits = 1000000;
      training.at = [&](Point point, int64_t commit) {
        if (point == Point::kCommitted) Reach(board, kStep, static_cast<uint32_t>(commit));
      };
      return Train(training);
    });
    ASSERT_TRUE(trainer.AwaitNumber(kStep, 3));
    Reach(daemon.board(), kBreakNow, 1);
    ASSERT_TRUE(daemon.AwaitNumber(kBroken, 1));
    const auto is_told = StatusIs(absl::StatusCode::kInternal,
                                  AllOf(HasSubstr("cuda:0 is broken"), HasSubstr(what), HasSubstr("restart")));
    EXPECT_THAT(trainer.Await(), is_told);
    EXPECT_THAT(Open("interrupted").Await(), is_told);
    EXPECT_THAT(Open("another").Await(), is_told);
    for (const char* command : {"version", "memory", "shards interrupted"}) {
      EXPECT_THAT(Ctl(command), HasSubstr("BROKEN cuda:0: ")) << command;
    }
  }

  TemporaryDirectory directory_;
};

TEST_F(BrokenGpuTest, AnIllegalAddressInTheDaemonIsRemembered) {
  ExpectAllIsToldAfter(
      [](Board&) -> absl::Status {
        ASSIGN_OR_RETURN(const gpu::Stream stream, gpu::Stream::Create(0));
        RETURN_IF_ERROR(WriteToNowhere(stream.get()));
        return stream.Synchronize();
      },
      "cudaErrorIllegalAddress");
}

TEST_F(BrokenGpuTest, AStreamThatIsNotDoneInTimeBreaksItsGpu) {
  ExpectAllIsToldAfter(
      [](Board&) -> absl::Status {
        ASSIGN_OR_RETURN(gpu::Stream stream, gpu::Stream::Create(0));
        // For ever: nobody writes this word.
        void* const page = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        ASSIGN_OR_RETURN(gpu::HostRegistration registration, gpu::HostRegistration::Register(page, 4096));
        gpu::WordOperations parked;
        parked.Await(page, 1);
        RETURN_IF_ERROR(parked.Enqueue(stream.get()));
        const absl::Status fault = stream.Synchronize(absl::Milliseconds(200));
        // Kept: unregistering the word would wait for the stream.
        new gpu::Stream(std::move(stream));
        new gpu::HostRegistration(std::move(registration));
        return fault;
      },
      "stream: timed out after 200ms");
}

TEST_F(BrokenGpuTest, AStepThatWaitsForAStuckGpuEndsWhenItCountsAsBroken) {
  ChildProcess stepping = ChildProcess::Run([](Board&) -> absl::Status {
    setenv("CUDA_MODULE_LOADING", "EAGER", 1);  // a kernel that is loaded later waits for the stream
    ASSIGN_OR_RETURN(gpu::Stream stream, gpu::Stream::Create(0));
    ASSIGN_OR_RETURN(gpu::DeviceMemory memory, gpu::DeviceMemory::Create(0, 4096, {0}, /*shareable=*/false));
    gpu::StepExtent extent;
    extent.state.master = reinterpret_cast<float*>(memory.data());
    extent.rows = 1;
    extent.columns = 1024;
    extent.encoding = {Format::kFP8TensorCurrent};
    ASSIGN_OR_RETURN(gpu::FusedStepPlan made, gpu::FusedStepPlan::Create(0, {extent}));
    // For ever: nobody writes this word.
    void* const page = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ASSIGN_OR_RETURN(gpu::HostRegistration registration, gpu::HostRegistration::Register(page, 4096));
    // Kept: giving any of them back would wait for the stream.
    auto& plan = *new gpu::FusedStepPlan(std::move(made));
    const auto& parked_stream = *new gpu::Stream(std::move(stream));
    new gpu::DeviceMemory(std::move(memory));
    new gpu::HostRegistration(std::move(registration));
    gpu::WordOperations parked;
    parked.Await(page, 1);
    RETURN_IF_ERROR(parked.Enqueue(parked_stream.get()));
    RETURN_IF_ERROR(plan.MeasureAmaxes(parked_stream.get()));
    gpu::ReportFault(0, "it is stuck").IgnoreError();
    return plan.Amaxes(parked_stream.get()).status();
  });
  EXPECT_THAT(stepping.Await(), StatusIs(absl::StatusCode::kInternal, HasSubstr("it is stuck")));
}

// --- Memory that a trainer cannot map

TEST_F(CudaFaultTest, ATrainerThatSeesOnlyAnotherGpuIsToldAndHarmsNobody) {
  const std::string expected = UninterruptedHash();
  ChildProcess waiting = Start(TrainingOf("interrupted", 0));
  ChildProcess astray = ChildProcess::Run([&](Board&) -> absl::Status {
    setenv("CUDA_VISIBLE_DEVICES", "0", 1);  // rank 1's is the second
    ASSIGN_OR_RETURN(Client client, Client::Connect({.rank = 1, .socket_dir = directory_.path()}));
    return client.OpenModel(SmallModel("interrupted")).status();
  });
  EXPECT_THAT(astray.Await(),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("among the GPUs of this process"), HasSubstr("CUDA_VISIBLE_DEVICES is \"0\""))));
  ChildProcess right = Start(TrainingOf("interrupted", 1));
  EXPECT_OK(right.Await());
  EXPECT_OK(waiting.Await());
  EXPECT_EQ(StateHash("interrupted"), expected);
}

TEST_F(BrokenGpuTest, DescriptorsThatAreNoGpuMemoryOfTheSizeAreRefusedAndLeaveNothing) {
  ChildProcess importer = ChildProcess::Run([](Board&) -> absl::Status {
    const wire::FileDescriptor file(memfd_create("no GPU memory", MFD_CLOEXEC));
    const int null_device = open("/dev/null", O_RDWR | O_CLOEXEC);
    constexpr int64_t kBytes = 2 << 20;
    ASSIGN_OR_RETURN(const gpu::DeviceMemory memory, gpu::DeviceMemory::Create(0, kBytes, {0}, /*shareable=*/true));
    ASSIGN_OR_RETURN(const int small, memory.Export());
    const auto free_bytes = [] {
      size_t free = 0, total = 0;
      cudaMemGetInfo(&free, &total);
      return static_cast<int64_t>(free);
    };
    int64_t before = 0;
    constexpr int kAttempts = 20;
    for (int attempt = 0; attempt < kAttempts; ++attempt) {
      for (const int fd : {-1, file.get(), null_device}) {
        if (gpu::DeviceMemory::Import(0, fd, kBytes, /*read_only=*/true).ok()) return absl::InternalError("imported");
      }
      if (gpu::DeviceMemory::Import(0, small, 64 * kBytes, /*read_only=*/true).ok()) {
        return absl::InternalError("more bytes mapped than there are");
      }
      if (attempt == 0) before = free_bytes();
    }
    close(small);
    close(null_device);
    RETURN_IF_ERROR(gpu::FaultOf(0));
    // Leaks of all attempts would add up. Other processes on this GPU take or release a little memory meanwhile.
    const int64_t kept = before - free_bytes();
    if (kept < (kAttempts - 1) * kBytes) return absl::OkStatus();
    return absl::InternalError(absl::StrCat(kept, " bytes were not given back"));
  });
  EXPECT_OK(importer.Await());
}

// --- Trainers that die

// Two seconds of writes into a gradient slot, and then the end of the process.
absl::Status DieWhileKernelsWrite(Model& model, Board&) {
  ASSIGN_OR_RETURN(const gpu::Stream stream, gpu::Stream::Create(model.gpu()));
  ASSIGN_OR_RETURN(UnitGradients gradients, cuda::Gradients(model, "first", stream.get()));
  ASSIGN_OR_RETURN(const GradientView view, gradients.Get("first.weight"));
  RETURN_IF_ERROR(KeepWriting(view.fp32().data(), view.rows * view.columns, 2.0, stream.get()));
  raise(SIGKILL);
  return absl::OkStatus();
}

TEST_F(CudaFaultTest, KernelsThatWriteGradientsOutliveTheirTrainerAndHarmNobody) {
  ExpectNoTrace(DieWhileKernelsWrite);
}

TEST_F(CudaFaultTest, AForkedChildThatKeepsTheDevicesOpenChangesNothing) {
  ExpectNoTrace([](Model& model, Board& board) {
    const auto child = syscall(SYS_fork);
    while (child == 0) pause();
    board.numbers[kGrandchild] = static_cast<uint32_t>(child);
    return DieWhileKernelsWrite(model, board);
  });
}

TEST_F(CudaFaultTest, ATrainerMayDieWhileItHoldsASlotAndItsStreamIsParked) {
  ExpectNoTrace([](Model& model, Board&) -> absl::Status {
    ASSIGN_OR_RETURN(const gpu::Stream stream, gpu::Stream::Create(model.gpu()));
    ASSIGN_OR_RETURN(GatheredUnit held, model.Gather("first", Phase::kForward));
    RETURN_IF_ERROR(cuda::WaitOn(held, stream.get()));
    // For ever: nobody writes this word.
    void* const page = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ASSIGN_OR_RETURN(const gpu::HostRegistration registration, gpu::HostRegistration::Register(page, 4096));
    gpu::WordOperations parked;
    parked.Await(page, 1);
    RETURN_IF_ERROR(parked.Enqueue(stream.get()));
    RETURN_IF_ERROR(cuda::Release(held, stream.get()));
    raise(SIGKILL);
    return absl::OkStatus();
  });
}

TEST_F(CudaFaultTest, ATrainerThatFaultsItsContextHurtsNobodyElse) {
  ExpectNoTrace([](Model& model, Board&) -> absl::Status {
    ASSIGN_OR_RETURN(const gpu::Stream stream, gpu::Stream::Create(model.gpu()));
    RETURN_IF_ERROR(WriteToNowhere(stream.get()));
    return stream.Synchronize();
  });
}

TEST_F(CudaFaultTest, StreamsThatWaitForADeadDaemonWakeAndTheirContextsWork) {
  ChildProcess idle = ChildProcess::Run([&](Board& board) -> absl::Status {
    ASSIGN_OR_RETURN(Client client, Client::Connect({.rank = 1, .socket_dir = directory_.path()}));
    ASSIGN_OR_RETURN(const Model model, client.OpenModel(SmallModel("orphans")));
    Reach(board, kWaiting, 1);
    while (model.status().ok()) usleep(1000);
    return model.status();
  });
  ChildProcess waiter = ChildProcess::Run([&](Board& board) -> absl::Status {
    ASSIGN_OR_RETURN(Client client, Client::Connect({.rank = 0, .socket_dir = directory_.path()}));
    ASSIGN_OR_RETURN(Model model, client.OpenModel(SmallModel("orphans")));
    ASSIGN_OR_RETURN(const gpu::Stream stream, gpu::Stream::Create(model.gpu()));
    ASSIGN_OR_RETURN(GatheredUnit unit, model.Gather("first", Phase::kForward));
    RETURN_IF_ERROR(cuda::WaitOn(unit, stream.get()));
    Reach(board, kWaiting, 1);
    RETURN_IF_ERROR(stream.Synchronize());
    const absl::Status end = model.status();
    if (end.ok()) return absl::InternalError("the stream went on, and the epoch has not ended");
    // The context still computes.
    ASSIGN_OR_RETURN(const Matrix weight, unit.Get("first.weight"));
    RETURN_IF_ERROR(gpu::ToStatus(cudaMemsetAsync(const_cast<uint8_t*>(weight.data.data()), 0, 1, stream.get()),
                                  "write to a slot"));
    RETURN_IF_ERROR(stream.Synchronize());
    return end;
  });
  ASSERT_TRUE(waiter.AwaitNumber(kWaiting, 1));
  ASSERT_TRUE(idle.AwaitNumber(kWaiting, 1));
  daemon_->Signal(SIGKILL);
  EXPECT_THAT(waiter.Await(), StatusIs(absl::StatusCode::kUnavailable, HasSubstr("has died")));
  EXPECT_THAT(idle.Await(), StatusIs(absl::StatusCode::kUnavailable, HasSubstr("has died")));
}

}  // namespace
}  // namespace paramshard::test
