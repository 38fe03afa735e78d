// Comparison of two files by identity instead of by name.
#ifndef PARAMSHARD_KERNELS_BASE_SAME_FILE_H_
#define PARAMSHARD_KERNELS_BASE_SAME_FILE_H_

#include <sys/stat.h>

namespace paramshard {

inline bool AreSameFile(const struct stat& a, const struct stat& b) {
  return a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

// Compares open file descriptors; false if either is invalid.
inline bool AreSameFile(int a, int b) {
  struct stat of_a {};
  struct stat of_b {};
  return fstat(a, &of_a) == 0 && fstat(b, &of_b) == 0 && AreSameFile(of_a, of_b);
}

}  // namespace paramshard

#endif  // PARAMSHARD_KERNELS_BASE_SAME_FILE_H_
