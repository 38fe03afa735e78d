// A person's word on which node has the right state of a model.
#ifndef PARAMSHARD_SERVER_CLUSTER_HEALING_ORDER_H_
#define PARAMSHARD_SERVER_CLUSTER_HEALING_ORDER_H_

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "server/terms/cluster.h"

namespace paramshard::server {

// It is about the state that the donor had when it was given, and what the donor has made of that since. Not thread-safe.
class HealingOrder {
 public:
  // `history_id` and `commit_number` are of the donor's state.
  HealingOrder(int donor, std::string history_id, int64_t commit_number)
      : donor_(donor), histories_({std::move(history_id)}), commit_number_(commit_number) {}

  int donor() const { return donor_; }
  // Whether that is what the donor reports.
  bool IsOf(const ModelReport& report) const;

  // The person was shown that the node has this state, or none, which is given up.
  void Show(const NodeState& state);
  // Whether what the node reports is what was shown, or no state: nobody has said that any other one is to be given up.
  bool MayGiveUp(int node, const ModelReport& report) const;
  // Whether another node has the donor's state.
  bool HasTwin() const;
  // Whether all those take part whose states are to be given up.
  bool IsFor(const std::vector<int>& active) const;

  // An epoch begins by it, in which all have the state under this history.
  void Begin(int64_t epoch, const std::string& history_id);
  // The last one of these; 0: none.
  int64_t epoch() const { return epoch_; }
  // Whether such an epoch has given the state this history, and nobody has made a commit since.
  bool HasBegun(const ModelReport& report) const;

 private:
  int donor_;
  std::vector<std::string> histories_;  // that the state had, the last one at the end
  int64_t commit_number_;
  std::map<int, NodeState> shown_;  // by node
  int64_t epoch_ = 0;
};

// 32 hexadecimal digits, drawn at random.
std::string DrawHistoryId();

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_CLUSTER_HEALING_ORDER_H_
