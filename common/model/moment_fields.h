// Access to the fields that messages have once for each moment.
#ifndef PARAMSHARD_COMMON_MODEL_MOMENT_FIELDS_H_
#define PARAMSHARD_COMMON_MODEL_MOMENT_FIELDS_H_

#include <string>

#include "kernels/base/check.h"
#include "kernels/optim/moment_kind.h"
#include "paramshard/v1/trainer.pb.h"

namespace paramshard {

// The type of a moment in a ParameterSpec, a FormatRule or a description.
template <typename Message>
v1::MomentType MomentTypeIn(const Message& message, MomentKind kind) {
  switch (kind) {
    case MomentKind::kFirst:
      return message.exp_avg_type();
    case MomentKind::kSecond:
      return message.exp_avg_sq_type();
  }
  PARAMSHARD_CHECK(false);
  return v1::MOMENT_TYPE_UNSPECIFIED;
}

template <typename Message>
void SetMomentType(Message& message, MomentKind kind, v1::MomentType type) {
  switch (kind) {
    case MomentKind::kFirst:
      return message.set_exp_avg_type(type);
    case MomentKind::kSecond:
      return message.set_exp_avg_sq_type(type);
  }
}

// The range of a moment's values in an ExtentDescription.
struct MomentRange {
  double norm = 0, min = 0, max = 0;
};

template <typename Message>
MomentRange MomentRangeIn(const Message& message, MomentKind kind) {
  switch (kind) {
    case MomentKind::kFirst:
      return {message.exp_avg_norm(), message.exp_avg_min(), message.exp_avg_max()};
    case MomentKind::kSecond:
      return {message.exp_avg_sq_norm(), message.exp_avg_sq_min(), message.exp_avg_sq_max()};
  }
  PARAMSHARD_CHECK(false);
  return {};
}

template <typename Message>
void SetMomentRange(Message& message, MomentKind kind, const MomentRange& range) {
  switch (kind) {
    case MomentKind::kFirst:
      message.set_exp_avg_norm(range.norm);
      message.set_exp_avg_min(range.min);
      message.set_exp_avg_max(range.max);
      return;
    case MomentKind::kSecond:
      message.set_exp_avg_sq_norm(range.norm);
      message.set_exp_avg_sq_min(range.min);
      message.set_exp_avg_sq_max(range.max);
      return;
  }
}

// The hash of a moment's bytes in an ExtentVerification.
template <typename Message>
const std::string& MomentHashIn(const Message& message, MomentKind kind) {
  switch (kind) {
    case MomentKind::kFirst:
      return message.exp_avg_hash();
    case MomentKind::kSecond:
      return message.exp_avg_sq_hash();
  }
  PARAMSHARD_CHECK(false);
  return message.exp_avg_hash();
}

template <typename Message>
void SetMomentHash(Message& message, MomentKind kind, const std::string& hash) {
  switch (kind) {
    case MomentKind::kFirst:
      return message.set_exp_avg_hash(hash);
    case MomentKind::kSecond:
      return message.set_exp_avg_sq_hash(hash);
  }
}

}  // namespace paramshard

#endif  // PARAMSHARD_COMMON_MODEL_MOMENT_FIELDS_H_
