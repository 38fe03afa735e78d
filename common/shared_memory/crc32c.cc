#include "common/shared_memory/crc32c.h"

#include <array>
#include <cstring>

namespace paramshard::wire {
namespace {

constexpr uint32_t kReflectedPolynomial = 0x82f63b78;

constexpr std::array<uint32_t, 256> MakeTable() {
  std::array<uint32_t, 256> table{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? kReflectedPolynomial : 0);
    table[byte] = crc;
  }
  return table;
}

constexpr std::array<uint32_t, 256> kTable = MakeTable();

uint32_t ByTable(uint32_t crc, absl::string_view data) {
  for (const char c : data) crc = (crc >> 8) ^ kTable[(crc ^ static_cast<uint8_t>(c)) & 0xff];
  return crc;
}

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) uint32_t ByInstruction(uint32_t crc, absl::string_view data) {
  uint64_t wide = crc;
  while (data.size() >= sizeof(uint64_t)) {
    uint64_t word;
    std::memcpy(&word, data.data(), sizeof(word));
    wide = __builtin_ia32_crc32di(wide, word);
    data.remove_prefix(sizeof(word));
  }
  return ByTable(static_cast<uint32_t>(wide), data);
}
#endif

}  // namespace

uint32_t Crc32c(absl::string_view data) { return ExtendCrc32c(0, data); }

uint32_t ExtendCrc32c(uint32_t crc, absl::string_view data) {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("sse4.2")) return ~ByInstruction(~crc, data);
#endif
  return ~ByTable(~crc, data);
}

uint32_t ExtendCrc32c(uint32_t crc, uint32_t number) {
  const char bytes[] = {static_cast<char>(number), static_cast<char>(number >> 8), static_cast<char>(number >> 16),
                        static_cast<char>(number >> 24)};
  return ExtendCrc32c(crc, absl::string_view(bytes, sizeof(bytes)));
}

}  // namespace paramshard::wire
