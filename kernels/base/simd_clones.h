// PARAMSHARD_SIMD_CLONES compiles a function once for each of several x86 instruction sets; the dynamic linker picks
// one.
//
// Only what is inlined into the function is cloned with it, so the loops that it calls are PARAMSHARD_ALWAYS_INLINE.
// All clones give the same bytes: the code uses exactly rounded operations in a written order, and nothing is
// contracted. PARAMSHARD_BASELINE_ONLY (and sanitizers, whose runtimes start later than the linker picks) leaves the
// plain function.

#ifndef PARAMSHARD_KERNELS_BASE_SIMD_CLONES_H_
#define PARAMSHARD_KERNELS_BASE_SIMD_CLONES_H_

#if defined(__GNUC__)
#define PARAMSHARD_ALWAYS_INLINE inline __attribute__((always_inline))
#else
#define PARAMSHARD_ALWAYS_INLINE inline
#endif

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(PARAMSHARD_BASELINE_ONLY) && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define PARAMSHARD_SIMD_CLONES __attribute__((target_clones("arch=x86-64-v4", "avx2", "default")))
#else
#define PARAMSHARD_SIMD_CLONES
#endif

// Stands before a loop whose iterations do not read what other iterations store: the compiler vectorizes it without
// checks for overlapping arrays. Not with sanitizers, whose code in the loop cannot be vectorized: Clang would warn.
#if defined(__clang__)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || __has_feature(undefined_behavior_sanitizer)
#define PARAMSHARD_INDEPENDENT_ITERATIONS
#else
#define PARAMSHARD_INDEPENDENT_ITERATIONS _Pragma("clang loop vectorize(assume_safety)")
#endif
#elif defined(__GNUC__)
#define PARAMSHARD_INDEPENDENT_ITERATIONS _Pragma("GCC ivdep")
#else
#define PARAMSHARD_INDEPENDENT_ITERATIONS
#endif

#endif  // PARAMSHARD_KERNELS_BASE_SIMD_CLONES_H_
