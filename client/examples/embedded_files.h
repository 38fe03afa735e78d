// The files of data/, as the build puts them into the programs: still compressed.
#ifndef PARAMSHARD_CLIENT_EXAMPLES_EMBEDDED_FILES_H_
#define PARAMSHARD_CLIENT_EXAMPLES_EMBEDDED_FILES_H_

#include <cstddef>
#include <cstdint>

namespace paramshard::examples {

extern const uint8_t kDigitsFile[];  // digits.csv.gz
extern const size_t kDigitsFileBytes;

}  // namespace paramshard::examples

#endif  // PARAMSHARD_CLIENT_EXAMPLES_EMBEDDED_FILES_H_
