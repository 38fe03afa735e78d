#include "common/checkpoint/verification.h"

#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/checkpoint/step_folder.h"
#include "common/checkpoint/tensor_key.h"
#include "common/safetensors/page_buffer.h"
#include "kernels/base/status_macros.h"

namespace paramshard::checkpoint {
namespace {

// Returns true if `after` is damage to the next rows of the same tensor: the two are reported as one.
bool Continues(const Damage& before, const Damage& after) {
  return before.file == after.file && before.tensor == after.tensor && before.code == after.code &&
         before.rows.has_value() && after.rows.has_value() && before.rows->end == after.rows->begin;
}

void Add(Damage damage, std::vector<Damage>& damages) {
  if (!damages.empty() && Continues(damages.back(), damage)) {
    damages.back().rows->end = damage.rows->end;
  } else {
    damages.push_back(std::move(damage));
  }
}

// Returns the content hash of a master, over the fp32 rows that it and its remainders join to.
absl::StatusOr<ContentHash> HashMaster(const Reader& reader, const ParameterPlace& place) {
  const ParameterSpec& spec = reader.spec().units[place.unit].parameters[place.parameter];
  ContentHash hash;
  std::vector<uint8_t> remainders;
  const absl::Status status = reader.ReadRows(
      place.unit, place.parameter, ArrayKind::kMaster, {0, spec.rows()},
      [&](int64_t first_row, absl::Span<const uint8_t> weights) -> absl::Status {
        remainders.resize(weights.size());
        const int64_t rows = static_cast<int64_t>(weights.size()) / ShapeOf(spec, ArrayKind::kMaster)->row_bytes();
        RETURN_IF_ERROR(reader.ReadRows(place.unit, place.parameter, ArrayKind::kRemainder,
                                        {first_row, first_row + rows}, absl::MakeSpan(remainders)));
        hash += HashJoinedRows(first_row, spec.columns(), weights, remainders);
        return absl::OkStatus();
      });
  if (!status.ok()) return status;
  return hash;
}

Damage UnreadableMaster(const std::string& key, const absl::Status& status) {
  return {.tensor = key, .code = status.code(), .message = std::string(status.message())};
}

void CheckMasters(const Reader& reader, const std::set<std::string>& damaged, Verification& verification) {
  const auto& units = reader.spec().units;
  for (int unit = 0; unit < static_cast<int>(units.size()); ++unit) {
    for (int i = 0; i < static_cast<int>(units[unit].parameters.size()); ++i) {
      const ParameterSpec& parameter = units[unit].parameters[i];
      const std::string key = TensorKey(parameter, ArrayKind::kMaster);
      if (parameter.master_type != MasterType::kBF16Remainder || damaged.count(key) != 0 ||
          damaged.count(TensorKey(parameter, ArrayKind::kRemainder)) != 0) {
        continue;
      }
      const absl::StatusOr<ContentHash> hash = HashMaster(reader, {unit, i});
      if (!hash.ok()) {
        // Missing rows have been reported.
        if (damaged.empty()) Add(UnreadableMaster(key, hash.status()), verification.damages);
        continue;
      }
      const auto expected = reader.manifest().tensors.find(key);
      if (expected == reader.manifest().tensors.end() || *hash == expected->second) continue;
      Add({.file = kManifestFileName,
           .tensor = key,
           .message = absl::StrCat("want content hash ", HashText(expected->second.sum), " of fp32 rows, got ",
                                   HashText(hash->sum))},
          verification.damages);
    }
  }
}

}  // namespace

Verification VerifyCheckpoint(const std::string& folder, const Reader::Options& options,
                              absl::FunctionRef<void(int64_t done_bytes, int64_t all_bytes)> progress) {
  Verification verification;
  std::set<std::string> damaged;
  const auto report = [&](const Damage& damage) {
    damaged.insert(damage.tensor);
    Add(damage, verification.damages);
  };
  const std::optional<Reader> reader = Reader::OpenDamaged(folder, options, report);
  if (!reader.has_value()) return verification;
  const std::vector<Reader::Place> places = reader->Places();
  int64_t all_bytes = 0;
  std::set<absl::string_view> tensors;
  for (const Reader::Place& place : places) {
    all_bytes += place.rows.size_bytes();
    tensors.insert(place.key);
  }
  safetensors::PageBuffer buffer;
  for (const Reader::Place& place : places) {
    if (!IsCommonFileName(reader->manifest().files[place.file].name)) {
      reader->Check(place, buffer, report);
    }
    verification.read_bytes += place.rows.size_bytes();
    progress(verification.read_bytes, all_bytes);
  }
  CheckMasters(*reader, damaged, verification);
  verification.tensor_count = static_cast<int64_t>(tensors.size());
  verification.manifest = reader->manifest();
  return verification;
}

}  // namespace paramshard::checkpoint
