// Pause of a thread between two reads of a word on which it spins.
#ifndef PARAMSHARD_COMMON_SHARED_MEMORY_PAUSE_H_
#define PARAMSHARD_COMMON_SHARED_MEMORY_PAUSE_H_

namespace paramshard::wire {

// Takes some 40 ns on x86-64; does nothing elsewhere.
inline void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace paramshard::wire

#endif  // PARAMSHARD_COMMON_SHARED_MEMORY_PAUSE_H_
