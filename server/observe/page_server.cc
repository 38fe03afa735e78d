#include "server/observe/page_server.h"

#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "kernels/base/status_macros.h"
#include "server/base/thread.h"

namespace paramshard::server {
namespace {

// How long new connections wait in the queue when they cannot be accepted.
constexpr int kPauseMilliseconds = 100;
constexpr absl::string_view kRequestEnd = "\r\n\r\n";

struct HttpStatus {
  int code;
  absl::string_view phrase;
};
constexpr HttpStatus kOk = {200, "OK"};
constexpr HttpStatus kBadRequest = {400, "Bad Request"};
constexpr HttpStatus kNotFound = {404, "Not Found"};
constexpr HttpStatus kMethodNotAllowed = {405, "Method Not Allowed"};
constexpr HttpStatus kTooLarge = {431, "Request Header Fields Too Large"};

// `is_head`: sends the body's size without the body.
std::string Answer(HttpStatus status, absl::string_view content_type, absl::string_view body, bool is_head = false,
                   absl::string_view more = "") {
  return absl::StrCat("HTTP/1.1 ", status.code, " ", status.phrase, "\r\nContent-Type: ", content_type,
                      "\r\nContent-Length: ", body.size(), "\r\nConnection: close\r\n", more, "\r\n",
                      is_head ? "" : body);
}

std::string Refusal(HttpStatus status, absl::string_view expected, absl::string_view more = "") {
  return Answer(status, "text/plain", absl::StrCat("want ", expected, "\n"), /*is_head=*/false, more);
}

bool HasToWait(int error) { return error == EAGAIN || error == EWOULDBLOCK || error == EINTR; }

}  // namespace

absl::StatusOr<std::unique_ptr<PageServer>> PageServer::Start(Options options) {
  std::unique_ptr<PageServer> server(new PageServer(std::move(options)));
  if (!server->stop_.valid())
    return absl::ResourceExhaustedError(
        "serve a page: failed to create a file descriptor; raise the limit (ulimit -n, LimitNOFILE)");
  ASSIGN_OR_RETURN(server->thread_, StartThread("the page of metrics", [page = server.get()] { page->Serve(); }));
  return server;
}

PageServer::PageServer(Options options) : options_(std::move(options)), stop_(eventfd(0, EFD_CLOEXEC)) {}

PageServer::~PageServer() {
  const uint64_t one = 1;
  if (!thread_.joinable()) return;
  (void)!write(stop_.get(), &one, sizeof(one));
  thread_.join();
}

void PageServer::Serve() {
  bool accepts = true;
  while (true) {
    std::vector<pollfd> polled = Polled(accepts);
    const int ready = poll(polled.data(), polled.size(), accepts ? PollTimeout() : kPauseMilliseconds);
    if (ready > 0 && polled[0].revents != 0) return;
    accepts = true;
    const SteadyTime now = SteadyNow();
    // Serves present connections before new ones, so that a new connection replaces one that made no progress.
    std::erase_if(connections_,
                  [&](Connection& connection) { return !Advance(connection) || now >= connection.deadline; });
    for (const wire::FileDescriptor& listener : options_.listeners) accepts = Accept(listener.get()) && accepts;
  }
}

std::vector<pollfd> PageServer::Polled(bool accepts) const {
  std::vector<pollfd> polled{{.fd = stop_.get(), .events = POLLIN, .revents = 0}};
  for (const Connection& connection : connections_) {
    const bool writes = connection.state == State::kWriting;
    polled.push_back(
        {.fd = connection.fd.get(), .events = static_cast<int16_t>(writes ? POLLOUT : POLLIN), .revents = 0});
  }
  if (!accepts) return polled;
  for (const wire::FileDescriptor& listener : options_.listeners) {
    polled.push_back({.fd = listener.get(), .events = POLLIN, .revents = 0});
  }
  return polled;
}

int PageServer::PollTimeout() const {
  if (connections_.empty()) return -1;
  const auto next = std::min_element(connections_.begin(), connections_.end(), [](const auto& a, const auto& b) {
                      return a.deadline < b.deadline;
                    })->deadline;
  return static_cast<int>(absl::ToInt64Milliseconds(absl::Ceil(TimeLeft(next), absl::Milliseconds(1))));
}

bool PageServer::Accept(int listener) {
  wire::FileDescriptor fd(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!fd.valid()) return HasToWait(errno) || errno == ECONNABORTED || errno == EPROTO;
  if (connections_.size() >= options_.most_connections) MakeRoom();
  connections_.push_back({.fd = std::move(fd), .deadline = SteadyDeadline(options_.timeout)});
  return true;
}

// Closes the oldest connection that is not being answered, or the oldest of all.
void PageServer::MakeRoom() {
  const auto idle = std::find_if(connections_.begin(), connections_.end(),
                                 [](const Connection& connection) { return connection.state != State::kWriting; });
  connections_.erase(idle == connections_.end() ? connections_.begin() : idle);
}

bool PageServer::Advance(Connection& connection) const {
  if (connection.state == State::kReading && !Read(connection)) return false;
  if (connection.state == State::kWriting && !Write(connection)) return false;
  if (connection.state != State::kLeaving) return true;
  // Unread input at close would reset the connection and discard the answer.
  char rest[4096];
  const ssize_t size = recv(connection.fd.get(), rest, sizeof(rest), 0);
  return size > 0 || (size < 0 && HasToWait(errno));
}

bool PageServer::Read(Connection& connection) const {
  char bytes[4096];
  const ssize_t size = recv(connection.fd.get(), bytes, sizeof(bytes), 0);
  if (size <= 0) return size < 0 && HasToWait(errno);
  connection.request.append(bytes, size);
  const size_t end = absl::string_view(connection.request).find(kRequestEnd);
  if (end == absl::string_view::npos && connection.request.size() <= kMostRequestBytes) return true;
  const bool fits = end != absl::string_view::npos && end <= kMostRequestBytes;
  connection.answer = fits ? AnswerTo(absl::string_view(connection.request).substr(0, end))
                           : Refusal(kTooLarge, absl::StrCat("a request of at most ", kMostRequestBytes, " bytes"));
  connection.state = State::kWriting;
  connection.deadline = SteadyDeadline(options_.timeout);
  return true;
}

bool PageServer::Write(Connection& connection) const {
  const absl::string_view left = absl::string_view(connection.answer).substr(connection.sent);
  const ssize_t size = send(connection.fd.get(), left.data(), left.size(), MSG_NOSIGNAL);
  if (size < 0) return HasToWait(errno);
  connection.sent += size;
  if (connection.sent < connection.answer.size()) return true;
  shutdown(connection.fd.get(), SHUT_WR);
  connection.state = State::kLeaving;
  return true;
}

// Looks only at the first line: METHOD TARGET VERSION.
std::string PageServer::AnswerTo(absl::string_view request) const {
  const std::vector<absl::string_view> words = absl::StrSplit(request.substr(0, request.find("\r\n")), ' ');
  if (words.size() != 3 || !absl::StartsWith(words[2], "HTTP/1.") || !absl::StartsWith(words[1], "/")) {
    return Refusal(kBadRequest, absl::StrCat("GET ", options_.path, " HTTP/1.1"));
  }
  if (words[0] != "GET" && words[0] != "HEAD") return Refusal(kMethodNotAllowed, "GET", "Allow: GET, HEAD\r\n");
  if (words[1].substr(0, words[1].find('?')) != options_.path) return Refusal(kNotFound, options_.path);
  return Answer(kOk, options_.content_type, options_.page(), words[0] == "HEAD");
}

}  // namespace paramshard::server
