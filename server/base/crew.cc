#include "server/base/crew.h"

#include <utility>

#include "server/base/thread.h"

namespace paramshard::server {

absl::StatusOr<std::unique_ptr<Crew>> Crew::Start(absl::string_view purpose, int threads) {
  std::unique_ptr<Crew> crew(new Crew());
  for (int i = 0; i < threads; ++i) {
    absl::StatusOr<std::thread> thread = StartThread(purpose, [raw = crew.get(), i] { raw->Serve(i); });
    if (!thread.ok()) return thread.status();
    crew->threads_.push_back(*std::move(thread));
  }
  return crew;
}

Crew::~Crew() {
  {
    absl::MutexLock lock(&mu_);
    closed_ = true;
  }
  for (std::thread& thread : threads_) thread.join();
}

absl::Status Crew::Run(int64_t count, Work work) {
  absl::MutexLock lock(&mu_);
  work_ = &work;
  status_ = absl::OkStatus();
  next_ = 0;
  count_ = count;
  mu_.Await(absl::Condition(this, &Crew::IsThrough));
  return status_;
}

void Crew::Serve(int thread) {
  while (const std::optional<int64_t> index = Take()) Finish((*work_)(thread, *index));
}

std::optional<int64_t> Crew::Take() {
  absl::MutexLock lock(&mu_);
  mu_.Await(absl::Condition(this, &Crew::HasNews));
  if (closed_) return std::nullopt;
  ++busy_;
  return next_++;
}

void Crew::Finish(const absl::Status& status) {
  absl::MutexLock lock(&mu_);
  --busy_;
  if (status.ok() || !status_.ok()) return;
  status_ = status;
  next_ = count_;
}

absl::Status OnAllRanks(absl::string_view purpose, int ranks, absl::FunctionRef<absl::Status(int rank)> work) {
  const absl::StatusOr<std::unique_ptr<Crew>> crew = Crew::Start(purpose, ranks);
  if (!crew.ok()) return crew.status();
  return (*crew)->Run(ranks, [&](int, int64_t rank) { return work(static_cast<int>(rank)); });
}

}  // namespace paramshard::server
