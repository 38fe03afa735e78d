#include "server/data_plane/absent_gradients.h"

#include <cstddef>

namespace paramshard::server {

AbsentGradients::AbsentGradients(int members, int parameters, absl::Span<const std::vector<int32_t>> lists)
    : AbsentGradients(members, parameters) {
  for (size_t member = 0; member < lists.size(); ++member) Add(static_cast<int>(member), lists[member]);
}

void AbsentGradients::Add(int member, absl::Span<const int32_t> absent) {
  if (absent.empty()) return;
  const absl::Span<uint8_t> bits = bitmap(member);
  for (const int32_t parameter : absent) bits[parameter / 8] |= static_cast<uint8_t>(1 << parameter % 8);
}

bool AbsentGradients::OnAllMembers(int parameter) const {
  for (int member = 0; member < members_; ++member) {
    if (!Has(member, parameter)) return false;
  }
  return true;
}

std::vector<int32_t> AbsentGradients::OnAllMembers() const {
  std::vector<int32_t> all;
  for (int parameter = 0; parameter < parameters_ && !empty(); ++parameter) {
    if (OnAllMembers(parameter)) all.push_back(parameter);
  }
  return all;
}

absl::Span<uint8_t> AbsentGradients::bitmap(int member) {
  bits_.resize(members_ * bitmap_bytes());
  return absl::MakeSpan(bits_).subspan(member * bitmap_bytes(), bitmap_bytes());
}

}  // namespace paramshard::server
