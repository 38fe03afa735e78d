#include "common/checkpoint/common_state.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "common/checkpoint/rank_file.h"
#include "common/checkpoint/safetensors_image.h"
#include "common/safetensors/header.h"
#include "kernels/base/status_macros.h"
#include "kernels/formats/format.h"

namespace paramshard::checkpoint {
namespace {

using safetensors::Dtype;
using safetensors::TensorInfo;

constexpr char kNumbers[] = "numbers";
constexpr char kLastAnswer[] = "last_answer";
constexpr char kLastNorm[] = "last_answer.norm";
constexpr char kStepCounts[] = "step_counts";
constexpr char kAmax[] = "book.amax";
constexpr char kScale[] = "book.scale";
constexpr char kIsFresh[] = "book.is_fresh";

std::string NextScaleKey(const std::string& name) { return absl::StrCat("book.next_scale/", name); }
std::string HistoryKey(const std::string& name) { return absl::StrCat("book.history/", name); }

absl::Status Invalid(absl::string_view key, absl::string_view message) {
  return absl::InvalidArgumentError(
      absl::StrCat(kCommonFileName, ": tensor ", safetensors::NameText(key), ": ", message));
}

int64_t HistoryLength(const ParameterSpec& spec) {
  return spec.encoding.delayed_scaling.value_or(DelayedScaling::Options()).history_length;
}
bool IsDelayed(const ParameterSpec& spec) { return spec.encoding.format == Format::kFP8TensorDelayed; }

const ParameterSpec& SpecOf(const ModelSpec& spec, const BookEntry& entry) {
  return spec.units[entry.unit].parameters[entry.parameter];
}

int64_t ParameterCount(const ModelSpec& spec) {
  int64_t count = 0;
  for (const UnitSpec& unit : spec.units) count += static_cast<int64_t>(unit.parameters.size());
  return count;
}

// Returns the book's entries, all with their defaults.
std::vector<BookEntry> EmptyBook(const ModelSpec& spec) {
  std::vector<BookEntry> book;
  for (int unit = 0; unit < static_cast<int>(spec.units.size()); ++unit) {
    const auto& parameters = spec.units[unit].parameters;
    for (int parameter = 0; parameter < static_cast<int>(parameters.size()); ++parameter) {
      if (NeedsAmax(EncodingOf(parameters[parameter].encoding).format)) {
        book.push_back({.unit = unit, .parameter = parameter});
      }
    }
  }
  return book;
}

absl::Status CheckBook(const ModelSpec& spec, const std::vector<BookEntry>& book) {
  const std::vector<BookEntry> expected = EmptyBook(spec);
  if (book.size() != expected.size()) {
    return Invalid(kAmax, absl::StrCat("want ", expected.size(), " entries, got ", book.size()));
  }
  for (size_t i = 0; i < book.size(); ++i) {
    const ParameterSpec& parameter = SpecOf(spec, expected[i]);
    if (book[i].unit != expected[i].unit || book[i].parameter != expected[i].parameter) {
      return Invalid(kAmax, absl::StrCat("entry ", i, ": want parameter ", parameter.name));
    }
    if (!book[i].delayed.has_value()) continue;
    const auto length = static_cast<int64_t>(book[i].delayed->history.size());
    if (!IsDelayed(parameter) || length != HistoryLength(parameter)) {
      return Invalid(HistoryKey(parameter.name),
                     absl::StrCat("want the history length of the spec's delayed scaling, got ", length));
    }
  }
  return absl::OkStatus();
}

// Takes tensors out of files by name.
class TensorsOfFiles {
 public:
  // `image` outlives it. INVALID_ARGUMENT for a tensor that another file has.
  absl::Status Add(const ParsedImage& image) {
    for (const TensorInfo& tensor : image.header.tensors) {
      const bool is_new = tensors_.try_emplace(tensor.name, Entry{&tensor, image.data}).second;
      if (!is_new) return Invalid(tensor.name, "is in more than one file");
    }
    return absl::OkStatus();
  }

  bool Has(const std::string& key) const { return tensors_.count(key) != 0; }

