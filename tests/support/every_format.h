// All formats, for tests that have parameters.
#ifndef PARAMSHARD_TESTS_SUPPORT_EVERY_FORMAT_H_
#define PARAMSHARD_TESTS_SUPPORT_EVERY_FORMAT_H_

#include <vector>

#include "kernels/formats/format.h"

namespace paramshard {

inline std::vector<Format> EveryFormat() {
  std::vector<Format> formats;
  for (const FormatTraits& traits : kFormats) formats.push_back(traits.format);
  return formats;
}

}  // namespace paramshard

#endif  // PARAMSHARD_TESTS_SUPPORT_EVERY_FORMAT_H_
