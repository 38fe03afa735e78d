// Conversion of durations between absl and protobuf.
#ifndef PARAMSHARD_COMMON_RPC_DURATIONS_H_
#define PARAMSHARD_COMMON_RPC_DURATIONS_H_

#include <google/protobuf/duration.pb.h>

#include <algorithm>
#include <cstdint>

#include "absl/time/time.h"

namespace paramshard {

// An infinite duration becomes the longest duration of a message, which is 10,000 years.
inline google::protobuf::Duration DurationToProto(absl::Duration duration) {
  constexpr absl::Duration kLongest = absl::Seconds(315'576'000'000);
  duration = std::clamp(duration, -kLongest, kLongest);
  google::protobuf::Duration message;
  message.set_seconds(absl::IDivDuration(duration, absl::Seconds(1), &duration));
  message.set_nanos(static_cast<int32_t>(absl::ToInt64Nanoseconds(duration)));
  return message;
}

// A received message may hold any numbers: a duration that is too long becomes infinite.
inline absl::Duration DurationFromProto(const google::protobuf::Duration& message) {
  return absl::Seconds(message.seconds()) + absl::Nanoseconds(message.nanos());
}

}  // namespace paramshard

#endif  // PARAMSHARD_COMMON_RPC_DURATIONS_H_
