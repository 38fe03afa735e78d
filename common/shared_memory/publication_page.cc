#include "common/shared_memory/publication_page.h"

#include <algorithm>

#include "common/shared_memory/futex.h"

namespace paramshard::wire {

std::string PublicationPage::text() const {
  const char* const begin = page_->text;
  return std::string(begin, std::find(begin, begin + kPublicationTextBytes, '\0'));
}

void PublicationPage::AwaitChange(const Gate& seen, absl::Duration timeout) const {
  const uint32_t changes = page_->changes.load(std::memory_order_seq_cst);
  if (gate() == seen) FutexWait(page_->changes, changes, timeout);
}

void PublicationPage::SetText(absl::string_view text) const {
  const size_t size = std::min<size_t>(text.size(), kPublicationTextBytes - 1);
  std::fill(std::copy_n(text.data(), size, page_->text), page_->text + kPublicationTextBytes, '\0');
}

void PublicationPage::SetGate(const Gate& gate) const {
  page_->gate.store(gate.packed(), std::memory_order_seq_cst);
  page_->changes.fetch_add(1, std::memory_order_seq_cst);
  FutexWake(page_->changes);
}

bool LeasePage::Take(const PublicationPage& publication, const Gate& valid) const {
  page_->lease.store(valid.packed(), std::memory_order_seq_cst);
  if (publication.gate() == valid) return true;
  page_->lease.store(0, std::memory_order_seq_cst);
  return false;
}

void LeasePage::Release() const {
  page_->lease.store(0, std::memory_order_seq_cst);
  page_->released.fetch_add(1, std::memory_order_relaxed);
}

bool LeasePage::Holds(uint64_t generation) const {
  const Gate lease = Gate::Unpack(page_->lease.load(std::memory_order_seq_cst));
  return lease.generation == generation && lease.state == Gate::State::kValid;
}

}  // namespace paramshard::wire
