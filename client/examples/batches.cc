#include "client/examples/batches.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace paramshard::examples {

std::string TrainingPosition::ToJson() const {
  return nlohmann::json{
      {"step", step}, {"reported_step", reported_step}, {"loss_sum", loss_sum}, {"loss_count", loss_count}}
      .dump();
}

absl::StatusOr<TrainingPosition> TrainingPosition::FromJson(const std::string& text) {
  const nlohmann::json json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  const auto is_number = [&json](const char* key) {
    return json.is_object() && json.contains(key) && json[key].is_number();
  };
  for (const char* key : {"step", "reported_step", "loss_sum", "loss_count"}) {
    if (!is_number(key)) {
      return absl::InvalidArgumentError(
          absl::StrCat("training position: a number ", key, " expected, got \"", text, "\""));
    }
  }
  return TrainingPosition{.step = json["step"],
                          .reported_step = json["reported_step"],
                          .loss_sum = json["loss_sum"],
                          .loss_count = json["loss_count"]};
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

}  // namespace paramshard::examples
