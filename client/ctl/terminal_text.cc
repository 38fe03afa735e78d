#include "client/ctl/terminal_text.h"

#include <cstddef>
#include <cstdint>

#include "absl/strings/str_format.h"

namespace paramshard::ctl {
namespace {

// Returns the bytes of the first character, if it is valid UTF-8 and printable; else 0.
size_t ShownBytes(absl::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  if (byte(0) < 0x80) return byte(0) >= 0x20 && byte(0) != 0x7f ? 1 : 0;
  // Smallest code point of each length: overlong forms are invalid UTF-8, and C1 controls are not printable.
  constexpr uint32_t kLeast[] = {0xa0, 0x800, 0x10000};
  const size_t size = byte(0) >= 0xf0 ? 4 : byte(0) >= 0xe0 ? 3 : 2;
  if (byte(0) < 0xc0 || byte(0) > 0xf7 || text.size() < size) return 0;
  uint32_t point = byte(0) & (0x7f >> size);
  for (size_t i = 1; i < size; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
    point = point << 6 | (byte(i) & 0x3f);
  }
  const bool is_surrogate = point >= 0xd800 && point < 0xe000;
  return point < kLeast[size - 2] || point > 0x10ffff || is_surrogate ? 0 : size;
}

}  // namespace

std::string TerminalText(absl::string_view text) {
  std::string shown;
  while (!text.empty()) {
    const size_t size = ShownBytes(text);
    if (size > 0) {
      shown.append(text.data(), size);
    } else {
      absl::StrAppendFormat(&shown, "\\x%02x", static_cast<unsigned char>(text[0]));
    }
    text.remove_prefix(size > 0 ? size : 1);
  }
  return shown;
}

}  // namespace paramshard::ctl
