// Records of a model's recent saves.
#ifndef PARAMSHARD_SERVER_CHECKPOINTS_SAVE_RECORDS_H_
#define PARAMSHARD_SERVER_CHECKPOINTS_SAVE_RECORDS_H_

#include <cstdint>
#include <deque>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "server/models/model_saver.h"
#include "server/observe/metric_registry.h"

namespace paramshard::server {

// Not thread-safe.
class SaveRecords {
 public:
  // `metrics` outlives the records.
  SaveRecords(std::string model, MetricRegistry& metrics) : model_(std::move(model)), metrics_(metrics) {}

  // Numbers the record. If there are too many, drops the oldest that is over, skipped ones first: a slow disk makes
  // many of them.
  SaveRecord& Add(SaveRecord record);
  // Returns null if the record is no longer kept.
  SaveRecord* Find(int64_t number);
  const SaveRecord* Find(int64_t number) const;
  // NOT_FOUND if the record is no longer kept.
  absl::StatusOr<SaveRecord> Get(int64_t number) const;
  const std::deque<SaveRecord>& all() const { return records_; }

  // Counts and logs a save that is over.
  void Close(const SaveRecord& record);
  const SaveCounts& counts() const { return counts_; }

 private:
  // Drops one of the records that are over.
  void DropOne();

  const std::string model_;
  MetricRegistry& metrics_;
  int64_t last_number_ = 0;
  std::deque<SaveRecord> records_;
  SaveCounts counts_;
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_CHECKPOINTS_SAVE_RECORDS_H_
