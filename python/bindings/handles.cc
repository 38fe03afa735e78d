#include "python/bindings/handles.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/base/status_macros.h"
#include "python/bindings/arrays.h"
#include "python/bindings/calls.h"
#include "python/bindings/names.h"
#include "python/bindings/output_ranges.h"
#include "python/bindings/streams.h"
#include "python/bindings/types.h"

namespace paramshard::python {
namespace {

namespace nb = nanobind;

ArrayShapes ShapesOf(SharedModel& shared, const std::string& parameter, int64_t rows, int64_t columns) {
  ArrayShapes shapes{.rows = rows, .columns = columns, .parameter = {}};
  Check(shared.WithModel([&](Model& model) {
    for (const UnitSpec& unit : model.spec().units) {
      for (const ParameterSpec& spec : unit.parameters) {
        if (spec.name == parameter) shapes.parameter = spec.shape;
      }
    }
    return absl::OkStatus();
  }));
  return shapes;
}

// One plane of a unit that is still held.
class PyMatrix {
 public:
  PyMatrix(std::shared_ptr<HeldUnit> unit, std::string parameter, const Matrix& matrix)
      : unit_(std::move(unit)), parameter_(std::move(parameter)), matrix_(matrix) {}

  const Matrix& matrix() const { return matrix_; }
  std::string ToString() const {
    return absl::StrFormat("<paramshard.Matrix %s: %d x %d %s, %s>", parameter_, matrix_.rows, matrix_.columns,
                           NameOf(matrix_.encoding.format), NameOf(matrix_.plane));
  }

  Result<named::Any> Data() const { return NativeArray(DataMemory()); }
  Result<named::Any> TypedData() const { return DLPackArray(DataMemory()); }
  Result<named::Any> Scales() const {
    CheckHeld();
    return matrix_.scales.empty() ? nb::none() : NativeArray(ScaleMemory());
  }
  Result<named::Any> TypedScales() const {
    CheckHeld();
    return matrix_.scales.empty() ? nb::none() : DLPackArray(ScaleMemory());
  }
  Result<named::Any> Amax() const {
    CheckHeld();
    if (matrix_.amax.empty()) return nb::none();
    return NativeArray(Owned(AmaxOf(matrix_, nullptr), matrix_.amax));
  }

  Result<named::Array> Decode(Argument<named::Floats> out) const {
    if (!out.is_none()) {
      CheckHeld();
      const WritableHostArray array = OutputArray(absl::StrCat("decode ", parameter_), out,
                                                  ShapesOf(*unit_->model(), parameter_, matrix_.rows, matrix_.columns));
      DecodeTo(static_cast<float*>(array.data()));
      return nb::borrow(out);
    }
    std::vector<uint8_t> values(matrix_.rows * matrix_.columns * sizeof(float));
    DecodeTo(reinterpret_cast<float*>(values.data()));
    return OwnedArray(std::move(values), Shape(), TypeOf(ScaleType::kFloat32));
  }

  Result<named::Array> Transpose() const {
    const int64_t row_bytes = DataBytes(matrix_.encoding, 1, matrix_.rows);
    std::vector<uint8_t> bytes(matrix_.columns * row_bytes);
    Check(unit_->Run([&](GatheredUnit&) { return matrix_.Transpose(absl::MakeSpan(bytes)); }));
    return OwnedArray(std::move(bytes), {static_cast<size_t>(matrix_.columns), static_cast<size_t>(row_bytes)},
                      BytesType());
  }

  Result<named::Array> CopyScales(const std::string& layout_name,
                                  const std::optional<std::string>& operand_name) const {
    const ScaleLayout layout = Take(Parse<ScaleLayout>("layout", layout_name));
    std::optional<Plane> operand;
    if (operand_name.has_value()) operand = Take(Parse<Plane>("operand", *operand_name));
    std::vector<uint8_t> bytes(Take(matrix_.ScaleLayoutBytes(layout, operand)));
    Check(unit_->Run([&](GatheredUnit&) { return matrix_.CopyScales(layout, absl::MakeSpan(bytes), operand); }));
    const size_t size = bytes.size();
    return OwnedArray(std::move(bytes), {size}, BytesType());
  }

 private:
  static nb::dlpack::dtype BytesType() { return nb::dtype<uint8_t>(); }

  std::vector<size_t> Shape() const {
    return {static_cast<size_t>(matrix_.rows), static_cast<size_t>(matrix_.columns)};
  }
  void DecodeTo(float* values) const {
    Check(unit_->Run([&](GatheredUnit&) { return matrix_.Decode(values); }));
  }
  void CheckHeld() const {
    Check(unit_->Run([](GatheredUnit&) { return absl::OkStatus(); }));
  }

