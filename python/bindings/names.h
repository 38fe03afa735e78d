// The enumerations of client.h as Python writes them: lower-case words, and formats and types by their own names.
#ifndef PARAMSHARD_PYTHON_BINDINGS_NAMES_H_
#define PARAMSHARD_PYTHON_BINDINGS_NAMES_H_

#include <nanobind/nanobind.h>

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "client/client.h"
#include "python/bindings/streams.h"

namespace paramshard::python {

template <typename T>
using Name = std::pair<T, const char*>;

// By the type of the first argument, which is not read.
absl::Span<const Name<Format>> NamesOf(Format);
absl::Span<const Name<ElementType>> NamesOf(ElementType);
absl::Span<const Name<Plane>> NamesOf(Plane);
absl::Span<const Name<ScaleLayout>> NamesOf(ScaleLayout);
absl::Span<const Name<DelayedScaling::Algorithm>> NamesOf(DelayedScaling::Algorithm);
absl::Span<const Name<DecodedElement>> NamesOf(DecodedElement);
absl::Span<const Name<MomentType>> NamesOf(MomentType);
absl::Span<const Name<MasterType>> NamesOf(MasterType);
absl::Span<const Name<GradientType>> NamesOf(GradientType);
absl::Span<const Name<GradientReduction>> NamesOf(GradientReduction);
absl::Span<const Name<GradientSums>> NamesOf(GradientSums);
absl::Span<const Name<Placement>> NamesOf(Placement);
absl::Span<const Name<Optimizer>> NamesOf(Optimizer);
absl::Span<const Name<MuonRate>> NamesOf(MuonRate);
absl::Span<const Name<Initializer>> NamesOf(Initializer);
absl::Span<const Name<Phase>> NamesOf(Phase);
absl::Span<const Name<TensorKind>> NamesOf(TensorKind);
absl::Span<const Name<TensorType>> NamesOf(TensorType);
absl::Span<const Name<SaveState>> NamesOf(SaveState);
absl::Span<const Name<SaveReason>> NamesOf(SaveReason);
absl::Span<const Name<ValueOrigin>> NamesOf(ValueOrigin);

// INVALID_ARGUMENT lists the names: "phase: want one of forward, backward, both, got up".
template <typename T>
absl::StatusOr<T> Parse(absl::string_view what, absl::string_view text) {
  std::string names;
  for (const auto& [value, name] : NamesOf(T())) {
    if (text == name) return value;
    absl::StrAppend(&names, names.empty() ? "" : ", ", name);
  }
  return absl::InvalidArgumentError(absl::StrCat(what, ": want one of ", names, ", got ", text));
}

// Returns "unknown" for a number that was cast to the type.
template <typename T>
const char* NameOf(T value) {
  for (const auto& [known, name] : NamesOf(T())) {
    if (known == value) return name;
  }
  return "unknown";
}

// Adds the names to a module, each enumeration as a tuple in the order of its numbers: FORMATS, OPTIMIZERS, ...
void BindNames(nanobind::module_& module);

}  // namespace paramshard::python

#endif  // PARAMSHARD_PYTHON_BINDINGS_NAMES_H_
