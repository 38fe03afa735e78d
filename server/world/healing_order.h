// A person's decision which node has the right state of a model.
#ifndef PARAMSHARD_SERVER_WORLD_HEALING_ORDER_H_
#define PARAMSHARD_SERVER_WORLD_HEALING_ORDER_H_

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "server/terms/cluster.h"

namespace paramshard::server {

// Holds for the state that the donor had when the order was given, and for later states made from it. Not thread-safe.
class HealingOrder {
 public:
  // `history_id` and `commit_number` describe the donor's state.
  HealingOrder(int donor, std::string history_id, int64_t commit_number)
      : donor_(donor), histories_({std::move(history_id)}), commit_number_(commit_number) {}

  int donor() const { return donor_; }
  // Returns true if the donor reports the ordered state.
  bool IsOf(const ModelReport& report) const;

  // Notes that the person was shown this state of a node, or that it has none, and gives it up.
  void Show(const NodeState& state);
  // Returns true if the node reports the shown state or none: the order gives up no other state.
  bool MayGiveUp(int node, const ModelReport& report) const;
  // Returns true if another node has the donor's state.
  bool HasTwin() const;
  // Returns true if all nodes whose states are to be given up take part.
  bool IsFor(const std::vector<int>& active) const;

  // Notes that an epoch begins by this order, in which all nodes have the state under this history.
  void Begin(int64_t epoch, const std::string& history_id);
  // The last epoch that began by this order; 0: none.
  int64_t epoch() const { return epoch_; }
  // Returns true if such an epoch gave the reported state its history, and there was no commit since.
  bool HasBegun(const ModelReport& report) const;

 private:
  int donor_;
  std::vector<std::string> histories_;  // of the state, in order
  int64_t commit_number_;
  std::map<int, NodeState> shown_;  // by node
  int64_t epoch_ = 0;
};

// 32 hexadecimal digits, drawn at random.
std::string DrawHistoryId();

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_WORLD_HEALING_ORDER_H_
