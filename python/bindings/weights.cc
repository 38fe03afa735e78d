#include "python/bindings/weights.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/safetensors/dtype.h"
#include "common/weights/quantization_config.h"
#include "common/weights/weights.h"
#include "python/bindings/calls.h"

namespace paramshard::python {
namespace {

namespace nb = nanobind;
using nb::dlpack::dtype_code;
using safetensors::Dtype;
using weights::Weights;

// Returns the type of NumPy for a tensor that is read without decoding.
nb::dlpack::dtype TypeOf(Dtype dtype) {
  const auto bits = static_cast<uint8_t>(safetensors::DtypeBits(dtype));
  const auto type = [&](dtype_code code) { return nb::dlpack::dtype{static_cast<uint8_t>(code), bits, 1}; };
  switch (dtype) {
    case Dtype::kBool:
      return type(dtype_code::Bool);
    case Dtype::kI8:
    case Dtype::kI16:
    case Dtype::kI32:
    case Dtype::kI64:
      return type(dtype_code::Int);
    case Dtype::kC64:
      return type(dtype_code::Complex);
    case Dtype::kF64:
      return type(dtype_code::Float);
    default:
      return type(dtype_code::UInt);
  }
}

// Memory without initial values.
struct Buffer {
  explicit Buffer(size_t size_bytes) : bytes(new uint8_t[size_bytes]) {}
  std::unique_ptr<uint8_t[]> bytes;
};

nb::object Read(const Weights& weights, const std::string& name) {
  const Weights::Tensor* const tensor = weights.Find(name);
  if (tensor == nullptr) Raise(absl::NotFoundError(absl::StrCat("tensor ", name, " not found")));
  const bool is_carried = tensor->kind == Weights::Kind::kCarried;
  const MatrixShape matrix = tensor->matrix();
  const int64_t size_bytes = is_carried ? tensor->data->info->size_bytes : matrix.rows * matrix.cols * 4;
  auto buffer = std::make_unique<Buffer>(size_bytes);
  Check(Unlocked([&] {
    return is_carried ? tensor->data->Read(0, absl::MakeSpan(buffer->bytes.get(), size_bytes))
                      : weights.ReadRows(*tensor, {0, matrix.rows}, reinterpret_cast<float*>(buffer->bytes.get()));
  }));
  const std::vector<size_t> shape(tensor->shape.begin(), tensor->shape.end());
  uint8_t* const data = buffer->bytes.get();
  const nb::capsule owner(buffer.release(), [](void* held) noexcept { delete static_cast<Buffer*>(held); });
  const nb::dlpack::dtype type = is_carried ? TypeOf(tensor->dtype) : nb::dtype<float>();
  return nb::cast(nb::ndarray<nb::numpy>(data, shape.size(), shape.data(), owner, nullptr, type));
}

nb::dict Tensors(nb::handle self) {
  nb::dict tensors;
  for (const auto& [name, tensor] : nb::cast<const Weights&>(self).tensors()) {
    tensors[nb::str(name.data(), name.size())] = nb::cast(&tensor, nb::rv_policy::reference_internal, self);
  }
  return tensors;
}

std::string Text(const std::string& text) { return text; }

std::string QuantizationOf(const std::string& folder) {
  const weights::QuantizationConfig config = Take(weights::ReadQuantizationConfig(folder));
  if (!config.unknown.empty()) return config.unknown;
  if (config.method.empty() || !config.is_compressed) return "";
  return absl::StrCat("quantization_config with quant_method ", config.method);
}

}  // namespace

void BindWeights(nb::module_& module) {
  module.def("quantization_of", &QuantizationOf, nb::arg("folder"),
             "Describes quantized weights by config.json in a folder, for messages; empty if weights are plain. "
             "InvalidArgumentError for a config.json that is no JSON object.");
  nb::class_<Weights::Tensor>(module, "WeightTensor",
                              "A tensor of Weights, described by its values and not by its layout in files.")
      .def_prop_ro("name", [](const Weights::Tensor& tensor) { return Text(tensor.name); })
      .def_prop_ro(
          "shape", [](const Weights::Tensor& tensor) { return nb::tuple(nb::cast(tensor.shape)); },
          nb::sig("def shape(self) -> tuple[int, ...]"))
      .def_prop_ro(
          "dtype", [](const Weights::Tensor& tensor) { return std::string(safetensors::DtypeName(tensor.dtype)); },
          "Stored type: \"BF16\", \"F8_E4M3\"; for a quantized tensor the type of its codes.")
      .def_prop_ro(
          "encoding", [](const Weights::Tensor& tensor) { return Text(tensor.encoding); },
          "Encoding of the values, for messages: \"BF16\", \"F8_E4M3 by 128 x 128\", \"MXFP4\".")
      .def_prop_ro(
          "file",
          [](const Weights::Tensor& tensor) {
            const bool is_whole = tensor.kind == Weights::Kind::kPlain && tensor.data->parts.size() == 1;
            return is_whole ? std::string(tensor.data->file->path()) : std::string();
          },
          "The file that has the values unencoded, in one piece; empty if there is none.")
      .def_prop_ro("is_number", &Weights::Tensor::is_number,
                   "True if read() gives float32; False for integers and the like, and for refused tensors.")
      .def_prop_ro(
          "refusal", [](const Weights::Tensor& tensor) { return std::string(tensor.refusal.message()); },
          "The error of read() if it refuses the tensor, else empty.");
  nb::class_<Weights>(module, "Weights",
                      "Weights of a folder of safetensors files, a file or an index, as common/weights/weights.h reads "
                      "them.")
      .def(
          "__init__",
          [](Weights* self, const std::string& path) {
            new (self) Weights(Take(Unlocked([&] { return Weights::Open(path); })));
          },
          nb::arg("path"))
      .def("tensors", &Tensors, nb::sig("def tensors(self) -> dict[str, WeightTensor]"), "By name.")
      .def("read", &Read, nb::arg("name"), nb::sig("def read(self, name: str) -> NDArray"),
           "The values, decoded, as a new float32 array of the tensor's shape; integers, booleans, float64 and complex "
           "numbers in their own type. InvalidArgumentError names a tensor that cannot be decoded; NotFoundError.")
      .def(
          "similar_name", [](const Weights& weights, const std::string& name) { return weights.SimilarName(name); },
          nb::arg("name"), "A name that differs by prefixes alone (\"module.\", \"_orig_mod.\"); empty without one.")
      .def_prop_ro(
          "notes", [](const Weights& weights) { return weights.checkpoint().notes(); },
          "For the user: files and tensors that were not read in favor of others.");
}

}  // namespace paramshard::python
