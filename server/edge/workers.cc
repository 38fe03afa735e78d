#include "server/edge/workers.h"

#include <utility>

#include "kernels/base/status_macros.h"
#include "server/base/thread.h"

namespace paramshard::server {

absl::StatusOr<std::unique_ptr<Workers>> Workers::Start(absl::string_view purpose, Options options) {
  std::unique_ptr<Workers> workers(new Workers(options));
  for (int i = 0; i < options.threads; ++i) {
    ASSIGN_OR_RETURN(workers->threads_.emplace_back(), StartThread(purpose, [raw = workers.get()] { raw->Run(); }));
  }
  return workers;
}

Workers::~Workers() {
  {
    absl::MutexLock lock(&mu_);
    closed_ = true;
  }
  for (std::thread& thread : threads_) {
    if (thread.joinable()) thread.join();
  }
}

bool Workers::Post(const Callers::Caller& caller, std::function<void(Place)> work) {
  absl::MutexLock lock(&mu_);
  if (!TakePlace(caller)) return false;
  queue_.push_back(
      {.user = caller.peer.uid, .run = [this, caller, work = std::move(work)] { work(Place(this, caller)); }});
  return true;
}

void Workers::Post(std::function<void()> work) {
  absl::MutexLock lock(&mu_);
  queue_.push_back({.user = geteuid(), .run = std::move(work)});
}

bool Workers::TakePlace(const Callers::Caller& caller) {
  const auto works = works_of_token_.try_emplace(caller.token, 0).first;
  if (works->second < options_.max_works_of_connection && places_.Take(caller.peer.uid)) {
    ++works->second;
    return true;
  }
  if (works->second == 0) works_of_token_.erase(works);
  return false;
}

void Workers::GiveBackPlace(const Callers::Caller& caller) {
  absl::MutexLock lock(&mu_);
  places_.GiveBack(caller.peer.uid);
  const auto works = works_of_token_.find(caller.token);
  if (--works->second == 0) works_of_token_.erase(works);
}

std::deque<Workers::Work>::iterator Workers::Next() {
  auto next = queue_.begin();
  while (next != queue_.end() && !busy_.WouldFind(next->user)) ++next;
  return next;
}

void Workers::Run() {
  while (true) {
    Work work;
    {
      absl::MutexLock lock(&mu_);
      mu_.Await(absl::Condition(this, &Workers::HasWork));
      const auto next = Next();
      if (next == queue_.end()) return;
      work = std::move(*next);
      queue_.erase(next);
      busy_.Take(work.user);
    }
    work.run();
    work.run = nullptr;
    absl::MutexLock lock(&mu_);
    busy_.GiveBack(work.user);
  }
}

}  // namespace paramshard::server
