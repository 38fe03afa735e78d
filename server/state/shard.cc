#include "server/state/shard.h"

#include <numeric>

#include "kernels/base/check.h"
#include "kernels/base/status_macros.h"

namespace paramshard::server {

absl::StatusOr<std::unique_ptr<Shard>> Shard::Create(const ModelSpec& spec, const Layout& layout, int rank,
                                                     ComputeDevice* device, const Options& options) {
  ASSIGN_OR_RETURN(std::unique_ptr<ShardMemory> memory,
                   ShardMemory::Allocate(ShardExtents(spec, layout, rank, options.moves), device, options.memory,
                                         options.world_rank));
  std::vector<int> indices(memory->extents().trainable_count());
  std::iota(indices.begin(), indices.end(), 0);
  StateMoves moves = memory->extents().placement().moves;
  moves.position = options.position;
  ASSIGN_OR_RETURN(auto trainable, ExtentArithmetic::Create(*memory, std::move(indices), std::move(moves)));
  ASSIGN_OR_RETURN(auto frozen, FrozenExtents::Create(*memory));
  if (options.memory == nullptr || !options.memory->adopted()) {
    RETURN_IF_ERROR(trainable->Fill());
    RETURN_IF_ERROR(frozen->Fill());
  }
  return std::unique_ptr<Shard>(
      new Shard(std::move(memory), std::move(trainable), std::move(frozen), options.publication));
}

Shard::Shard(std::unique_ptr<ShardMemory> memory, std::unique_ptr<ExtentArithmetic> trainable,
             std::unique_ptr<FrozenExtents> frozen, const Publication* publication)
    : publication_(publication),
      memory_(std::move(memory)),
      trainable_(std::move(trainable)),
      frozen_(std::move(frozen)),
      arrays_(*memory_, trainable_->device_arithmetic()),
      gradients_(*memory_, trainable_->device_arithmetic()),
      muon_bytes_(trainable_->muon_bytes()),
      numbers_(extents().size()) {}

void Shard::CheckWriting() const { PARAMSHARD_CHECK(publication_ == nullptr || publication_->is_writing()); }

// --- Steps

absl::Status Shard::Step(const StepParameters& parameters, const StepProgress& progress, ScalingBook& book) {
  CheckWriting();
  absl::MutexLock lock(&mu_);
  ++version_;
  return StepExtents(extents(), parameters, gradients_.Take(), progress, *trainable_, absl::MakeSpan(numbers_), book);
}

absl::Status Shard::EncodeAfterAmax(const ScalingBook& book) {
  CheckWriting();
  absl::MutexLock lock(&mu_);
  return EncodeSteppedExtents(extents(), book, *trainable_, absl::MakeSpan(numbers_));
}

absl::Status Shard::MeasureAmaxes(ScalingBook& book, CancelCheck check_cancelled) const {
  absl::ReaderMutexLock lock(&mu_);
  RETURN_IF_ERROR(trainable_->MeasureAmaxes(book, check_cancelled));
  return frozen_->MeasureAmaxes(book, check_cancelled);
}

absl::Status Shard::EncodePlanes(const ScalingBook& book, CancelCheck check_cancelled) {
  CheckWriting();
  absl::MutexLock lock(&mu_);
  for (int i = 0; i < extents().size(); ++i) {
    numbers_[i].scaling = book.Present(extents()[i].unit, extents()[i].parameter);
    numbers_[i].awaits_amax = false;
  }
  RETURN_IF_ERROR(trainable_->EncodePlanes(numbers_, check_cancelled));
  return frozen_->EncodePlanes(numbers_, check_cancelled);
}

// --- Planes without a master

absl::Status Shard::KeepPlanes() const {
  absl::ReaderMutexLock lock(&mu_);
  return frozen_->KeepPlanes();
}

absl::Status Shard::BringBackPlanes() {
  CheckWriting();
  absl::MutexLock lock(&mu_);
  return frozen_->BringBackPlanes();
}

absl::Status Shard::MakeRoom(absl::Span<const ShardExtent* const> extents) {
  absl::MutexLock lock(&mu_);
  return frozen_->MakeRoom(extents);
}

void Shard::GiveUpRoom() {
  absl::MutexLock lock(&mu_);
  frozen_->GiveUpRoom();
}

// --- Replacing the state

absl::Status Shard::WriteRows(const ShardExtent& extent, StateTensor tensor, RowRange rows,
                              absl::Span<const float> values) {
  CheckWriting();
  if (!extents().HasMaster(extent)) {
    absl::MutexLock lock(&mu_);
    return frozen_->WriteRows(extent, rows, values);
  }
  const StoredRows stored = EncodeRows(extents().Spec(extent), tensor, rows.size(), values);
  absl::MutexLock lock(&mu_);
  RETURN_IF_ERROR(arrays_.Write(extent, tensor, TensorForm::kElements, rows, stored.elements));
  return arrays_.Write(extent, tensor, TensorForm::kRest, rows, stored.rest);
}

absl::Status Shard::WriteStoredRows(const ShardExtent& extent, StateTensor tensor, TensorForm form, RowRange rows,
                                    absl::Span<const uint8_t> bytes) {
  CheckWriting();
  absl::MutexLock lock(&mu_);
  return arrays_.Write(extent, tensor, form, rows, bytes);
}

absl::Status Shard::WritePlane(const ShardExtent& extent, Plane plane, RowRange rows, const PlaneContent& content) {
  CheckWriting();
  absl::MutexLock lock(&mu_);
  return frozen_->WritePlane(extent, plane, rows, content);
}

// --- Numbers

void Shard::CollectSteps(absl::Span<int64_t> steps) const {
  absl::ReaderMutexLock lock(&mu_);
  for (const ShardExtent& extent : extents()) steps[extents().PlaceOf(extent)] = numbers(extent).step;
}

void Shard::SetStep(const ShardExtent& extent, int64_t step) {
  absl::MutexLock lock(&mu_);
  numbers_[extents().IndexOf(extent)].step = step;
}

void Shard::SetSteps(absl::Span<const int64_t> steps) {
  absl::MutexLock lock(&mu_);
  for (int i = 0; i < extents().size(); ++i) numbers_[i].step = steps[extents().PlaceOf(extents()[i])];
}

void Shard::SetVersion(int64_t version) {
  absl::MutexLock lock(&mu_);
  version_ = version;
}

void Shard::SetGeneration(int64_t generation) {
  absl::MutexLock lock(&mu_);
  generation_ = generation;
}

}  // namespace paramshard::server
