// NCCL, loaded when it is first needed: a program that linked it would not start without it.
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

// Sets the environment variables that NCCL and CUDA should read, except for variables that are already set. Load() does
// it too; a program with threads calls this before it uses CUDA and before other threads read the environment.
void SetNcclEnvironment();

struct Nccl {
  // Returns the library at `path`; empty: libnccl.so.2 in the search path of the dynamic linker. The object lives as
  // long as the process. Thread-safe. FAILED_PRECONDITION if there is no such library, it is not NCCL, or it is older
  // than 2.24; the message says what was found.
  static absl::StatusOr<const Nccl*> Load(const std::string& path);

  // Returns OK for an operation in progress, too. UNAVAILABLE if another member or the network failed;
  // FAILED_PRECONDITION if NCCL rejects this use (such as one GPU for two members); INTERNAL otherwise.
  absl::Status ToStatus(ncclResult_t result, absl::string_view operation) const;

  // Makes NCCL encrypt and authenticate every TCP connection of this process with the key; processes without this key
  // cannot connect. Call it before the first MakeId(). From then on NCCL uses only TCP between machines: neither
  // InfiniBand nor a plugin. FAILED_PRECONDITION if NCCL is older than 2.32 or rejects the key.
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
  // Returns a new id that all members of one communicator share. A secret: every process that knows it can join.
  static absl::StatusOr<std::string> MakeId(const Nccl& nccl);

  // Begins to join. Members are numbered from 0, each on a GPU of its own.
  static absl::StatusOr<NcclCommunicator> Join(const Nccl& nccl, int device, absl::string_view id, int rank, int size);

  NcclCommunicator() = default;
  NcclCommunicator(NcclCommunicator&& other) noexcept { *this = std::move(other); }
  NcclCommunicator& operator=(NcclCommunicator&& other) noexcept;
  ~NcclCommunicator() { Abort(); }

  // Returns true if the latest Join() has connected, or the latest Enqueue() has its operations on the stream. Returns
  // errors of any member that NCCL knows of.
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

  // Ends the communicator without waiting for other members: its kernels end, even if they wait for a peer. The stream
  // is idle soon after.
  void Abort();

 private:
  const Nccl* nccl_ = nullptr;
  ncclComm_t communicator_ = nullptr;
  int device_ = 0;
};

}  // namespace paramshard::gpu

#endif  // PARAMSHARD_KERNELS_GPU_NCCL_H_