  ArrayMemory DataMemory() const {
    CheckHeld();
    return DataOf(matrix_, Take(unit_->model()->KeepMapped()));
  }
  // Scales of several ranks are put together in memory of the handle: it is smaller than what would be kept for it.
  ArrayMemory ScaleMemory() const { return Owned(ScalesOf(matrix_, nullptr), matrix_.scales); }
  // In host memory a copy.
  ArrayMemory Owned(ArrayMemory memory, absl::Span<const uint8_t> bytes) const {
    if (matrix_.gpu >= 0) {
      memory.owner = Take(unit_->model()->KeepMapped());
    } else {
      auto copy = std::make_shared<std::vector<uint8_t>>();
      Check(unit_->Run([&](GatheredUnit&) {
        copy->assign(bytes.begin(), bytes.end());
        return absl::OkStatus();
      }));
      memory.data = copy->data();
      memory.owner = copy;
    }
    return memory;
  }

  const std::shared_ptr<HeldUnit> unit_;
  const std::string parameter_;
  const Matrix matrix_;
};

PyMatrix GetMatrix(const PyGatheredUnit& unit, const std::string& parameter, const std::optional<std::string>& name) {
  std::optional<Plane> plane;
  if (name.has_value()) plane = Take(Parse<Plane>("plane", *name));
  return {unit.held(), parameter,
          Take(unit.held()->Run([&](GatheredUnit& gathered) { return gathered.Get(parameter, plane); }))};
}

bool IsReady(const PyGatheredUnit& unit) {
  return Take(unit.held()->Run([](GatheredUnit& gathered) -> absl::StatusOr<bool> { return gathered.Ready(); }));
}

void WaitForUnit(const PyGatheredUnit& unit, std::optional<StreamAddress> stream = std::nullopt) {
  Check(unit.held()->Run(
      [&](GatheredUnit& gathered) { return stream.has_value() ? WaitOn(gathered, *stream) : gathered.Wait(); }));
}

// Parameter, address, and type of what is decoded.
using DecodedTuple = std::tuple<std::string, uintptr_t, std::string>;

void DecodeUnit(const PyGatheredUnit& unit, const std::vector<DecodedTuple>& outputs, StreamAddress stream) {
  std::vector<DecodedElement> types;
  for (const auto& [parameter, address, type] : outputs) types.push_back(Take(Parse<DecodedElement>("type", type)));
  Check(unit.held()->Run([&](GatheredUnit& gathered) -> absl::Status {
    std::vector<DecodedOutput> decoded;
    std::vector<OutputRange> ranges;
    for (size_t i = 0; i < outputs.size(); ++i) {
      const auto& [parameter, address, type] = outputs[i];
      ASSIGN_OR_RETURN(const Matrix matrix, gathered.Get(parameter));
      decoded.push_back({matrix, types[i], address});
      const int64_t element_bytes = types[i] == DecodedElement::kFP32 ? 4 : 2;
      ranges.push_back({parameter, address, matrix.rows * matrix.columns * element_bytes, element_bytes});
    }
    RETURN_IF_ERROR(CheckOutputRanges("decode", std::move(ranges), MemoryPlace::kGpu));
    return DecodeOn(decoded, stream);
  }));
}

void ReleaseUnit(const PyGatheredUnit& unit, std::optional<StreamAddress> stream) {
  if (stream.has_value() && unit.held()->is_held()) {
    Check(unit.held()->Run([&](GatheredUnit& gathered) { return ReleaseOn(gathered, *stream); }));
  }
  unit.held()->Release();
}

void PushGradients(const PyGradients& gradients, std::optional<StreamAddress> stream) {
  Check(gradients.held().Run(
      [&](UnitGradients& slot) { return stream.has_value() ? PushOn(slot, *stream) : slot.Push(); }));
  gradients.held().Release();
}

GradientView ViewOf(const PyGradients& gradients, const std::string& parameter) {
  return Take(gradients.held().Run([&](UnitGradients& slot) { return slot.Get(parameter); }));
}

ArrayMemory GradientMemory(const PyGradients& gradients, const std::string& parameter) {
  const GradientView view = ViewOf(gradients, parameter);
  return {.data = view.data.data(),
          .shape = {static_cast<size_t>(view.rows), static_cast<size_t>(view.columns)},
          .type = TypeOf(view.type),
          .gpu = view.gpu,
          .read_only = false,
          .owner = Take(gradients.held().model()->KeepMapped())};
}

Result<named::Any> NativeGradient(const PyGradients& gradients, const std::string& parameter) {
  return NativeArray(GradientMemory(gradients, parameter));
}

void WriteGradient(const PyGradients& gradients, const std::string& parameter, Argument<named::Array> object) {
  const GradientView view = ViewOf(gradients, parameter);
  const HostFloats values = InputArray(absl::StrCat("write gradient of ", parameter), object,
                                       ShapesOf(*gradients.held().model(), parameter, view.rows, view.columns));
  Check(gradients.held().Run(
      [&](UnitGradients&) { return view.Write(absl::MakeConstSpan(values.data(), values.size())); }));
}

void BindMatrix(nb::module_& module) {
  nb::class_<PyMatrix>(module, "Matrix",
                       "One plane of one gathered parameter, in the memory of a slot. Its arrays end with the unit: "
                       "after `release` asking for one raises, and one that is still there shows other bytes.")
      .def_prop_ro("rows", [](const PyMatrix& self) { return self.matrix().rows; })
      .def_prop_ro("columns", [](const PyMatrix& self) { return self.matrix().columns; })
      .def_prop_ro("format", [](const PyMatrix& self) { return NameOf(self.matrix().encoding.format); })
      .def_prop_ro("element", [](const PyMatrix& self) { return NameOf(self.matrix().encoding.element); })
      .def_prop_ro("plane", [](const PyMatrix& self) { return NameOf(self.matrix().plane); })
      .def_prop_ro(
          "gpu", [](const PyMatrix& self) { return self.matrix().gpu; },
          "This process's index of its GPU; -1: host memory.")
      .def_prop_ro("data", &PyMatrix::Data,
                   "The encoded elements, [rows, columns] and read-only, without a copy: in host memory a NumPy array, "
                   "of unsigned integers where NumPy has no such type (NVFP4_2D: two elements a byte); else as "
                   "`typed_data`. Writing through a framework that forgets that it is read-only ends the process.")
      .def_prop_ro("typed_data", &PyMatrix::TypedData, "The same as an object with __dlpack__, of its own type.")
      .def_prop_ro("scales", &PyMatrix::Scales,
                   "The compact scales, as `data`; a copy in host memory; None where the format has none.")
      .def_prop_ro("typed_scales", &PyMatrix::TypedScales, "The same as an object with __dlpack__.")
      .def_prop_ro("amax", &PyMatrix::Amax, "NVFP4_2D: the amax of the whole tensor, one float32; else None.")
      .def("decode", &PyMatrix::Decode, nb::arg("out") = nb::none(),
           "The decoded values, [rows, columns] float32 in host memory: `out`, or a new NumPy array.")
      .def("transpose", &PyMatrix::Transpose,
           "The data of an 8-bit or 4-bit format transposed, as bytes; UnimplementedError for others.")
      .def("copy_scales", &PyMatrix::CopyScales, nb::arg("layout"), nb::arg("operand") = nb::none(),
           "The scales as a product reads them, as bytes: `layout` is compact, padded_128x4 or swizzled_128x4; "
           "`operand` (row_wise or column_wise) the side that reads them, by default the plane's.")
      .def("__repr__", &PyMatrix::ToString);
}

void BindGatheredUnit(nb::module_& module) {
  nb::class_<PyGatheredUnit>(module, "GatheredUnit",
                             "A unit's parameters, being gathered or gathered: holds a slot until it is released. As a "
                             "context manager it waits at the beginning and releases at the end.")
      .def("wait", &WaitForUnit, nb::arg("stream") = nb::none(),
           "Waits until all pieces are there. `stream`, the address of a CUDA stream of `Model.gpu`: that stream waits "
           "before later work on it, and this call returns at once. AbortedError and others if the epoch has ended; a "
           "stream then goes on with meaningless memory, and `Model.check` raises once it is synchronized.")
      .def_prop_ro("ready", &IsReady, "True if `wait` would return at once.")
      .def("get", &GetMatrix, nb::arg("parameter"), nb::arg("plane") = nb::none(),
           "One parameter's matrix, after `wait`. `plane` is row_wise or column_wise; None: by the gather's phase. "
           "NotFoundError for another unit's parameter, InvalidArgumentError for a plane that was not gathered.")
      .def("__getitem__", [](const PyGatheredUnit& self,
                             const std::string& parameter) { return GetMatrix(self, parameter, std::nullopt); })
      .def("decode_to", &DecodeUnit, nb::arg("outputs"), nb::arg("stream"),
           "Enqueues decoding on a CUDA stream that `wait` was given. `outputs`: of each parameter its name, an "
           "address in memory of the GPU that has room for rows x columns elements, and their type, FP32 or BF16.")
      .def("release", &ReleaseUnit, nb::arg("stream") = nb::none(),
           "Gives the slot back: at once, or when the CUDA stream at this address gets there. Idempotent.")
      .def("__enter__",
           [](Result<PyGatheredUnit> self) {
             WaitForUnit(nb::cast<const PyGatheredUnit&>(self));
             return self;
           })
      .def(
          "__exit__", [](const PyGatheredUnit& self, const nb::args&) { self.held()->Release(); }, kExitSignature);
}

void BindGradients(nb::module_& module) {
  nb::class_<PyGradients>(module, "UnitGradients",
                          "A gradient slot of one unit, zeroed when handed out: write or add up gradients, then push "
                          "it. Dropped without a push it is given back unused.")
      .def(
          "get", &NativeGradient, nb::arg("parameter"),
          "The gradient's memory, [rows, columns] and writable: in host memory a NumPy array of float32, or of the bit "
          "patterns of BF16 as uint16. NotFoundError for another unit's parameter, InvalidArgumentError for a frozen "
          "one.")
      .def("__getitem__", &NativeGradient)
      .def(
          "typed",
          [](const PyGradients& self, const std::string& parameter) -> Result<named::Any> {
            return DLPackArray(GradientMemory(self, parameter));
          },
          nb::arg("parameter"), "The same as an object with __dlpack__, of its own type.")
      .def(
          "address",
          [](const PyGradients& self, const std::string& parameter) {
            return reinterpret_cast<uintptr_t>(ViewOf(self, parameter).data.data());
          },
          nb::arg("parameter"),
          "The address of the same memory. Slots keep their addresses as long as the model is open.")
      .def("write", &WriteGradient, nb::arg("parameter"), nb::arg("values"),
           "Stores floating-point values of the parameter's shape or of [rows, columns], rounded to the gradient's "
           "type. InvalidArgumentError for another shape, and for integers: bit patterns are written through `get`.")
      .def(
          "mark_absent",
          [](const PyGradients& self, const std::string& parameter) {
            Check(self.held().Run([&](UnitGradients& slot) { return slot.MarkAbsent(parameter); }));
          },
          nb::arg("parameter"), "Marks a parameter without a gradient in this push: this rank adds nothing to the sum.")
      .def("push", &PushGradients, nb::arg("stream") = nb::none(),
           "Hands the slot to the daemon, and returns at once; with the address of a CUDA stream, when the stream gets "
           "there. Pushes of a unit between two commits add up.")
      .def(
          "release", [](const PyGradients& self) { self.held().Release(); }, "Gives the slot back unused.")
      .def("__enter__", &Itself<PyGradients>)
      .def(
          "__exit__", [](const PyGradients& self, const nb::args&) { self.held().Release(); }, kExitSignature);
}

void BindCommits(nb::module_& module) {
  nb::class_<StepResult>(module, "StepResult", "The answer of a commit: the same on all ranks.")
      .def_ro("commit_number", &StepResult::commit_number)
      .def_ro("version", &StepResult::version, "Number of commits that were applied.")
      .def_ro("skipped", &StepResult::skipped, "True if a gradient was not finite: nothing has changed.")
      .def_ro("gradient_norm", &StepResult::gradient_norm, "Global norm of all parameters, unscaled, before clipping.")
      .def_ro("non_finite_count", &StepResult::non_finite_count, "Number of gradient elements that are not finite.")
      .def("__repr__", [](const StepResult& self) {
        return absl::StrFormat("<paramshard.StepResult commit %d, version %d%s, gradient norm %g>", self.commit_number,
                               self.version, self.skipped ? ", skipped" : "", self.gradient_norm);
      });
  nb::class_<PyPendingCommit>(module, "PendingCommit", "The coming answer of a commit.")
      .def("wait", &PyPendingCommit::Wait,
           "Waits for the daemon's answer; may be called again, for the last 64 commits. If the epoch ends before: "
           "AbortedError and others; `Model.commit_number` after opening again tells if the commit counted.")
      .def_prop_ro("ready", [](const PyPendingCommit& self) { return self.commit().Ready(); })
      .def_prop_ro("commit_number", [](const PyPendingCommit& self) { return self.commit().commit_number(); });
}

}  // namespace

StepResult PyPendingCommit::Wait() {
  return Take(model_->Run([&] { return commit_.Wait(); }));
}

void BindHandles(nb::module_& module) {
  BindMatrix(module);
  BindGatheredUnit(module);
  BindGradients(module);
  BindCommits(module);
}

}  // namespace paramshard::python
