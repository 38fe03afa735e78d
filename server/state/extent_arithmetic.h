// Arithmetic on some of a shard's extents, with the numbers that the shard keeps of them.
#ifndef PARAMSHARD_SERVER_STATE_EXTENT_ARITHMETIC_H_
#define PARAMSHARD_SERVER_STATE_EXTENT_ARITHMETIC_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/formats/codec.h"
#include "server/device/compute_device.h"
#include "server/state/scaling_book.h"
#include "server/state/shard_memory.h"

namespace paramshard::server {

// Numbers of one extent, which change with its state.
struct ExtentNumbers {
  int64_t step = 0;            // optimizer steps taken
  TensorScaling scaling = {};  // its planes were encoded with it
  bool awaits_amax = false;    // has stepped, and EncodesAfterAmax()
};

// Not thread-safe. `numbers` are of all extents of the shard, by index. `check_cancelled` is asked as ShardArithmetic says.
class ExtentArithmetic {
 public:
  using CancelCheck = ShardArithmetic::CancelCheck;

  // `memory` outlives this; `extents` are indices. `scratch` holds the master of an extent that keeps none.
  static absl::StatusOr<std::unique_ptr<ExtentArithmetic>> Create(const ShardMemory& memory, std::vector<int> extents,
                                                                  StateMoves moves = {},
                                                                  const Memory* scratch = nullptr);

  // Fills masters with initial values.
  absl::Status Fill();
  // Adds the amaxes of the masters to `book`.
  absl::Status MeasureAmaxes(ScalingBook& book, CancelCheck check_cancelled) const;
  // Encodes every plane anew from the masters.
  absl::Status EncodePlanes(absl::Span<const ExtentNumbers> numbers, CancelCheck check_cancelled);

  std::vector<TensorScaling> ScalingsOf(absl::Span<const ExtentNumbers> numbers) const;
  ShardArithmetic& device_arithmetic() { return *arithmetic_; }
  std::string products() const { return arithmetic_->products(); }
  int64_t muon_bytes() const { return arithmetic_->muon_bytes(); }
  int64_t position() const { return arithmetic_->position(); }

 private:
  ExtentArithmetic(const ShardMemory& memory, std::vector<int> extents)
      : memory_(memory), extents_(std::move(extents)) {}

  const ShardMemory& memory_;
  const std::vector<int> extents_;
  std::unique_ptr<ShardArithmetic> arithmetic_;
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_STATE_EXTENT_ARITHMETIC_H_
