// Notifications to a service manager, as by sd_notify(3), without its library.
#ifndef PARAMSHARD_SERVER_PROCESS_SERVICE_NOTIFIER_H_
#define PARAMSHARD_SERVER_PROCESS_SERVICE_NOTIFIER_H_

#include <functional>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "server/base/steady_cond_var.h"

namespace paramshard::server {

// Sends one datagram for each message to the socket that the manager has named; without a socket or a listener nothing
// happens. Never blocks: a message that finds the manager's socket full is lost.
//
//   ServiceNotifier notifier(getenv(ServiceNotifier::kVariable));
//   notifier.Ready([&] { return daemon.Summary(); });
//   ...
//   notifier.Stopping("draining");
//
// Thread-safe, except Ready, Stopping and Restarting, which one thread calls.
class ServiceNotifier {
 public:
  // Environment variable with a path, or @ and a name of the abstract namespace.
  static constexpr char kVariable[] = "NOTIFY_SOCKET";
  static constexpr absl::Duration kPeriod = absl::Seconds(5);

  // `address` may be null or empty. The status is checked for changes every `period`.
  explicit ServiceNotifier(const char* address, absl::Duration period = kPeriod);
  ServiceNotifier(const ServiceNotifier&) = delete;
  ServiceNotifier& operator=(const ServiceNotifier&) = delete;
  ~ServiceNotifier();

  // STATUS=, one line.
  void Status(absl::string_view status) const;
  // READY=1 with a status; from then on, until Stopping or the end of this object, sends changes of the status that
  // `describe` returns. `describe` is called by another thread, too.
  void Ready(std::function<std::string()> describe);
  // STOPPING=1 with a status. `describe` is not called any more.
  void Stopping(absl::string_view status);
  // STATUS= of a server that is replaced by the next one: for the manager the service continues.
  void Restarting(absl::string_view status);

 private:
  void Send(absl::string_view state, absl::string_view status) const;
  void Follow(const std::function<std::string()>& describe, std::string said);
  void EndFollowing();

  // Constant after construction.
  const std::string address_;
  const absl::Duration period_;

  absl::Mutex mu_;
  SteadyCondVar changed_;
  bool has_ended_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_PROCESS_SERVICE_NOTIFIER_H_
