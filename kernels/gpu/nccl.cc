#include "kernels/gpu/nccl.h"

#include <cstdlib>
#include <cstring>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "kernels/base/check.h"
#include "kernels/base/status_macros.h"
#include "kernels/gpu/loaded_library.h"
#include "kernels/gpu/stream.h"

namespace paramshard::gpu {
namespace {

constexpr absl::string_view kDefaultLibrary = "libnccl.so.2";
// Older versions let GPUs of one process write into each other's buffers, which only their own GPU can access here.
constexpr int kMinimumVersion = NCCL_VERSION(2, 24, 0);

// Largest number of thread blocks of a kernel. Kernels wait for the other members' kernels, so the kernels of all
// communicators of a GPU must fit at once, one block on each of its hundred or more multiprocessors.
constexpr int kMaxThreadBlocks = 16;

// ncclEncryptionConfig_t as NCCL 2.32 declares it: the NCCL of the build may be older.
struct EncryptionConfig {
  size_t size = sizeof(EncryptionConfig);
  unsigned int magic = 0xcafebeef;
  unsigned int version = NCCL_VERSION(2, 32, 3);
  int mode = 1;  // a pre-shared key
  const char* psk = nullptr;
};

std::string VersionText(int version) {
  const int thousands = version < 10000 ? 1000 : 10000;  // until 2.8 the minor version had one digit
  return absl::StrCat(version / thousands, ".", version % thousands / 100, ".", version % 100);
}

absl::StatusOr<std::string> ReadVersion(const LoadedLibrary& library) {
  decltype(&ncclGetVersion) get_version = nullptr;
  RETURN_IF_ERROR(library.LookUp("ncclGetVersion", get_version));
  int version = 0;
  get_version(&version);
  if (version < kMinimumVersion) return library.Reject(absl::StrCat("is ", VersionText(version)));
  return VersionText(version);
}

absl::StatusOr<Nccl> LoadLibrary(const std::string& name) {
  ASSIGN_OR_RETURN(const LoadedLibrary library,
                   LoadedLibrary::Open(name, absl::StrCat("NCCL: want ", VersionText(kMinimumVersion), " or newer")));
  Nccl nccl;
  ASSIGN_OR_RETURN(nccl.version, ReadVersion(library));
  RETURN_IF_ERROR(library.LookUp("ncclGetErrorString", nccl.get_error_string));
  RETURN_IF_ERROR(library.LookUp("ncclGetLastError", nccl.get_last_error));
  RETURN_IF_ERROR(library.LookUp("ncclGetUniqueId", nccl.get_unique_id));
  RETURN_IF_ERROR(library.LookUp("ncclCommInitRankConfig", nccl.comm_init_rank_config));
  RETURN_IF_ERROR(library.LookUp("ncclCommGetAsyncError", nccl.comm_get_async_error));
  RETURN_IF_ERROR(library.LookUp("ncclCommAbort", nccl.comm_abort));
  RETURN_IF_ERROR(library.LookUp("ncclGroupStart", nccl.group_start));
  RETURN_IF_ERROR(library.LookUp("ncclGroupEnd", nccl.group_end));
  RETURN_IF_ERROR(library.LookUp("ncclSend", nccl.send));
  RETURN_IF_ERROR(library.LookUp("ncclRecv", nccl.receive));
  nccl.set_encryption = library.Find<decltype(nccl.set_encryption)>("ncclSetEncryption");
  return nccl;
}

absl::StatusCode CodeOf(ncclResult_t result) {
  switch (result) {
    case ncclSystemError:
    case ncclRemoteError:
      return absl::StatusCode::kUnavailable;
    case ncclInvalidUsage:
      return absl::StatusCode::kFailedPrecondition;
    default:
      return absl::StatusCode::kInternal;
  }
}

}  // namespace

void SetNcclEnvironment() {
  // Sends and receives do not use NVLink multicast, whose faults break the whole node.
  setenv("NCCL_NVLS_ENABLE", "0", /*overwrite=*/0);
  // NCCL connects over loopback, like all other traffic between daemons.
  setenv("NCCL_SOCKET_IFNAME", "lo", /*overwrite=*/0);
  // NCCL's RAS thread would listen on a port that every NCCL process of the machine wants, trainers included, and would
  // keep connecting to daemons that have ended.
  setenv("NCCL_RAS_ENABLE", "0", /*overwrite=*/0);
  // Streams that share one of the GPU's queues wait for each other, and so would kernels of two communicators, in
  // another order on another GPU. There are 8 queues unless more are asked for.
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", /*overwrite=*/0);
}

absl::StatusOr<const Nccl*> Nccl::Load(const std::string& path) {
  static absl::Mutex& mu = *new absl::Mutex;
  static std::map<std::string, Nccl>& loaded = *new std::map<std::string, Nccl>;
  const std::string name = path.empty() ? std::string(kDefaultLibrary) : path;
  absl::MutexLock lock(&mu);
  if (const auto found = loaded.find(name); found != loaded.end()) return &found->second;
  SetNcclEnvironment();
  ASSIGN_OR_RETURN(const Nccl nccl, LoadLibrary(name));
  return &loaded.emplace(name, nccl).first->second;
}

absl::Status Nccl::ToStatus(ncclResult_t result, absl::string_view operation) const {
  if (result == ncclSuccess || result == ncclInProgress) return absl::OkStatus();
  const absl::string_view details = get_last_error(nullptr);
  return absl::Status(CodeOf(result), absl::StrCat("NCCL: ", operation, ": ", get_error_string(result),
                                                   details.empty() ? "" : ": ", details));
}

absl::Status Nccl::SetKey(const std::string& key) const {
  if (set_encryption == nullptr) {
    return absl::FailedPreconditionError(
        "NCCL: want 2.32.0 or newer for a key, this version has no function ncclSetEncryption");
  }
  // Overrides what was set: NCCL encrypts no other transport.
  setenv("NCCL_IB_DISABLE", "1", /*overwrite=*/1);
  setenv("NCCL_NET", "Socket", /*overwrite=*/1);
  const EncryptionConfig config{.psk = key.c_str()};
  if (set_encryption(&config) == ncclSuccess) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("NCCL: key rejected: ", get_last_error(nullptr)));
}

