#include "server/process/service_notifier.h"

#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/shared_memory/file_descriptor.h"
#include "server/base/steady_time.h"
#include "server/base/thread.h"

namespace paramshard::server {
namespace {

// Replaces newlines: a further line would be another message to the manager.
std::string OneLine(absl::string_view text) {
  std::string line(text);
  std::replace_if(
      line.begin(), line.end(), [](unsigned char c) { return c < ' '; }, ' ');
  return line;
}

}  // namespace

ServiceNotifier::ServiceNotifier(const char* address, absl::Duration period)
    : address_(address == nullptr ? "" : address), period_(period) {}

ServiceNotifier::~ServiceNotifier() { EndFollowing(); }

void ServiceNotifier::Status(absl::string_view status) const { Send("", status); }

void ServiceNotifier::Ready(std::function<std::string()> describe) {
  if (address_.empty()) return;
  std::string status = describe();
  Send("READY=1\n", status);
  // Without a thread the first status remains.
  absl::StatusOr<std::thread> thread =
      StartThread("service status", [this, describe = std::move(describe), status] { Follow(describe, status); });
  if (thread.ok()) thread_ = *std::move(thread);
}

void ServiceNotifier::Stopping(absl::string_view status) {
  EndFollowing();
  Send("STOPPING=1\n", status);
}

void ServiceNotifier::Restarting(absl::string_view status) {
  EndFollowing();
  Status(status);
}

void ServiceNotifier::Send(absl::string_view state, absl::string_view status) const {
  sockaddr_un to{.sun_family = AF_UNIX, .sun_path = {}};
  if (address_.empty() || address_.size() >= sizeof(to.sun_path)) return;
  std::memcpy(to.sun_path, address_.data(), address_.size());
  if (address_.front() == '@') to.sun_path[0] = '\0';
  const socklen_t size = offsetof(sockaddr_un, sun_path) + address_.size();
  const wire::FileDescriptor socket_fd(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const std::string text = absl::StrCat(state, "STATUS=", OneLine(status));
  if (!socket_fd.valid()) return;
  (void)!sendto(socket_fd.get(), text.data(), text.size(), MSG_NOSIGNAL, reinterpret_cast<const sockaddr*>(&to), size);
}

void ServiceNotifier::Follow(const std::function<std::string()>& describe, std::string said) {
  while (true) {
    {
      const SteadyTime next = SteadyDeadline(period_);
      absl::MutexLock lock(&mu_);
      while (!has_ended_ && TimeLeft(next) > absl::ZeroDuration()) changed_.WaitUntil(&mu_, next);
      if (has_ended_) return;
    }
    const std::string status = describe();
    if (status == said) continue;
    said = status;
    Status(said);
  }
}

void ServiceNotifier::EndFollowing() {
  {
    absl::MutexLock lock(&mu_);
    has_ended_ = true;
    changed_.SignalAll();
  }
  if (thread_.joinable()) thread_.join();
}

}  // namespace paramshard::server
