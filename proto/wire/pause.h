// What a thread does between two looks at a word that another is about to write.
#ifndef PARAMSHARD_PROTO_WIRE_PAUSE_H_
#define PARAMSHARD_PROTO_WIRE_PAUSE_H_

namespace paramshard::wire {

// Some 40 ns on x86-64.
inline void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace paramshard::wire

#endif  // PARAMSHARD_PROTO_WIRE_PAUSE_H_
