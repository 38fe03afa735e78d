// A daemon on GPUs, and ranks that are threads of the test.
#ifndef PARAMSHARD_TESTS_CLIENT_CUDA_CUDA_CLIENT_FIXTURE_H_
#define PARAMSHARD_TESTS_CLIENT_CUDA_CUDA_CLIENT_FIXTURE_H_

#include <cuda_runtime.h>

#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/client.h"
#include "gtest/gtest.h"
#include "kernels/base/status_macros.h"
#include "tests/support/daemon_process.h"
#include "tests/support/environment.h"
#include "tests/support/status_matchers.h"

namespace paramshard {

inline int GpuCount() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) cudaGetLastError();
  return count;
}

class CudaClientFixture : public testing::Test {
 protected:
  void StartDaemon(absl::string_view kind, int devices) {
    std::vector<std::string> flags;
    for (int i = 0; i < devices; ++i) flags.push_back(absl::StrCat("--device=", kind, ":", i));
    daemon_.reset();
    directory_.emplace();
    absl::StatusOr<test::DaemonProcess> daemon =
        test::DaemonProcess::Start(test::Program(PARAMSHARDD), directory_->path(), flags);
    ASSERT_OK(daemon.status());
    daemon_.emplace(*std::move(daemon));
  }

  absl::StatusOr<Client> Connect(int rank) {
    return Client::Connect({.rank = rank, .socket_dir = directory_->path(), .attach_timeout = absl::Seconds(30)});
  }

  // Opens the model on every rank at once and runs the trainer, a thread for each.
  void RunTrainers(int ranks, const ModelSpec& spec,
                   const std::function<absl::Status(int rank, Model& model)>& trainer) {
    const auto run = [&](int rank) -> absl::Status {
      ASSIGN_OR_RETURN(Client client, Connect(rank));
      ASSIGN_OR_RETURN(Model model, client.OpenModel(spec));
      // A trainer's own calls go to its GPU.
      if (model.gpu() >= 0) cudaSetDevice(model.gpu());
      return trainer(rank, model);
    };
    std::vector<std::thread> threads;
    std::vector<absl::Status> statuses(ranks);
    for (int rank = 0; rank < ranks; ++rank) threads.emplace_back([&, rank] { statuses[rank] = run(rank); });
    for (std::thread& thread : threads) thread.join();
    for (int rank = 0; rank < ranks; ++rank) EXPECT_OK(statuses[rank]) << "rank " << rank;
  }

  std::optional<test::TemporaryDirectory> directory_;
  std::optional<test::DaemonProcess> daemon_;
};

}  // namespace paramshard

#define SKIP_WITHOUT_GPUS(count) \
  if (GpuCount() < (count)) GTEST_SKIP() << (count) << " GPUs are needed, got " << GpuCount()

#endif  // PARAMSHARD_TESTS_CLIENT_CUDA_CUDA_CLIENT_FIXTURE_H_
