// The tensors that a checkpoint has of a parameter: their names, types and shapes in the files.
//
// What is saved of a parameter is its state exactly as it is stored. A trainable parameter, or a frozen one with a
// master: master (and remainder), both moments (and their scales). A frozen one without a master has its planes as its
// state: data and scales row-wise, and column-wise where the format has that plane, and the amax.
#ifndef PARAMSHARD_PROTO_CHECKPOINT_TENSOR_KEY_H_
#define PARAMSHARD_PROTO_CHECKPOINT_TENSOR_KEY_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kernels/formats/format.h"
#include "proto/model/model_spec.h"
#include "proto/model/row_range.h"
#include "proto/model/state_tensor.h"
#include "proto/safetensors/dtype.h"

namespace paramshard::checkpoint {

// One array of a parameter's state, which is one tensor of a checkpoint.
enum class ArrayKind : uint8_t {
  kMaster,           // master/NAME: F32, or BF16 beside remainders
  kRemainder,        // remainder/NAME: I16
  kExpAvg,           // exp_avg/NAME: F32, BF16, F16 or F8_E4M3
  kExpAvgScale,      // exp_avg.scale/NAME: F32 [rows, ceil(K / 128)], of F16 and F8_E4M3
  kExpAvgSq,         // exp_avg_sq/NAME: F32 or BF16; exp_avg_sq_root/NAME: F16 or F8_E4M3, square roots
  kExpAvgSqScale,    // exp_avg_sq_root.scale/NAME: F32 [rows, ceil(K / 128)]
  kRowWisePlane,     // plane/NAME
  kRowWiseScale,     // plane.scale/NAME: a row for every row of blocks, one for a scale of the whole tensor
  kAmax,             // plane.amax/NAME: F32 [1, 1], of the whole tensor
  kColumnWisePlane,  // column_plane/NAME
  kColumnWiseScale,  // column_plane.scale/NAME
};
inline constexpr ArrayKind kArrayKinds[] = {
    ArrayKind::kMaster,   ArrayKind::kRemainder,       ArrayKind::kExpAvg,         ArrayKind::kExpAvgScale,
    ArrayKind::kExpAvgSq, ArrayKind::kExpAvgSqScale,   ArrayKind::kRowWisePlane,   ArrayKind::kRowWiseScale,
    ArrayKind::kAmax,     ArrayKind::kColumnWisePlane, ArrayKind::kColumnWiseScale};

// Where the bytes of a kind are found in a shard: a form of a tensor (never kValues), or a piece of a plane. None where
// the kind is the other.
struct StateForm {
  StateTensor tensor = StateTensor::kMaster;
  TensorForm form = TensorForm::kElements;
};
std::optional<StateForm> StateFormOf(ArrayKind kind);
ArrayKind KindOf(StateTensor tensor, TensorForm form);  // requires kElements or kRest

enum class PlanePiece : uint8_t { kData, kScales, kAmax };
struct PlaneForm {
  Plane plane = Plane::kRowWise;
  PlanePiece piece = PlanePiece::kData;
};
std::optional<PlaneForm> PlaneFormOf(ArrayKind kind);

// The array of the whole parameter: [rows, columns] of a dtype.
struct ArrayShape {
  safetensors::Dtype dtype = safetensors::Dtype::kF32;
  int64_t rows = 0;
  int64_t columns = 0;
  // The parameter's rows that one row of the array is of: 1, or those of a block of scales, or kUnbounded: the array is
  // one row about the whole tensor.
  int64_t rows_per_row = 1;

  int64_t row_bytes() const;
  int64_t size_bytes() const { return rows * row_bytes(); }
  // The array's rows that belong to some rows of the parameter, which begin and end at multiples of the format's
  // granule or at the parameter's end. What is of the whole tensor belongs to row 0.
  RowRange RowsOf(const RowRange& parameter_rows) const;
};

// None where the parameter does not have the array. Requires a parameter of a checked spec.
std::optional<ArrayShape> ShapeOf(const ParameterSpec& spec, ArrayKind kind);
// Those that it has, ascending. Never none.
std::vector<ArrayKind> ArraysOf(const ParameterSpec& spec);
// Whether its planes are its state.
inline bool PlanesAreState(const ParameterSpec& spec) { return !spec.master_type.has_value(); }
// Whether the manifest has the content hash of the array. Remainders have none: that of the master is of both.
inline bool HasContentHash(ArrayKind kind) { return kind != ArrayKind::kRemainder; }
// Rows that stay together in a file: the format's granule where planes are the state, else 1.
int64_t SavedGranule(const ParameterSpec& spec);

// The tensor's name in the files, as above. Requires that the parameter has the array.
std::string TensorKey(const ParameterSpec& spec, ArrayKind kind);
// The client state of a world rank, U8 [n], which is in the rank's own file, its last tensor: "client_state/3". Keys
// differ by rank because readers of sharded files take equal keys for parts of one tensor.
std::string ClientStateKey(int rank);

}  // namespace paramshard::checkpoint

#endif  // PARAMSHARD_PROTO_CHECKPOINT_TENSOR_KEY_H_
