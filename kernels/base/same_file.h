// Whether two files are one, whatever they are called.
#ifndef PARAMSHARD_KERNELS_BASE_SAME_FILE_H_
#define PARAMSHARD_KERNELS_BASE_SAME_FILE_H_

#include <sys/stat.h>

namespace paramshard {

inline bool AreSameFile(const struct stat& a, const struct stat& b) {
  return a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

// Of descriptors. What is no descriptor is no file.
inline bool AreSameFile(int a, int b) {
  struct stat of_a {};
  struct stat of_b {};
  return fstat(a, &of_a) == 0 && fstat(b, &of_b) == 0 && AreSameFile(of_a, of_b);
}

}  // namespace paramshard

#endif  // PARAMSHARD_KERNELS_BASE_SAME_FILE_H_
