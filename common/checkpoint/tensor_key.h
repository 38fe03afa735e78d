// The tensors of a parameter in a checkpoint: their names, types and shapes in the files.
//
// A checkpoint holds a parameter's state exactly as it is stored. A trainable parameter: master (and remainder), the
// moments that its optimizer keeps (and their scales). A frozen one with a master: the master (and remainder). The state of a frozen one without
// a master is its planes: data and scales row-wise, and column-wise if the format has that plane, and the amax.
#ifndef PARAMSHARD_COMMON_CHECKPOINT_TENSOR_KEY_H_
#define PARAMSHARD_COMMON_CHECKPOINT_TENSOR_KEY_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/model/model_spec.h"
#include "common/model/row_range.h"
#include "common/model/state_tensor.h"
#include "common/safetensors/dtype.h"
#include "kernels/formats/format_id.h"

namespace paramshard::checkpoint {

// One array of a parameter's state, stored as one tensor of a checkpoint.
enum class ArrayKind : uint8_t {
  kMaster,             // master/NAME: F32, or BF16 beside remainders
  kRemainder,          // remainder/NAME: I16
  kFirstMoment,        // exp_avg/NAME: F32, BF16, F16 or F8_E4M3; momentum_buffer/NAME in SGD
  kFirstMomentScale,   // exp_avg.scale/NAME: F32 [rows, ceil(K / 128)], of F16 and F8_E4M3
  kSecondMoment,       // exp_avg_sq/NAME: F32 or BF16; exp_avg_sq_root/NAME: F16 or F8_E4M3, square roots
  kSecondMomentScale,  // exp_avg_sq_root.scale/NAME: F32 [rows, ceil(K / 128)]
  kRowWisePlane,       // plane/NAME
  kRowWiseScale,       // plane.scale/NAME: a row for every row of blocks, one for a scale of the whole tensor
  kAmax,               // plane.amax/NAME: F32 [1, 1], of the whole tensor
  kColumnWisePlane,    // column_plane/NAME
  kColumnWiseScale,    // column_plane.scale/NAME
};
inline constexpr ArrayKind kArrayKinds[] = {
    ArrayKind::kMaster,       ArrayKind::kRemainder,         ArrayKind::kFirstMoment,    ArrayKind::kFirstMomentScale,
    ArrayKind::kSecondMoment, ArrayKind::kSecondMomentScale, ArrayKind::kRowWisePlane,   ArrayKind::kRowWiseScale,
    ArrayKind::kAmax,         ArrayKind::kColumnWisePlane,   ArrayKind::kColumnWiseScale};

// The source of a kind's bytes in a shard: a form of a tensor (never kValues), or a piece of a plane (PlaneForm). Each
// kind has one of the two; the other function returns nullopt.
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

// Shape of the array of a whole parameter: [rows, columns] of a dtype.
struct ArrayShape {
  safetensors::Dtype dtype = safetensors::Dtype::kF32;
  int64_t rows = 0;
  int64_t columns = 0;
  // Number of the parameter's rows that one row of the array describes: 1, the rows of a block of scales, or
  // kUnbounded: the array is one row for the whole tensor.
  int64_t rows_per_row = 1;

  int64_t row_bytes() const;
  int64_t size_bytes() const { return rows * row_bytes(); }
  // Returns the array's rows for some rows of the parameter, which begin and end at multiples of the format's granule
  // or at the parameter's end. A row for the whole tensor belongs to row 0.
  RowRange RowsOf(const RowRange& parameter_rows) const;
};

// Returns nullopt if the parameter does not have the array. Requires a parameter of a checked spec.
std::optional<ArrayShape> ShapeOf(const ParameterSpec& spec, ArrayKind kind);
// Returns the kinds of arrays that the parameter has, ascending; at least one.
std::vector<ArrayKind> ArraysOf(const ParameterSpec& spec);
// Returns true if the parameter's planes are its state.
inline bool PlanesAreState(const ParameterSpec& spec) { return !spec.master_type.has_value(); }
// Returns true if the manifest has a content hash of the array. Remainders have none: the master's hash covers both.
inline bool HasContentHash(ArrayKind kind) { return kind != ArrayKind::kRemainder; }
// Returns the number of rows that stay together in a file: the format's granule if planes are the state, else 1.
int64_t SavedGranule(const ParameterSpec& spec);

// Returns the tensor's name in the files, as above. Requires that the parameter has the array.
std::string TensorKey(const ParameterSpec& spec, ArrayKind kind);
// Returns the key of a world rank's client state, such as "client_state/3": U8 [n], the last tensor of the rank's own
// files. Keys differ by rank because readers of sharded files take equal keys for parts of one tensor.
std::string ClientStateKey(int rank);

}  // namespace paramshard::checkpoint

#endif  // PARAMSHARD_COMMON_CHECKPOINT_TENSOR_KEY_H_