  // Takes a list of one dimension. A missing tensor is a list without elements.
  template <typename Value>
  absl::StatusOr<std::vector<Value>> Take(const std::string& key, Dtype dtype, int64_t count) {
    std::vector<Value> values;
    const auto found = tensors_.find(key);
    if (found == tensors_.end() && count == 0) return values;
    if (found == tensors_.end()) return Invalid(key, "not found");
    const TensorInfo& tensor = *found->second.info;
    if (tensor.dtype != dtype || tensor.shape != std::vector<int64_t>{count}) {
      return Invalid(key, absl::StrCat("want ", safetensors::DtypeName(dtype), " [", count, "], got ",
                                       safetensors::DtypeName(tensor.dtype), " of ", tensor.size_bytes, " bytes"));
    }
    values.resize(count);
    std::memcpy(values.data(), found->second.data.data() + tensor.offset_bytes, tensor.size_bytes);
    tensors_.erase(found);
    return values;
  }

  // Fails if a tensor was not taken.
  absl::Status Finish() const {
    if (tensors_.empty()) return absl::OkStatus();
    return Invalid(tensors_.begin()->first, "unknown tensor");
  }

 private:
  struct Entry {
    const TensorInfo* info;
    absl::string_view data;  // of its file
  };
  std::map<std::string, Entry> tensors_;
};

absl::Status ReadNumbers(TensorsOfFiles& tensors, CommonState& state) {
  ASSIGN_OR_RETURN(const std::vector<int64_t> numbers, tensors.Take<int64_t>(kNumbers, Dtype::kI64, 3));
  if (*std::min_element(numbers.begin(), numbers.end()) < 0 || numbers[1] > numbers[0] || numbers[2] > numbers[0]) {
    return Invalid(kNumbers, absl::StrCat("want 0 <= version, skipped <= commit number, got ", numbers[0], ", ",
                                          numbers[1], ", ", numbers[2]));
  }
  state.commit_number = numbers[0];
  state.version = numbers[1];
  state.skipped = numbers[2];
  if (!tensors.Has(kLastAnswer)) return absl::OkStatus();
  ASSIGN_OR_RETURN(const std::vector<int64_t> answer, tensors.Take<int64_t>(kLastAnswer, Dtype::kI64, 2));
  ASSIGN_OR_RETURN(const std::vector<double> norm, tensors.Take<double>(kLastNorm, Dtype::kF64, 1));
  if (answer[0] < 0 || answer[0] > 1 || answer[1] < 0) {
    return Invalid(kLastAnswer, absl::StrCat("want 0 or 1 and a count, got ", answer[0], ", ", answer[1]));
  }
  state.last_answer = {.skipped = answer[0] == 1, .gradient_norm = norm[0], .non_finite_count = answer[1]};
  return absl::OkStatus();
}

absl::Status ReadSteps(TensorsOfFiles& tensors, int64_t count, CommonState& state) {
  ASSIGN_OR_RETURN(state.step_counts, tensors.Take<int64_t>(kStepCounts, Dtype::kI64, count));
  for (const int64_t steps : state.step_counts) {
    if (steps < 0) return Invalid(kStepCounts, absl::StrCat("want counts >= 0, got ", steps));
  }
  return absl::OkStatus();
}

absl::Status ReadDelayed(TensorsOfFiles& tensors, const ParameterSpec& spec, BookEntry& entry) {
  const std::string key = HistoryKey(spec.name);
  if (!IsDelayed(spec) || !tensors.Has(key)) return absl::OkStatus();
  BookEntry::Delayed delayed;
  ASSIGN_OR_RETURN(delayed.history, tensors.Take<float>(key, Dtype::kF32, HistoryLength(spec)));
  ASSIGN_OR_RETURN(const std::vector<float> scale, tensors.Take<float>(NextScaleKey(spec.name), Dtype::kF32, 1));
  delayed.next_scale = scale[0];
  entry.delayed = std::move(delayed);
  return absl::OkStatus();
}

absl::Status ReadBook(TensorsOfFiles& tensors, const ModelSpec& spec, CommonState& state) {
  state.book = EmptyBook(spec);
  const auto count = static_cast<int64_t>(state.book.size());
  ASSIGN_OR_RETURN(const std::vector<float> amaxes, tensors.Take<float>(kAmax, Dtype::kF32, count));
  ASSIGN_OR_RETURN(const std::vector<float> scales, tensors.Take<float>(kScale, Dtype::kF32, count));
  ASSIGN_OR_RETURN(const std::vector<uint8_t> fresh, tensors.Take<uint8_t>(kIsFresh, Dtype::kU8, count));
  for (int64_t i = 0; i < count; ++i) {
    BookEntry& entry = state.book[i];
    entry.amax = amaxes[i];
    entry.scale = scales[i];
    if (fresh[i] > 1) return Invalid(kIsFresh, absl::StrCat("want 0 or 1, got ", int{fresh[i]}));
    entry.is_fresh = fresh[i] == 1;
    RETURN_IF_ERROR(ReadDelayed(tensors, SpecOf(spec, entry), entry));
  }
  return absl::OkStatus();
}

}  // namespace

std::string CommonFileName(int index) {
  return index == 0 ? kCommonFileName : absl::StrCat("common-", index, ".safetensors");
}

bool IsCommonFileName(absl::string_view name) { return absl::StartsWith(name, "common"); }

absl::StatusOr<std::vector<std::string>> SerializeCommonState(const ModelSpec& spec, const CommonState& state,
                                                              int64_t max_header_bytes) {
  if (static_cast<int64_t>(state.step_counts.size()) != ParameterCount(spec)) {
    return Invalid(kStepCounts, absl::StrCat("want ", ParameterCount(spec), " counts, got ", state.step_counts.size()));
  }
  RETURN_IF_ERROR(CheckBook(spec, state.book));
  std::vector<SafetensorsImage> images(1);
  const auto add = [&]<typename Value>(std::string key, Dtype dtype, const std::vector<Value>& values) {
    if (images.back().max_header_bytes() + MaxEntryBytes(key) > max_header_bytes) images.emplace_back();
    images.back().Add<Value>(std::move(key), dtype, values);
  };
  add(kNumbers, Dtype::kI64, std::vector<int64_t>{state.commit_number, state.version, state.skipped});
  if (state.last_answer.has_value()) {
    add(kLastAnswer, Dtype::kI64,
        std::vector<int64_t>{state.last_answer->skipped, state.last_answer->non_finite_count});
    add(kLastNorm, Dtype::kF64, std::vector<double>{state.last_answer->gradient_norm});
  }
  add(kStepCounts, Dtype::kI64, state.step_counts);
  std::vector<float> amaxes;
  std::vector<float> scales;
  std::vector<uint8_t> fresh;
  for (const BookEntry& entry : state.book) {
    amaxes.push_back(entry.amax);
    scales.push_back(entry.scale);
    fresh.push_back(entry.is_fresh);
    if (!entry.delayed.has_value()) continue;
    const std::string& name = SpecOf(spec, entry).name;
    add(NextScaleKey(name), Dtype::kF32, std::vector<float>{entry.delayed->next_scale});
    add(HistoryKey(name), Dtype::kF32, entry.delayed->history);
  }
  add(kAmax, Dtype::kF32, amaxes);
  add(kScale, Dtype::kF32, scales);
  add(kIsFresh, Dtype::kU8, fresh);
  std::vector<std::string> files;
  for (const SafetensorsImage& image : images) files.push_back(image.Bytes());
  return files;
}

absl::StatusOr<CommonState> ParseCommonState(const ModelSpec& spec, absl::Span<const std::string> files) {
  std::vector<ParsedImage> images;
  for (size_t i = 0; i < files.size(); ++i) {
    absl::StatusOr<ParsedImage> image = ParseImage(files[i]);
    if (!image.ok()) {
      return absl::Status(image.status().code(),
                          absl::StrCat(CommonFileName(static_cast<int>(i)), ": ", image.status().message()));
    }
    images.push_back(*std::move(image));
  }
  TensorsOfFiles tensors;
  for (const ParsedImage& image : images) RETURN_IF_ERROR(tensors.Add(image));
  CommonState state;
  RETURN_IF_ERROR(ReadNumbers(tensors, state));
  RETURN_IF_ERROR(ReadSteps(tensors, ParameterCount(spec), state));
  RETURN_IF_ERROR(ReadBook(tensors, spec, state));
  RETURN_IF_ERROR(tensors.Finish());
  return state;
}

int64_t MaxCommonStateBytes(const ModelSpec& spec) {
  int64_t bytes = safetensors::kLengthBytes + safetensors::kMaxHeaderBytes;
  for (const UnitSpec& unit : spec.units) {
    for (const ParameterSpec& parameter : unit.parameters) {
      bytes += 32 + (IsDelayed(parameter) ? HistoryLength(parameter) * static_cast<int64_t>(sizeof(float)) : 0);
    }
  }
  return bytes + 64;
}

}  // namespace paramshard::checkpoint
