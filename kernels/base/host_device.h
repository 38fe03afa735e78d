// PARAMSHARD_HOST_DEVICE marks a formula that host and device compile from one text.
//
// Such headers are C++17, use no library function whose result may differ between machines, and are compiled without
// contraction of a * b + c (-ffp-contract=off, --fmad=false), so that both sides give the same bytes.

#ifndef PARAMSHARD_KERNELS_BASE_HOST_DEVICE_H_
#define PARAMSHARD_KERNELS_BASE_HOST_DEVICE_H_

#if defined(__CUDACC__)
#define PARAMSHARD_HOST_DEVICE __host__ __device__ __forceinline__
#elif defined(__GNUC__)
// Always inline: a formula must be compiled with the instruction set of the loop that it is part of (simd_clones.h).
#define PARAMSHARD_HOST_DEVICE inline __attribute__((always_inline))
#else
#define PARAMSHARD_HOST_DEVICE inline
#endif

#endif  // PARAMSHARD_KERNELS_BASE_HOST_DEVICE_H_
