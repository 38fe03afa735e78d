// Protobuf messages of any type, filled with plausible values.
#ifndef PARAMSHARD_TESTS_FUZZ_RANDOM_MESSAGE_H_
#define PARAMSHARD_TESTS_FUZZ_RANDOM_MESSAGE_H_

#include <google/protobuf/descriptor.h>

#include <string>

#include "tests/fuzz/mutator.h"

namespace paramshard {

// The serialized message: most fields are set, repeated ones up to twice, one of each oneof; numbers are small ones and
// limits, and every field `model` or `name` holds `model`. Each third message has changed bytes.
std::string RandomMessage(const google::protobuf::Descriptor& type, const std::string& model, Mutator& mutator);

}  // namespace paramshard

#endif  // PARAMSHARD_TESTS_FUZZ_RANDOM_MESSAGE_H_
