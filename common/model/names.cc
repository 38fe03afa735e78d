#include "common/model/names.h"

#include <algorithm>
#include <cstdint>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace paramshard {
namespace {

constexpr size_t kMaxDisplayBytes = 64;

bool IsContinuation(char byte) { return (static_cast<uint8_t>(byte) & 0xc0) == 0x80; }

// Properties of a character by its first byte: its length, and the range of its second byte, which
// excludes overlong forms, surrogates and numbers above U+10FFFF (Unicode, table 3-7).
struct LeadByte {
  size_t length = 0;  // 0: no character starts so
  uint8_t second_min = 0x80;
  uint8_t second_max = 0xbf;
};

LeadByte Classify(uint8_t byte) {
  if (byte < 0x80) return {1};
  if (byte < 0xc2) return {0};
  if (byte < 0xe0) return {2};
  if (byte == 0xe0) return {3, 0xa0};
  if (byte == 0xed) return {3, 0x80, 0x9f};
  if (byte < 0xf0) return {3};
  if (byte == 0xf0) return {4, 0x90};
  if (byte < 0xf4) return {4};
  if (byte == 0xf4) return {4, 0x80, 0x8f};
  return {0};
}

// Returns the bytes of the character that `text` begins with; 0 if it does not begin with one.
size_t CharacterLength(absl::string_view text) {
  const LeadByte lead = Classify(static_cast<uint8_t>(text[0]));
  if (lead.length == 0 || lead.length > text.size()) return 0;
  if (lead.length == 1) return 1;
  const auto second = static_cast<uint8_t>(text[1]);
  if (second < lead.second_min || second > lead.second_max) return 0;
  return std::all_of(text.begin() + 2, text.begin() + lead.length, IsContinuation) ? lead.length : 0;
}

// Returns the first bytes of a text, cut between characters.
absl::string_view Head(absl::string_view text) {
  if (text.size() <= kMaxDisplayBytes) return text;
  size_t end = kMaxDisplayBytes;
  while (end > kMaxDisplayBytes - 3 && IsContinuation(text[end])) --end;
  return text.substr(0, end);
}

std::string Escape(absl::string_view text) {
  return IsUtf8(text) ? absl::Utf8SafeCHexEscape(text) : absl::CHexEscape(text);
}

}  // namespace

bool IsUtf8(absl::string_view text) {
  while (!text.empty()) {
    const size_t length = CharacterLength(text);
    if (length == 0) return false;
    text.remove_prefix(length);
  }
  return true;
}

absl::Status CheckName(absl::string_view name) {
  const auto refuse = [](absl::string_view got) {
    return absl::InvalidArgumentError(
        absl::StrCat("want a name of 1 to ", kMaxNameBytes, " bytes of UTF-8 without NUL, got ", got));
  };
  if (name.empty()) return refuse("an empty name");
  if (name.size() > kMaxNameBytes) return refuse(absl::StrCat(name.size(), " bytes"));
  if (name.find('\0') != absl::string_view::npos) {
    return refuse(absl::StrCat("a NUL in ", DisplayName(name)));
  }
  if (!IsUtf8(name)) return refuse(absl::StrCat("other bytes: ", DisplayName(name)));
  return absl::OkStatus();
}

std::string DisplayName(absl::string_view name) {
  if (name.empty()) return "\"\"";
  const absl::string_view head = Head(name);
  if (head.size() == name.size()) return Escape(name);
  return absl::StrCat(Escape(head), "... (", name.size(), " bytes)");
}

absl::Status UnknownParameter(absl::string_view operation, absl::string_view name) {
  return absl::NotFoundError(absl::StrCat(operation, ": parameter ", DisplayName(name), " not found"));
}

}  // namespace paramshard
