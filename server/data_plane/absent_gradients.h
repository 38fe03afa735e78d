// Parameters without a gradient in a push, by rank.
#ifndef PARAMSHARD_SERVER_DATA_PLANE_ABSENT_GRADIENTS_H_
#define PARAMSHARD_SERVER_DATA_PLANE_ABSENT_GRADIENTS_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace paramshard::server {

// One bitmap of a unit's parameters for each member of a group. Holds no memory while nothing is absent.
//
//   AbsentGradients absent(/*members=*/2, /*parameters=*/8);
//   absent.Add(1, {3, 5});
//   absent.Has(1, 5);        // true
//   absent.OnAllMembers();   // {}: member 0 has every gradient
class AbsentGradients {
 public:
  AbsentGradients(int members, int parameters) : members_(members), parameters_(parameters) {}
  // `lists`: of each member; empty if no member is without a gradient.
  AbsentGradients(int members, int parameters, absl::Span<const std::vector<int32_t>> lists);

  // Adds parameters of a member. Requires parameters in [0, parameters).
  void Add(int member, absl::Span<const int32_t> absent);

  // Returns true if every member has every gradient.
  bool empty() const { return bits_.empty(); }
  bool Has(int member, int parameter) const {
    return !bits_.empty() && (bits_[member * bitmap_bytes() + parameter / 8] >> parameter % 8 & 1) != 0;
  }
  bool OnAllMembers(int parameter) const;
  // Returns the parameters that are absent on all members, ascending.
  std::vector<int32_t> OnAllMembers() const;

  // Returns a member's bitmap, to send it or to receive it. Parameter i is bit i % 8 of byte i / 8.
  absl::Span<uint8_t> bitmap(int member);

 private:
  int64_t bitmap_bytes() const { return (parameters_ + 7) / 8; }

  int members_;
  int parameters_;
  std::vector<uint8_t> bits_;  // by member
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_DATA_PLANE_ABSENT_GRADIENTS_H_
