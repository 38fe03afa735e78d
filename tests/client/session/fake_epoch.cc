#include "tests/client/session/fake_epoch.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/model/layout_fingerprint.h"
#include "common/model/model_spec_proto.h"
#include "gtest/gtest.h"
#include "kernels/base/check.h"

namespace paramshard {
namespace {

using internal::MappedMemory;

// A process that does nothing until it is killed.
pid_t StartIdleProcess() {
  const pid_t pid = fork();
  if (pid != 0) return pid;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  while (true) pause();
}

// Returns the spec as the daemon holds it.
ModelSpec Check(const ModelSpec& spec) {
  absl::StatusOr<ModelSpec> checked = ParseModelSpec(ModelSpecToProto(spec));
  PARAMSHARD_CHECK(checked.ok());
  return *std::move(checked);
}

MappedMemory Map(const wire::FileDescriptor& fd, int64_t size_bytes) {
  absl::StatusOr<MappedMemory> memory = MappedMemory::Map("test", fd, size_bytes, MappedMemory::Access::kReadWrite);
  PARAMSHARD_CHECK(memory.ok());
  return *std::move(memory);
}

wire::FileDescriptor Duplicate(const wire::FileDescriptor& fd) { return wire::FileDescriptor(dup(fd.get())); }

}  // namespace

ModelSpec ThreeUnits() {
  ModelSpec spec;
  spec.name = "three";
  for (const char* name : {"a", "b", "c"}) {
    UnitSpec unit;
    unit.name = name;
    unit.parameters = {{.name = absl::StrCat(name, ".w"), .shape = {64, 32}, .encoding = {.format = Format::kMXFP8}},
                       {.name = absl::StrCat(name, ".bias"), .shape = {64}}};
    spec.units.push_back(unit);
  }
  spec.small_parameter_bytes = 1024;
  return spec;
}

wire::FileDescriptor FakeEpoch::MakeFile(int64_t size_bytes) {
  wire::FileDescriptor fd(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  PARAMSHARD_CHECK(ftruncate(fd.get(), size_bytes) == 0);
  PARAMSHARD_CHECK(fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0);
  return fd;
}

FakeEpoch::FakeEpoch(const ModelSpec& spec, const FakeEpochOptions& options)
    : options_(options),
      layout_(Check(spec), options.ranks),
      planes_file_(MakeFile(layout_.arena_bytes(options.group_rank))),
      slots_file_(MakeFile(layout_.slots_bytes() + layout_.landing_bytes(options.group_rank))),
      daemon_(StartIdleProcess()) {
  const wire::WordsCounts counts{.slots = static_cast<int>(layout_.slot_offsets().size()),
                                 .ranks = layout_.ranks(),
                                 .gradient_slots = static_cast<int>(layout_.gradient_slot_offsets().size())};
  const auto words_bytes = static_cast<int64_t>(wire::Words::SizeBytes(counts));
  words_file_ = MakeFile(words_bytes);
  planes_ = Map(planes_file_, layout_.arena_bytes(options.group_rank));
  slots_ = Map(slots_file_, layout_.slots_bytes() + layout_.landing_bytes(options.group_rank));
  page_ = Map(words_file_, words_bytes);
  words_ = wire::Words(page_.data(), counts);
  words_.committed().value = static_cast<uint32_t>(options.commit_number);
  ring_ = std::make_unique<wire::RingReader>(words_);
}

FakeEpoch::~FakeEpoch() { KillDaemon(); }

absl::StatusOr<std::shared_ptr<internal::Session>> FakeEpoch::Attach() {
  int sockets[2];
  PARAMSHARD_CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets) == 0);
  companion_ = wire::FileDescriptor(sockets[0]);
  wire::FileDescriptor pidfd(static_cast<int>(syscall(SYS_pidfd_open, daemon_, 0)));
  PARAMSHARD_CHECK(pidfd.valid());
  v1::EpochStarted started;
  started.set_epoch(1);
  started.set_commit_number(options_.commit_number);
  started.set_world_size(options_.ranks);
  started.set_group_rank(options_.group_rank);
  started.set_client_lands_own_pieces(options_.client_lands_own_pieces);
  started.set_client_lands_own_gradients(options_.client_lands_own_gradients);
  started.set_gpu_uuid(options_.gpu_uuid);
  *started.mutable_spec() = ModelSpecToProto(layout_.spec());
  started.set_shard_size(layout_.ranks());
  started.set_layout_fingerprint(LayoutFingerprint(layout_) + options_.extra_fingerprint);
  internal::SessionMemory memory;
  memory.sizes.planes_bytes = planes_.size_bytes() + options_.extra_planes_bytes;
  memory.sizes.slots_bytes = slots_.size_bytes();
  memory.sizes.words_bytes = page_.size_bytes();
  memory.planes = Duplicate(planes_file_);
  memory.slots = Duplicate(slots_file_);
  memory.words = Duplicate(words_file_);
  return internal::Session::Create(
      {.rank = options_.group_rank,
       .prefetch = options_.prefetch,
       .started = std::move(started),
       .companion = internal::Companion(wire::FileDescriptor(sockets[1]), std::move(pidfd), "token", daemon_),
       .memory = std::move(memory),
       .stream = nullptr,
       .map_tensors = options_.map_tensors,
       .interruption = options_.interruption});
}

std::optional<v1::Command> FakeEpoch::NextCommand() {
  const absl::StatusOr<std::optional<std::string>> record = ring_->Read();
  PARAMSHARD_CHECK(record.ok());
  if (!record->has_value()) return std::nullopt;
  v1::Command command;
  PARAMSHARD_CHECK(command.ParseFromString(**record));
  return command;
}

bool FakeEpoch::AwaitTrainerAsleep() const {
  const absl::Time end = absl::Now() + absl::Seconds(30);
  while (words_.client_waits().value.load() == 0) {
    if (absl::Now() > end) return false;
    std::this_thread::yield();
  }
  return true;
}

void FakeEpoch::PublishReady(const v1::Command& gather) {
  for (int rank = 0; rank < options_.ranks; ++rank) {
    if (rank == options_.group_rank && options_.client_lands_own_pieces) continue;
    words_.Publish(words_.ready(gather.gather().slot(), rank), static_cast<uint32_t>(gather.number()));
  }
}

void FakeEpoch::PublishDrained(const v1::Command& push) {
  words_.Publish(words_.drained(push.push().slot()), static_cast<uint32_t>(push.number()));
}

void FakeEpoch::PublishCommitted(int64_t commit_number, int64_t version) {
  wire::CommitRecord& record = words_.commit_record(commit_number);
  record.commit_number = commit_number;
  record.version = version;
  record.gradient_norm = 0.5;
  record.non_finite_count = 0;
  record.skipped = 0;
  words_.Publish(words_.committed(), static_cast<uint32_t>(commit_number));
}

void FakeEpoch::KillDaemon() {
  if (daemon_ < 0) return;
  kill(daemon_, SIGKILL);
  waitpid(daemon_, nullptr, 0);
  daemon_ = -1;
}

}  // namespace paramshard
