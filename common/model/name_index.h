// Units and parameters of a model by their names.
#ifndef PARAMSHARD_COMMON_MODEL_NAME_INDEX_H_
#define PARAMSHARD_COMMON_MODEL_NAME_INDEX_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/model/model_spec.h"

namespace paramshard {

// A parameter's indices.
struct ParameterPlace {
  int unit = 0;
  int parameter = 0;  // within the unit
};

// Index of a model's units and parameters by name. Immutable. Refers to the spec, which outlives it and is not moved.
class NameIndex {
 public:
  explicit NameIndex(const ModelSpec& spec);

  const std::string& UnitName(int unit) const { return spec_->units[unit].name; }
  // Returns the names joined by commas.
  std::string UnitNames(const std::vector<int>& units) const;

  // Returns the unit's index. NOT_FOUND.
  absl::StatusOr<int> FindUnit(absl::string_view name) const;
  // Returns the parameter's index in the unit. NOT_FOUND, also for a parameter of a different unit.
  absl::StatusOr<int> FindParameter(int unit, absl::string_view name) const;
  // Returns null, or nullopt, if the model has no such parameter.
  const ParameterSpec* Find(absl::string_view parameter) const;
  std::optional<ParameterPlace> PlaceOf(absl::string_view parameter) const;

 private:
  const ModelSpec* spec_;
  absl::flat_hash_map<absl::string_view, int> units_;
  absl::flat_hash_map<absl::string_view, ParameterPlace> parameters_;
};

}  // namespace paramshard

#endif  // PARAMSHARD_COMMON_MODEL_NAME_INDEX_H_
