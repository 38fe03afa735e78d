// Tells a service manager how the daemon is, as sd_notify(3) does, without its library.
#ifndef PARAMSHARD_SERVER_SERVICE_NOTIFIER_H_
#define PARAMSHARD_SERVER_SERVICE_NOTIFIER_H_

#include <functional>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "server/base/steady_cond_var.h"

namespace paramshard::server {

// One datagram for each message, to the socket that the manager has named; where it named none, or does not listen,
// nothing happens. Messages do not wait: one that finds the manager's socket full is lost.
//
//   ServiceNotifier notifier(getenv(ServiceNotifier::kVariable));
//   notifier.Ready([&] { return daemon.Summary(); });
//   ...
//   notifier.Stopping("draining");
//
// Thread-safe, but for Ready and both ends, which are one thread's.
class ServiceNotifier {
 public:
  // In the environment: a path, or @ and a name of the abstract namespace.
  static constexpr char kVariable[] = "NOTIFY_SOCKET";
  static constexpr absl::Duration kPeriod = absl::Seconds(5);

  // `address` may be null or empty. Statuses are looked at again every `period`.
  explicit ServiceNotifier(const char* address, absl::Duration period = kPeriod);
  ServiceNotifier(const ServiceNotifier&) = delete;
  ServiceNotifier& operator=(const ServiceNotifier&) = delete;
  ~ServiceNotifier();

  // STATUS=, one line.
  void Status(absl::string_view status) const;
  // READY=1 with a status; from then on, until Stopping or the end of this object, the status again whenever `describe`
  // says another one. `describe` is called by another thread, too.
  void Ready(std::function<std::string()> describe);
  // STOPPING=1 with a status. `describe` is not called any more.
  void Stopping(absl::string_view status);
  // The same of a server that another one follows: to the manager the service goes on.
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

#endif  // PARAMSHARD_SERVER_SERVICE_NOTIFIER_H_
