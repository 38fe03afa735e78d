#include "common/model/name_index.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace paramshard {

NameIndex::NameIndex(const ModelSpec& spec) : spec_(&spec) {
  for (int unit = 0; unit < static_cast<int>(spec.units.size()); ++unit) {
    units_.emplace(spec.units[unit].name, unit);
    const std::vector<ParameterSpec>& parameters = spec.units[unit].parameters;
    for (int i = 0; i < static_cast<int>(parameters.size()); ++i) {
      parameters_.emplace(parameters[i].name, ParameterPlace{.unit = unit, .parameter = i});
    }
  }
}

std::string NameIndex::UnitNames(const std::vector<int>& units) const {
  return absl::StrJoin(units, ", ", [this](std::string* out, int unit) { out->append(UnitName(unit)); });
}

absl::StatusOr<int> NameIndex::FindUnit(absl::string_view name) const {
  const auto found = units_.find(name);
  if (found != units_.end()) return found->second;
  return absl::NotFoundError(absl::StrCat("unit ", name, ": not found in model ", spec_->name));
}

absl::StatusOr<int> NameIndex::FindParameter(int unit, absl::string_view name) const {
  const auto found = parameters_.find(name);
  if (found == parameters_.end()) {
    return absl::NotFoundError(absl::StrCat("parameter ", name, ": not found in unit ", UnitName(unit)));
  }
  const ParameterPlace& place = found->second;
  if (place.unit == unit) return place.parameter;
  return absl::NotFoundError(absl::StrCat("parameter ", name, ": not found in unit ", UnitName(unit),
                                          ": it belongs to unit ", UnitName(place.unit)));
}

const ParameterSpec* NameIndex::Find(absl::string_view parameter) const {
  const std::optional<ParameterPlace> place = PlaceOf(parameter);
  return place.has_value() ? &spec_->units[place->unit].parameters[place->parameter] : nullptr;
}

std::optional<ParameterPlace> NameIndex::PlaceOf(absl::string_view parameter) const {
  const auto found = parameters_.find(parameter);
  if (found == parameters_.end()) return std::nullopt;
  return found->second;
}

}  // namespace paramshard
