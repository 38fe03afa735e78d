// Remembers what became of epochs, and waits for it.
#ifndef PARAMSHARD_TESTS_SERVER_CLUSTER_RECORDING_LISTENER_H_
#define PARAMSHARD_TESTS_SERVER_CLUSTER_RECORDING_LISTENER_H_

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "server/cluster/cluster.h"
#include "server/cluster/coordinator.h"

namespace paramshard::server {

struct EpochNews {
  bool start = false;
  std::string model;
  int64_t epoch = 0;
  absl::Status why;
};

class RecordingListener final : public EpochListener, public NodeSink {
 public:
  void OnEpochStart(const std::string& model, int64_t epoch) override { Add({true, model, epoch, absl::OkStatus()}); }
  void OnEpochEnd(const std::string& model, int64_t epoch, const absl::Status& why) override {
    Add({false, model, epoch, why});
  }
  void OnWorld(const std::vector<int>&) override {}
  void OnStop() override {}

  // The next piece of news; an INTERNAL end when none comes within 30 seconds.
  EpochNews Next() {
    std::unique_lock<std::mutex> lock(mu_);
    if (!changed_.wait_for(lock, std::chrono::seconds(30), [this] { return !news_.empty(); })) {
      return {false, "", -1, absl::InternalError("no news")};
    }
    EpochNews news = std::move(news_.front());
    news_.pop_front();
    return news;
  }

  bool empty() {
    std::lock_guard<std::mutex> lock(mu_);
    return news_.empty();
  }

 private:
  void Add(EpochNews news) {
    std::lock_guard<std::mutex> lock(mu_);
    news_.push_back(std::move(news));
    changed_.notify_all();
  }

  std::mutex mu_;
  std::condition_variable changed_;
  std::deque<EpochNews> news_;
};

inline CommitVote MakeVote(int64_t epoch, int64_t commit_number, std::vector<RankSum> sums, int shard_size = 0) {
  CommitVote vote;
  vote.model = "m";
  vote.epoch = epoch;
  vote.commit_number = commit_number;
  vote.shard_size = shard_size;
  vote.sums = std::move(sums);
  return vote;
}

inline ModelReport MakeReport(std::vector<int> attached_ranks, int64_t commit_number = 0, int64_t version = 0,
                              uint64_t fingerprint = 1) {
  ModelReport report;
  report.model = "m";
  report.spec_fingerprint = fingerprint;
  report.commit_number = commit_number;
  report.version = version;
  report.attached_ranks = std::move(attached_ranks);
  return report;
}

}  // namespace paramshard::server

#endif  // PARAMSHARD_TESTS_SERVER_CLUSTER_RECORDING_LISTENER_H_
