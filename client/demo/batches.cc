#include "client/demo/batches.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <random>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace paramshard::demo {
namespace {

// JSON has no NaN and no infinities: they are texts.
nlohmann::json RealToJson(double value) {
  return std::isfinite(value) ? nlohmann::json(value) : nlohmann::json(absl::StrCat(value));
}

std::optional<double> RealFromJson(const nlohmann::json& json) {
  if (json.is_number()) return json.get<double>();
  double value = 0;
  if (!json.is_string() || !absl::SimpleAtod(json.get<std::string>(), &value) || std::isfinite(value)) {
    return std::nullopt;
  }
  return value;
}

std::optional<int64_t> CountFromJson(const nlohmann::json& json) {
  if (!json.is_number_integer()) return std::nullopt;
  const auto count = json.get<int64_t>();
  return count < 0 ? std::nullopt : std::optional(count);
}

}  // namespace

std::string TrainingPosition::ToJson() const {
  return nlohmann::json{
      {"step", step}, {"reported_step", reported_step}, {"loss_sum", RealToJson(loss_sum)}, {"loss_count", loss_count}}
      .dump();
}

absl::StatusOr<TrainingPosition> TrainingPosition::FromJson(const std::string& text) {
  const nlohmann::json json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  const nlohmann::json object = json.is_object() ? json : nlohmann::json::object();
  const auto step = CountFromJson(object.value("step", nlohmann::json()));
  const auto reported_step = CountFromJson(object.value("reported_step", nlohmann::json()));
  const auto loss_sum = RealFromJson(object.value("loss_sum", nlohmann::json()));
  const auto loss_count = CountFromJson(object.value("loss_count", nlohmann::json()));
  if (step && reported_step && loss_sum && loss_count) {
    return TrainingPosition{
        .step = *step, .reported_step = *reported_step, .loss_sum = *loss_sum, .loss_count = *loss_count};
  }
  return absl::InvalidArgumentError(
      absl::StrCat("training position: want numbers step, reported_step, loss_sum and loss_count, got \"", text, "\""));
}

// Fisher and Yates. std::shuffle is free to differ between standard libraries.
std::vector<int64_t> Batches::Order(int64_t epoch) const {
  std::vector<int64_t> order(samples_);
  std::iota(order.begin(), order.end(), 0);
  std::seed_seq seeds{seed_ & 0xffffffff, seed_ >> 32, static_cast<uint64_t>(epoch)};
  std::mt19937_64 generator(seeds);
  for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[generator() % i]);
  return order;
}

Batch Batches::Take(int64_t step, int rank, int world_size) const {
  const std::vector<int64_t> order = Order(step / batches_per_epoch());
  const int64_t begin = step % batches_per_epoch() * batch_size_;
  const int64_t size = std::min(batch_size_, samples_ - begin);
  const auto first = order.begin() + begin + size * rank / world_size;
  const auto last = order.begin() + begin + size * (rank + 1) / world_size;
  return {.samples = std::vector<int64_t>(first, last), .global_samples = size};
}

}  // namespace paramshard::demo
