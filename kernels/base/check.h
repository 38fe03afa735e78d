// PARAMSHARD_CHECK(condition): ends the process, naming the place, when our own code broke a requirement. Never for
// input.

#ifndef PARAMSHARD_KERNELS_BASE_CHECK_H_
#define PARAMSHARD_KERNELS_BASE_CHECK_H_

#include <cstdio>
#include <cstdlib>

#define PARAMSHARD_CHECK(condition)                                                      \
  do {                                                                                   \
    if (!(condition)) {                                                                  \
      std::fprintf(stderr, "%s:%d: check failed: %s\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                                      \
    }                                                                                    \
  } while (false)

#endif  // PARAMSHARD_KERNELS_BASE_CHECK_H_
