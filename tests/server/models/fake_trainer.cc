#include "tests/server/models/fake_trainer.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <thread>
#include <utility>

#include "absl/time/clock.h"
#include "kernels/base/check.h"
#include "kernels/formats/bfloat16.h"
#include "kernels/reduce/gradient.h"
#include "tests/server/training/command.h"

namespace paramshard::server {
namespace {

constexpr absl::Duration kTimeout = absl::Seconds(30);

std::atomic<int64_t> last_session{0};

}  // namespace

// Memory of the daemon, as a process maps it.
class FakeTrainer::Mapping {
 public:
  Mapping(int fd, int64_t size_bytes, int protection) : size_bytes_(size_bytes) {
    if (size_bytes == 0) return;
    data_ = mmap(nullptr, size_bytes, protection, MAP_SHARED, fd, 0);
    PARAMSHARD_CHECK(data_ != MAP_FAILED);
  }
  ~Mapping() {
    if (data_ != nullptr) munmap(data_, size_bytes_);
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  uint8_t* data() const { return static_cast<uint8_t*>(data_); }

 private:
  const int64_t size_bytes_;
  void* data_ = nullptr;
};

FakeTrainer::FakeTrainer(Model* model, int rank) : model_(model), rank_(rank), session_(++last_session) {}

FakeTrainer::~FakeTrainer() {
  {
    absl::MutexLock lock(&mu_);
    if (!attached_ || is_ended_) return;
  }
  Leave();
  PARAMSHARD_CHECK(AwaitEnded() != nullptr);
}

Trainer FakeTrainer::MakeTrainer() {
  return {.session = session_,
          .rank = rank_,
          .pid = 10'000 + session_,
          .uid = 7,
          .attached_at = absl::Now(),
          .send_memory = [this](const auto& message, auto fds) { return TakeMemory(message, fds); },
          .on_started =
              [this](const EpochStartInfo& greeting) {
                absl::MutexLock lock(&mu_);
                started_ = greeting;
                is_started_ = true;
              },
          .on_ended =
              [this](const EpochEndInfo& farewell) {
                std::function<void()> when_ended;
                {
                  absl::MutexLock lock(&mu_);
                  when_ended = when_ended_;
                }
                if (when_ended) when_ended();
                absl::MutexLock lock(&mu_);
                ended_ = farewell;
                is_ended_ = true;
              }};
}

absl::Status FakeTrainer::TakeMemory(const wire::CompanionMemory& message, absl::Span<const int> fds) {
  PARAMSHARD_CHECK(message.session == session_ && fds.size() == 3);
  if (!refusal_.ok()) return refusal_;
  if (model_->world().devices[0]->id().kind == DeviceKind::kCpu) {
    planes_ = std::make_unique<Mapping>(fds[0], message.planes_bytes, PROT_READ);
    slots_ = std::make_unique<Mapping>(fds[1], message.slots_bytes, PROT_READ | PROT_WRITE);
  }
  words_page_ = std::make_unique<Mapping>(fds[2], message.words_bytes, PROT_READ | PROT_WRITE);
  const Layout& layout = model_->layout();
  const wire::WordsCounts counts{.slots = static_cast<int>(layout.slot_bytes().size()),
                                 .ranks = layout.ranks(),
                                 .gradient_slots = static_cast<int>(layout.gradient_slot_bytes().size())};
  PARAMSHARD_CHECK(message.words_bytes == static_cast<int64_t>(wire::Words::SizeBytes(counts)));
  words_ = wire::Words(words_page_->data(), counts);
  ring_.emplace(words_);
  return absl::OkStatus();
}

absl::Status FakeTrainer::Attach() {
  absl::Status status = model_->trainers().Attach(MakeTrainer());
  absl::MutexLock lock(&mu_);
  attached_ = status.ok();
  return status;
}

bool FakeTrainer::AwaitStarted() {
  absl::MutexLock lock(&mu_);
  return mu_.AwaitWithTimeout(absl::Condition(&is_started_), kTimeout);
}

const EpochEndInfo* FakeTrainer::AwaitEnded() {
  absl::MutexLock lock(&mu_);
  return mu_.AwaitWithTimeout(absl::Condition(&is_ended_), kTimeout) ? &ended_ : nullptr;
}

void FakeTrainer::Leave(const absl::Status& why) { model_->trainers().Leave(session_, why); }

// --- Memory ---

uint8_t* FakeTrainer::slot(int index) const { return slots_->data() + model_->layout().slot_offsets()[index]; }

uint8_t* FakeTrainer::gradient_slot(int index) const {
  return slots_->data() + model_->layout().gradient_slot_offsets()[index];
}

bool FakeTrainer::HoldsPlanes(int unit, int index, Phase phase) const {
  const int group_rank = started_.group_rank;
  for (int source = 0; source < model_->layout().ranks(); ++source) {
    // One's own pieces are copied by the client library, which has no part in this.
    if (source == group_rank) continue;
    const Shard& shard = *model_->committed().shards[source];
    absl::ReaderMutexLock lock(&shard.mutex());
    const uint8_t* arena = shard.memory().planes().data();
    for (const PieceCopy& piece : model_->layout().Pieces(unit, phase, source)) {
      if (std::memcmp(slot(index) + piece.target, arena + piece.source, piece.bytes) != 0) return false;
    }
  }
  return true;
}

void FakeTrainer::FillGradients(int index, int unit, float value) {
  const int64_t bytes = model_->layout().units()[unit].gradient_bytes;
  uint8_t* const slot = gradient_slot(index);
  if (model_->spec().units[unit].parameters[0].gradient_type == GradientType::kFP32) {
    std::fill_n(reinterpret_cast<float*>(slot), bytes / sizeof(float), value);
  } else {
    std::fill_n(reinterpret_cast<uint16_t*>(slot), bytes / sizeof(uint16_t), EncodeBFloat16(value));
  }
}

void FakeTrainer::FillGradients(int index, int unit, const std::vector<float>& values) {
  const GradientType type = model_->spec().units[unit].parameters[0].gradient_type;
  PARAMSHARD_CHECK(static_cast<int64_t>(values.size()) * GradientBytes(type) <=
                   model_->layout().units()[unit].gradient_bytes);
  uint8_t* const slot = gradient_slot(index);
  if (type == GradientType::kFP32) {
    std::copy(values.begin(), values.end(), reinterpret_cast<float*>(slot));
  } else {
    std::transform(values.begin(), values.end(), reinterpret_cast<uint16_t*>(slot), EncodeBFloat16);
  }
}

// --- Commands ---

int64_t FakeTrainer::Send(const v1::Command& command) {
  sent_ = command.number();
  SendRecord(command.SerializeAsString());
  return sent_;
}

void FakeTrainer::SendRecord(const std::string& record) { PARAMSHARD_CHECK(ring_->TryWrite(record)); }

int64_t FakeTrainer::Discard() { return Send(DiscardCommand(next_command())); }

int64_t FakeTrainer::Gather(int unit, int slot, v1::Phase phase) {
  return Send(GatherCommand(next_command(), unit, slot, phase));
}

int64_t FakeTrainer::Push(int unit, int slot, std::vector<int> absent) {
  Fill(slot, next_command());
  return Send(PushCommand(next_command(), unit, slot, std::move(absent)));
}

int64_t FakeTrainer::SendPush(int unit, int slot) { return Send(PushCommand(next_command(), unit, slot)); }

int64_t FakeTrainer::Commit(int64_t commit_number, std::string client_state) {
  return Send(CommitCommand(next_command(), commit_number, std::move(client_state)));
}

void FakeTrainer::Fill(int slot, int64_t number) {
  words_.filled(slot).value.store(static_cast<uint32_t>(number));
  words_.Ring();
}

void FakeTrainer::Release(int slot, int64_t number) {
  words_.released(slot).value.store(static_cast<uint32_t>(number));
  words_.Ring();
}

// --- Waiting ---

bool FakeTrainer::AwaitReady(int slot, int64_t number) const {
  for (int source = 0; source < model_->layout().ranks(); ++source) {
    if (source == started_.group_rank) continue;
    if (!words_.AwaitReached(words_.ready(slot, source), static_cast<uint32_t>(number), kTimeout)) return false;
  }
  return words_.status().value.load() == 0;
}

bool FakeTrainer::AwaitDrained(int slot, int64_t number) const {
  return words_.AwaitReached(words_.drained(slot), static_cast<uint32_t>(number), kTimeout) &&
         words_.status().value.load() == 0;
}

bool FakeTrainer::AwaitDaemonAsleep() const {
  const absl::Time end = absl::Now() + kTimeout;
  while (words_.ring_tail().value.load() != words_.ring_head().value.load() ||
         words_.daemon_waits().value.load() == 0) {
    if (absl::Now() > end) return false;
    std::this_thread::yield();
  }
  return true;
}

std::optional<wire::CommitRecord> FakeTrainer::AwaitCommitted(int64_t commit_number) const {
  if (!words_.AwaitReached(words_.committed(), static_cast<uint32_t>(commit_number), kTimeout)) return std::nullopt;
  const wire::CommitRecord& record = words_.commit_record(commit_number);
  return record.commit_number == commit_number ? std::optional(record) : std::nullopt;
}

}  // namespace paramshard::server
