// A node's reports, which it sends again on a new stream, and the epochs that it knows.
#ifndef PARAMSHARD_SERVER_WORLD_NODE_REPORTS_H_
#define PARAMSHARD_SERVER_WORLD_NODE_REPORTS_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "server/terms/node_messages.h"

namespace paramshard::server {

// Not thread-safe. Attached trainers are part of a report until an epoch starts, ends or is refused.
class NodeReports {
 public:
  // Notes a message from the node, or to it.
  void Note(const FromNode& message);
  void Note(const ToNode& message);

  // Ends all epochs, since the coordinator is lost. Returns them, by model.
  std::map<std::string, int64_t> EndEpochs();

  // The last reports, by model, of states that no epoch has changed since.
  const std::map<std::string, ModelReport, std::less<>>& reports() const { return reports_; }

 private:
  void ForgetAttached(const std::string& model);
  // Does nothing for an epoch that this node has ended itself: trainers reported since then wait for the next one.
  void EndEpoch(const std::string& model, int64_t epoch);

  std::map<std::string, ModelReport, std::less<>> reports_;
  std::map<std::string, int64_t> running_;  // epochs by model
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_WORLD_NODE_REPORTS_H_
