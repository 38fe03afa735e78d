#include "lab/campaign/hostile_trainer.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <cstring>
#include <fstream>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/types/span.h"
#include "common/shared_memory/words.h"

namespace paramshard::test {
namespace {

constexpr char kWordsPage[] = "/memfd:paramshard-words";

// The words page of the last epoch, as the kernel lists the mappings of this process: no library is asked where it is.
std::optional<absl::Span<uint8_t>> FindWordsPage() {
  std::optional<absl::Span<uint8_t>> page;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    if (!absl::StrContains(line, kWordsPage) || !absl::StrContains(line, " rw-s ")) continue;
    const std::vector<std::string> ends = absl::StrSplit(line.substr(0, line.find(' ')), '-');
    uint64_t begin = 0, end = 0;
    if (!absl::SimpleHexAtoi(ends[0], &begin) || !absl::SimpleHexAtoi(ends[1], &end)) continue;
    page.emplace(reinterpret_cast<uint8_t*>(begin), end - begin);
  }
  return page;
}

class Scribbler {
 public:
  Scribbler(PageArea area, uint64_t seed) : area_(area), random_(seed) {}

  // Makes a few changes, or none.
  void Scribble() {
    if (random_() % 3 != 0) return;
    const std::optional<absl::Span<uint8_t>> page = FindWordsPage();
    if (!page.has_value() || page->size() <= wire::kRingBytes) return;
    const size_t ring_at = page->size() - wire::kRingBytes;
    for (int changes = 1 + random_() % 4; changes > 0; --changes) {
      if (area_ == PageArea::kRing) {
        ScribbleBytes(page->subspan(ring_at));
      } else {
        ScribbleWord(page->subspan(0, ring_at));
      }
    }
  }

 private:
  // The records of a short training are near the beginning.
  void ScribbleBytes(absl::Span<uint8_t> ring) {
    const size_t at = random_() % (random_() % 4 == 0 ? ring.size() : 2048);
    for (size_t i = at; i < std::min(ring.size(), at + 1 + random_() % 8); ++i) {
      ring[i] = static_cast<uint8_t>(random_() % 2 == 0 ? random_() : ring[i] ^ 1 << random_() % 8);
    }
  }

  void ScribbleWord(absl::Span<uint8_t> words) {
    const size_t lines = words.size() / wire::kCacheLineBytes;
    // Every session has the first lines.
    const size_t line = random_() % (random_() % 2 == 0 ? 8 : lines);
    auto* const word = reinterpret_cast<uint32_t*>(words.data() + line * wire::kCacheLineBytes);
    const uint32_t values[] = {0,
                               1,
                               *word + 1,
                               *word - 1,
                               *word + wire::kFinishedStep,
                               *word + (1u << 31),
                               UINT32_MAX,
                               *word ^ 1,
                               *word + 4096,
                               static_cast<uint32_t>(random_())};
    switch (random_() % 8) {
      case 0:
        syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
        break;
      case 1:
        syscall(SYS_futex, word, FUTEX_REQUEUE, 0, INT_MAX, words.data() + 7 * wire::kCacheLineBytes, 0);
        break;
      default:
        __atomic_store_n(word, values[random_() % std::size(values)], __ATOMIC_SEQ_CST);
    }
  }

  const PageArea area_;
  std::mt19937_64 random_;
};

}  // namespace

absl::Status TrainHostile(Training training, PageArea area, uint64_t seed) {
  auto scribbler = std::make_shared<Scribbler>(area, seed);
  training.resume = false;
  training.at = [scribbler](Point, int64_t) { scribbler->Scribble(); };
  return Train(training);
}

}  // namespace paramshard::test
