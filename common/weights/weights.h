// Weights in a checkpoint of safetensors files of several programs and quantization methods.
#ifndef PARAMSHARD_COMMON_WEIGHTS_WEIGHTS_H_
#define PARAMSHARD_COMMON_WEIGHTS_WEIGHTS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/safetensors/checkpoint.h"
#include "common/weights/quantization_config.h"
#include "common/weights/quantized_tensor.h"
#include "kernels/formats/format_id.h"

namespace paramshard::weights {

// The tensors of a model by their names in the model: codes and scales that represent one tensor are one tensor. Known
// are
//
//   F32, BF16 and F16;
//   F8_E4M3 and F8_E5M2 with NAME_scale_inv or NAME_scale beside, which are multiplied: one scale for the tensor, for
//     each matrix of a stack, for each row, for each block of 128 x 128 or as config.json says (DeepSeek and the fp8
//     quantizer of transformers, fbgemm, compressed-tensors);
//   MXFP4 of gpt-oss, NAME_blocks and NAME_scales [E, N, K/32], which stand for NAME [E, K, N];
//   what `paramshardctl convert` writes.
//
// Any other floats of less than 16 bits, codes without scales, and weights under a quantization_config of an unknown
// method are refused when they are read. Integers, booleans, F64 and complex numbers are not weights: they can only be
// carried, as bytes. Movable; thread-safe.
//
//   ASSIGN_OR_RETURN(const Weights weights, Weights::Open("DeepSeek-V3"));
//   const Weights::Tensor* tensor = weights.Find("model.norm.weight");
//   std::vector<float> values(tensor->matrix().rows * tensor->matrix().cols);
//   RETURN_IF_ERROR(weights.ReadRows(*tensor, {0, tensor->matrix().rows}, values.data()));
class Weights {
 public:
  // Opens a path of Checkpoint::Open. Errors of Checkpoint::Open; INVALID_ARGUMENT also for a config.json beside it
  // that is not a JSON object, and for metadata of convert that does not fit the file's tensors. A tensor that cannot
  // be decoded is an error only when it is read.
  static absl::StatusOr<Weights> Open(const std::string& path);

  enum class Kind : uint8_t {
    kPlain,    // F32, BF16, F16
    kCarried,  // integers, booleans, F64, complex numbers: bytes
    kEncoded,  // by convert
    kScaled,   // FP8 codes times the scale of their block
    kMxfp4,    // of gpt-oss
    kRefused,
  };

  struct Tensor {
    std::string name;
    std::vector<int64_t> shape;                           // of the values
    safetensors::Dtype dtype = safetensors::Dtype::kF32;  // as stored; of the codes
    Kind kind = Kind::kPlain;
    std::string encoding;  // for people: "BF16", "MXFP8 E4M3", "F8_E4M3 by 128 x 128"
    absl::Status refusal;  // INVALID_ARGUMENT naming file, tensor and dtype; OK unless kRefused

    const safetensors::Checkpoint::Tensor* data = nullptr;
    const safetensors::Checkpoint::Tensor* scales = nullptr;  // kScaled, kMxfp4
    MatrixShape scaled = {};         // kScaled: the matrix of one grid of scales: one of a stack, or the whole tensor
    MatrixShape block = {};          // kScaled: the elements that share a scale
    QuantizedTensor quantized = {};  // kEncoded
    std::map<Part, const safetensors::Checkpoint::Tensor*> parts = {};  // kEncoded

    // Rows and columns: the product of all dimensions but the last, and the last.
    MatrixShape matrix() const { return MatrixOf(shape); }
    bool is_number() const { return kind != Kind::kCarried && kind != Kind::kRefused; }
    // Number of rows at whose multiples pieces should begin to be read at the least cost.
    int64_t granule_rows() const;
  };

  const std::map<std::string, Tensor, std::less<>>& tensors() const { return tensors_; }
  // Returns null if there is no such tensor.
  const Tensor* Find(absl::string_view name) const;
  const safetensors::Checkpoint& checkpoint() const { return *checkpoint_; }

  // Returns OK if ReadRows can decode the tensor, else its refusal; INVALID_ARGUMENT naming tensor and dtype for
  // kCarried.
  absl::Status CheckNumber(const Tensor& tensor) const;

  // Decodes rows of the tensor's matrix to float32, row-major, into `out`. Errors of CheckNumber and
  // Checkpoint::Tensor::Read.
  absl::Status ReadRows(const Tensor& tensor, RowBand rows, float* out) const;

  // Returns a tensor whose name differs from `name` only by a wrapper's prefix ("module.", "_orig_mod.", "model."), or
  // an empty text.
  std::string SimilarName(absl::string_view name) const;

 private:
  // Tensors of the files by name that have not been assigned to a tensor of the model yet.
  using Left = std::map<absl::string_view, const safetensors::Checkpoint::Tensor*>;

  absl::Status TakeEncoded(const safetensors::SafetensorsFile& file, Left& left);
  void TakeMxfp4(Left& left);
  void TakeScaled(Left& left);
  void TakePacked(Left& left);
  void TakeRest(const Left& left);
  Tensor ScaledTensor(const safetensors::Checkpoint::Tensor& data, const safetensors::Checkpoint::Tensor& scales) const;
  std::string WhyNotPlain(const safetensors::TensorInfo& info) const;
  void Add(Tensor tensor) { tensors_[tensor.name] = std::move(tensor); }

  std::unique_ptr<safetensors::Checkpoint> checkpoint_;
  QuantizationConfig config_;
  std::map<std::string, Tensor, std::less<>> tensors_;
};

}  // namespace paramshard::weights

#endif  // PARAMSHARD_COMMON_WEIGHTS_WEIGHTS_H_
