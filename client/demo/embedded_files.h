// The files of data/, as the build puts them into the programs: still compressed.
#ifndef PARAMSHARD_CLIENT_DEMO_EMBEDDED_FILES_H_
#define PARAMSHARD_CLIENT_DEMO_EMBEDDED_FILES_H_

#include <cstddef>
#include <cstdint>

namespace paramshard::demo {

extern const uint8_t kDigitsFile[];  // digits.csv.gz
extern const size_t kDigitsFileBytes;

}  // namespace paramshard::demo

#endif  // PARAMSHARD_CLIENT_DEMO_EMBEDDED_FILES_H_
