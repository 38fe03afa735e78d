// NCCL, loaded when it is first needed: a program that links it does not start without it.
#ifndef PARAMSHARD_KERNELS_GPU_NCCL_H_
#define PARAMSHARD_KERNELS_GPU_NCCL_H_

#include <cuda_runtime.h>
#include <nccl.h>

#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace paramshard::gpu {

// Puts what NCCL, and CUDA beside it, should read into the environment, but for what is set there. Load() does it too;
// a program with threads calls this before it has any that read the environment, and before it uses CUDA.
void SetNcclEnvironment();

struct Nccl {
  // The library at `path`; empty: libnccl.so.2 where the dynamic linker looks. FAILED_PRECONDITION it is not there, or
  // something else, or older than 2.24 (says what was found). Thread-safe; the same object for the life of the process.
  static absl::StatusOr<const Nccl*> Load(const std::string& path);

  // OK also for what goes on in the background. Else: UNAVAILABLE another member or the network failed;
  // FAILED_PRECONDITION NCCL refuses this use (such as one GPU for two members); INTERNAL everything else.
  absl::Status ToStatus(ncclResult_t result, absl::string_view operation) const;

  // Has NCCL encrypt every connection over TCP that the process makes with it, and know the other end by this key; who
  // has none or another one is not connected. Before the first id is made. Then NCCL uses nothing but TCP between
  // machines: neither InfiniBand nor a plugin. FAILED_PRECONDITION: NCCL is older than 2.32, or refuses the key.
  absl::Status SetKey(const std::string& key) const;

  std::string version;  // "2.27.3"
  decltype(&ncclGetErrorString) get_error_string = nullptr;
  decltype(&ncclGetLastError) get_last_error = nullptr;
  decltype(&ncclGetUniqueId) get_unique_id = nullptr;
  decltype(&ncclCommInitRankConfig) comm_init_rank_config = nullptr;
  decltype(&ncclCommGetAsyncError) comm_get_async_error = nullptr;
  decltype(&ncclCommAbort) comm_abort = nullptr;
  decltype(&ncclGroupStart) group_start = nullptr;
  decltype(&ncclGroupEnd) group_end = nullptr;
  decltype(&ncclSend) send = nullptr;
  decltype(&ncclRecv) receive = nullptr;
  ncclResult_t (*set_encryption)(const void* config) = nullptr;  // null: older than 2.32
};

// One member's end of a communicator of GPUs. No call waits for another member; Ready() and the stream say how far
// things are. Move-only; used by one thread at a time.
//
//   ASSIGN_OR_RETURN(auto communicator, NcclCommunicator::Join(nccl, device, id, rank, size));
//   ... until communicator.Ready() ...
//   RETURN_IF_ERROR(communicator.Enqueue(operations, stream));
//   ... until communicator.Ready(), then until the stream is idle ...
class NcclCommunicator {
 public:
  // What the members of one communicator have in common. A secret: whoever knows it can join.
  static absl::StatusOr<std::string> MakeId(const Nccl& nccl);

  // Begins to join. Members are numbered from 0, each on a GPU of its own.
  static absl::StatusOr<NcclCommunicator> Join(const Nccl& nccl, int device, absl::string_view id, int rank, int size);

  NcclCommunicator() = default;
  NcclCommunicator(NcclCommunicator&& other) noexcept { *this = std::move(other); }
  NcclCommunicator& operator=(NcclCommunicator&& other) noexcept;
  ~NcclCommunicator() { Abort(); }

  // Whether what was begun last is done: the communicator connected, the operations on the stream. Errors of any
  // member's end that NCCL knows of.
  absl::StatusOr<bool> Ready() const;

  struct Operation {
    enum class Kind { kSend, kReceive };

    Kind kind = Kind::kSend;
    int peer = 0;
    void* data = nullptr;  // of the communicator's GPU; only read when it is sent
    int64_t size_bytes = 0;
  };
  // Begins to enqueue operations that go on beside each other, on a stream of the communicator's GPU. The n-th send to
  // a peer meets the peer's n-th receive from here, of the same size. Requires Ready().
  absl::Status Enqueue(absl::Span<const Operation> operations, cudaStream_t stream);

  // Gives the communicator up without the other members: its kernels end, whatever they wait for. The stream is idle
  // soon after.
  void Abort();

 private:
  const Nccl* nccl_ = nullptr;
  ncclComm_t communicator_ = nullptr;
  int device_ = 0;
};

}  // namespace paramshard::gpu

#endif  // PARAMSHARD_KERNELS_GPU_NCCL_H_
