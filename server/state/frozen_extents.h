// Frozen extents of a shard: their masters, or planes alone.
#ifndef PARAMSHARD_SERVER_STATE_FROZEN_EXTENTS_H_
#define PARAMSHARD_SERVER_STATE_FROZEN_EXTENTS_H_

#include <cstdint>
#include <map>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "server/device/memory.h"
#include "server/state/extent_arithmetic.h"
#include "server/state/scaling_book.h"
#include "server/state/shard_memory.h"
#include "server/state/shard_planes.h"

namespace paramshard::server {

// A frozen parameter has no moments and no accumulator, and steps leave it alone. Without a master it consists of its
// planes: they are made once from its initial values, or from rows that were written. Where steps move the state the
// planes have a copy (KeepPlanes), for a server that adopts the state.
//
// Not thread-safe. Functions that name an extent are for frozen extents without a master.
class FrozenExtents {
 public:
  using CancelCheck = ShardArithmetic::CancelCheck;

  // `memory` outlives this.
  static absl::StatusOr<std::unique_ptr<FrozenExtents>> Create(const ShardMemory& memory);

  // Fills masters with initial values; without a master, planes are yet to be made of them.
  absl::Status Fill();
  // Adds the amaxes of the masters to `book`; without a master, those of what its planes are yet to be made of.
  absl::Status MeasureAmaxes(ScalingBook& book, CancelCheck check_cancelled) const;
  // Encodes every plane anew from the masters. Without a master, if something was written.
  absl::Status EncodePlanes(absl::Span<const ExtentNumbers> numbers, CancelCheck check_cancelled);

  // See Shard::MakeRoom. Extents with a master are passed over.
  absl::Status MakeRoom(absl::Span<const ShardExtent* const> extents);
  void GiveUpRoom();
  // Keeps rows in host memory until EncodePlanes.
  absl::Status WriteRows(const ShardExtent& extent, RowRange rows, absl::Span<const float> values);
  // See Shard::WritePlane.
  absl::Status WritePlane(const ShardExtent& extent, Plane plane, RowRange rows, const PlaneContent& content);

  // See Shard::KeepPlanes.
  absl::Status KeepPlanes() const;
  absl::Status BringBackPlanes();

 private:
  // Says what the planes of an extent without a master are yet to be made of.
  enum class PlaneSource : uint8_t { kNone, kInitialValues, kWrittenRows };
  struct Pending {
    PlaneSource source = PlaneSource::kNone;
    std::unique_ptr<float[]> written_rows = nullptr;         // of the whole extent
    std::unique_ptr<ExtentArithmetic> arithmetic = nullptr;  // on it and room_, where room was made
  };
  // Extents are worked on one after the other, in room that was made for them or that lives as long as this.
  struct Work {
    Memory scratch;
    std::unique_ptr<ExtentArithmetic> own;
    ExtentArithmetic* arithmetic = nullptr;  // on this extent alone
  };

  explicit FrozenExtents(const ShardMemory& memory) : memory_(memory) {}
  const ShardExtents& extents() const { return memory_.extents(); }
  Pending& PendingOf(const ShardExtent& extent);
  // Loads an extent by its index, with the master from which its planes are to be made.
  absl::StatusOr<Work> Load(int index, const Pending& pending) const;
  absl::Status MakeRoomForRows(const ShardExtent& extent, Pending& pending) const;
  static void Forget(Pending& pending);

  const ShardMemory& memory_;
  std::unique_ptr<ExtentArithmetic> kept_;  // on extents with a master; null without any
  // Holds masters that are not kept while planes are made of them: for the largest extent that room was made for.
  Memory room_;
  std::map<int, Pending> pending_;  // by the index of each extent without a master; ends before room_
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_STATE_FROZEN_EXTENTS_H_
