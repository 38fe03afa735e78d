// Messages of a world's daemons about a restore, as plain values.
//
// Node 0 leads, the others follow. The id of a restore is the id of the history that it begins:
//
//   node 0 has checked all that it can -> order: the others do so too -> a report of each: ready
//   all are ready -> go: every daemon writes its rows -> sums and a report of each: written
//   the sums are those of the checkpoint -> end: the state is whole -> a report of each: done
//
// Nothing changes before the go. An end before it gives the restore up; a failure after it leaves no daemon with a
// state to train on.
#ifndef PARAMSHARD_SERVER_TERMS_RESTORE_MESSAGE_H_
#define PARAMSHARD_SERVER_TERMS_RESTORE_MESSAGE_H_

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "absl/numeric/int128.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/terms/wire_fields.h"

namespace paramshard::server {

// From node 0: begins a restore.
struct RestoreOrder {
  absl::uint128 id = 0;  // of the restore, and of the history that begins
  // The checkpoint's folder, by its name among the model's or an absolute path, and the id of the save in it.
  std::string folder = {};
  absl::uint128 save_id = 0;
  bool convert_moments = false;
  uint64_t spec_fingerprint = 0;                  // of the model at node 0
  bool creates = false;                           // node 0 creates the model: wait for it to be created here
  absl::Duration timeout = absl::ZeroDuration();  // left for the whole restore
  std::string rollback_why = {};                  // why all nodes roll back; empty: the restore was asked for

  int64_t step = 0;  // of the checkpoint; not sent
  // True if a rollback repeats a restore that was asked for and broke off.
  bool was_asked_for = false;

  bool rolls_back() const { return !rollback_why.empty(); }
  friend bool operator==(const RestoreOrder&, const RestoreOrder&) = default;
};
void Fields(ConstOr<RestoreOrder> auto& m, const auto& f) {
  f("id", m.id)("folder", m.folder)("save_id", m.save_id)("convert_moments", m.convert_moments)(
      "spec_fingerprint", m.spec_fingerprint)("creates", m.creates)("timeout", m.timeout)(
      "rollback_why", m.rollback_why)("was_asked_for", m.was_asked_for);
}

// From node 0: all nodes are ready.
struct RestoreGo {
  absl::uint128 id = 0;
};
void Fields(ConstOr<RestoreGo> auto& m, const auto& f) { f("id", m.id); }

// From another node: content hashes of its rows, in any number of messages. They add up.
struct RestoreSums {
  struct Tensor {
    std::string key = {};
    absl::uint128 sum = 0;
    int64_t rows = 0;

    friend bool operator==(const Tensor&, const Tensor&) = default;
  };

  absl::uint128 id = 0;
  int node = 0;  // the sender, set by the coordinator
  std::vector<Tensor> tensors = {};
};
void Fields(ConstOr<RestoreSums::Tensor> auto& m, const auto& f) { f("key", m.key)("sum", m.sum)("rows", m.rows); }
void Fields(ConstOr<RestoreSums> auto& m, const auto& f) { f("id", m.id)("tensors", m.tensors); }

// From another node, a few times a second while it writes: progress of its part.
struct RestorePartProgress {
  absl::uint128 id = 0;
  int node = 0;  // as above
  int64_t done_bytes = 0;
  int64_t all_bytes = 0;
};
void Fields(ConstOr<RestorePartProgress> auto& m, const auto& f) {
  f("id", m.id)("done_bytes", m.done_bytes)("all_bytes", m.all_bytes);
}

// The numbers are sent.
enum class RestorePhase : uint8_t {
  kReady = 1,    // everything is checked and reserved, trainers are held off, nothing has changed
  kWritten = 2,  // every row is written, and all sums are sent
  kDone = 3,     // the model goes on in the new history
};

// From another node: it has reached this phase, or has failed to.
struct RestoreReport {
  absl::uint128 id = 0;
  int node = 0;  // as above
  RestorePhase phase = RestorePhase::kReady;
  absl::Status status = absl::OkStatus();
};
void Fields(ConstOr<RestoreReport> auto& m, const auto& f) { f("id", m.id)("phase", m.phase)("error", m.status); }

// From node 0: the state is whole everywhere, or the restore is given up.
struct RestoreEnd {
  absl::uint128 id = 0;
  absl::Status status = absl::OkStatus();
};
void Fields(ConstOr<RestoreEnd> auto& m, const auto& f) { f("id", m.id)("error", m.status); }

// From another node that creates a model which begins with a checkpoint: asks node 0, which answers by an order or a
// RestoreAnswer, for the checkpoint. Repeated every few seconds until then, and withdrawn when an order has come.
struct RestoreRequest {
  absl::uint128 id = 0;
  int node = 0;            // as above
  bool withdrawn = false;  // no caller waits for the answer any more
};
void Fields(ConstOr<RestoreRequest> auto& m, const auto& f) { f("id", m.id)("withdrawn", m.withdrawn); }

// From node 0. OK: the model begins with its initial values.
struct RestoreAnswer {
  absl::uint128 id = 0;  // of the request
  absl::Status status = absl::OkStatus();
  // With OK: other daemons have trained the model, and one of them heals it when the next epoch starts.
  bool heals = false;
};
void Fields(ConstOr<RestoreAnswer> auto& m, const auto& f) { f("id", m.id)("error", m.status)("heals", m.heals); }

// Local message for all models: node 0 is lost.
struct RestoreLeaderLost {
  absl::Status why;
};

// Local message for all models, at node 0: another node is lost. If it took part in an order, its report comes too.
struct RestoreFollowerLost {
  int node = 0;
};

// Local message from the coordinator to its own daemon: every daemon is present and trainers wait, but a node has no
// state of the model. They wait until a RollbackEnd.
struct RollbackNeed {
  absl::Status why;
};

// Local answer to a RollbackNeed: all nodes have rolled back to a saved state, or the reason for waiting trainers why
// not.
struct RollbackEnd {
  absl::Status status = absl::OkStatus();
};

struct RestoreMessage {
  std::string model;
  std::variant<RestoreOrder, RestoreGo, RestorePartProgress, RestoreSums, RestoreReport, RestoreEnd, RestoreRequest,
               RestoreAnswer, RestoreLeaderLost, RestoreFollowerLost, RollbackNeed, RollbackEnd>
      what;
};
void Fields(ConstOr<RestoreMessage> auto& m, const auto& f) { f("model", m.model).Case(m.what); }

template <>
inline constexpr CaseNames<decltype(RestoreMessage::what)> kCaseNames<decltype(RestoreMessage::what)> = {
    "order", "go", "progress", "sums", "report", "end", "request", "answer", nullptr, nullptr, nullptr, nullptr};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_TERMS_RESTORE_MESSAGE_H_
