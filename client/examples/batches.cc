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
  return nlohmann::json{{"epoch", epoch}, {"batch", batch}, {"loss_sum", loss_sum}, {"loss_count", loss_count}}.dump();
}

absl::StatusOr<TrainingPosition> TrainingPosition::FromJson(const std::string& text) {
  const nlohmann::json json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  const auto is_number = [&json](const char* key) {
    return json.is_object() && json.contains(key) && json[key].is_number();
  };
  for (const char* key : {"epoch", "batch", "loss_sum", "loss_count"}) {
    if (!is_number(key)) {
      return absl::InvalidArgumentError(
          absl::StrCat("training position: a number ", key, " expected, got \"", text, "\""));
    }
  }
  return TrainingPosition{
      .epoch = json["epoch"], .batch = json["batch"], .loss_sum = json["loss_sum"], .loss_count = json["loss_count"]};
}

Batches::Batches(const DataSet* data, int64_t batch_size, uint64_t seed)
    : data_(data), batch_size_(batch_size), seed_(seed) {}

int64_t Batches::batches_per_epoch() const { return (data_->size() + batch_size_ - 1) / batch_size_; }

// Fisher and Yates. std::shuffle is free to differ between standard libraries.
std::vector<int64_t> Batches::Order(int64_t epoch) const {
  std::vector<int64_t> order(data_->size());
  std::iota(order.begin(), order.end(), 0);
  std::seed_seq seeds{seed_ & 0xffffffff, seed_ >> 32, static_cast<uint64_t>(epoch)};
  std::mt19937_64 generator(seeds);
  for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[generator() % i]);
  return order;
}

Batch Batches::Take(int64_t epoch, int64_t batch, int rank, int world_size) const {
  const std::vector<int64_t> order = Order(epoch);
  const int64_t begin = batch * batch_size_;
  Batch result;
  result.global_samples = std::min(batch_size_, data_->size() - begin);
  const int64_t first = begin + result.global_samples * rank / world_size;
  const int64_t last = begin + result.global_samples * (rank + 1) / world_size;
  for (int64_t i = first; i < last; ++i) {
    const absl::Span<const float> sample = data_->sample(order[i]);
    result.pixels.insert(result.pixels.end(), sample.begin(), sample.end());
    result.labels.push_back(data_->labels[order[i]]);
  }
  return result;
}

}  // namespace paramshard::examples
