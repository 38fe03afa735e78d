// data/digits.csv.gz, as the build puts it into the program.
#ifndef PARAMSHARD_CLIENT_EXAMPLES_DIGITS_FILE_H_
#define PARAMSHARD_CLIENT_EXAMPLES_DIGITS_FILE_H_

#include <cstddef>
#include <cstdint>

namespace paramshard::examples {

extern const uint8_t kDigitsFile[];
extern const size_t kDigitsFileBytes;

}  // namespace paramshard::examples

#endif  // PARAMSHARD_CLIENT_EXAMPLES_DIGITS_FILE_H_
