// How a gather thread waits for its trainer's doorbell and for words that a GPU may write.
#ifndef PARAMSHARD_SERVER_STORE_ATTENTION_H_
#define PARAMSHARD_SERVER_STORE_ATTENTION_H_

#include <chrono>
#include <cstdint>

#include "absl/time/time.h"
#include "proto/wire/words.h"

namespace paramshard::server {

// A trainer that writes a word rings the doorbell; a GPU cannot. Where there is one, the thread therefore looks again
// by itself: all the time just after something has happened, because the next command often follows at once, and while
// copies are under way; then ever more rarely, and never when nothing is expected. Used by one thread.
class Attention {
 public:
  // What is expected besides the doorbell.
  enum class For : uint8_t {
    kNothing,
    kWord,   // that a trainer's GPU writes some time
    kCopies  // the end of copies under way
  };

  // `on_gpu`: whether GPUs write words of the page.
  Attention(const wire::Words& words, bool on_gpu);

  // Before looking at the words: what rings from now on ends the next Wait.
  void Look();
  // Something has happened.
  void Renew() { last_event_ = Clock::now(); }
  // Until the doorbell rings, the deadline has come or it is time to look again.
  void Wait(For expected, absl::Time deadline);

 private:
  // A clock that is set back must not make the thread spin.
  using Clock = std::chrono::steady_clock;

  void Spin(Clock::duration most) const;
  void Sleep(absl::Time deadline) const;
  bool Rang() const;

  const wire::Words words_;
  const bool on_gpu_;
  uint32_t doorbell_ = 0;
  Clock::time_point last_event_;  // long ago
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_STORE_ATTENTION_H_