absl::StatusOr<std::string> NcclCommunicator::MakeId(const Nccl& nccl) {
  ncclUniqueId id;
  RETURN_IF_ERROR(nccl.ToStatus(nccl.get_unique_id(&id), "make an id"));
  return std::string(id.internal, sizeof(id.internal));
}

absl::StatusOr<NcclCommunicator> NcclCommunicator::Join(const Nccl& nccl, int device, absl::string_view id, int rank,
                                                        int size) {
  ncclUniqueId unique_id;
  if (id.size() != sizeof(unique_id.internal)) {
    return absl::InvalidArgumentError(
        absl::StrCat("NCCL: want an id of ", sizeof(unique_id.internal), " bytes, got ", id.size()));
  }
  std::memcpy(unique_id.internal, id.data(), id.size());
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  config.maxCTAs = kMaxThreadBlocks;
  NcclCommunicator communicator;
  communicator.nccl_ = &nccl;
  communicator.device_ = device;
  const DeviceScope scope(device);
  RETURN_IF_ERROR(
      nccl.ToStatus(nccl.comm_init_rank_config(&communicator.communicator_, size, unique_id, rank, &config), "join"));
  return communicator;
}

NcclCommunicator& NcclCommunicator::operator=(NcclCommunicator&& other) noexcept {
  std::swap(nccl_, other.nccl_);
  std::swap(communicator_, other.communicator_);
  std::swap(device_, other.device_);
  return *this;
}

absl::StatusOr<bool> NcclCommunicator::Ready() const {
  PARAMSHARD_CHECK(communicator_ != nullptr);
  ncclResult_t state = ncclSuccess;
  RETURN_IF_ERROR(nccl_->ToStatus(nccl_->comm_get_async_error(communicator_, &state), "ask for errors"));
  RETURN_IF_ERROR(nccl_->ToStatus(state, "communicator"));
  return state == ncclSuccess;
}

absl::Status NcclCommunicator::Enqueue(absl::Span<const Operation> operations, cudaStream_t stream) {
  PARAMSHARD_CHECK(communicator_ != nullptr);
  const DeviceScope scope(device_);
  absl::Status status = nccl_->ToStatus(nccl_->group_start(), "begin a group");
  if (!status.ok()) return status;
  for (const Operation& operation : operations) {
    const size_t size = static_cast<size_t>(operation.size_bytes);
    const bool sends = operation.kind == Operation::Kind::kSend;
    status.Update(
        nccl_->ToStatus(sends ? nccl_->send(operation.data, size, ncclUint8, operation.peer, communicator_, stream)
                              : nccl_->receive(operation.data, size, ncclUint8, operation.peer, communicator_, stream),
                        sends ? "send" : "receive"));
    if (!status.ok()) break;
  }
  // The group ends in any case: it is the thread's.
  status.Update(nccl_->ToStatus(nccl_->group_end(), "end a group"));
  return status;
}

void NcclCommunicator::Abort() {
  if (communicator_ == nullptr) return;
  const DeviceScope scope(device_);
  // Not ncclCommDestroy: that waits for the other members.
  nccl_->comm_abort(std::exchange(communicator_, nullptr));
}

}  // namespace paramshard::gpu
