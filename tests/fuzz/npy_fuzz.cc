// The .npy reader: the bytes are a file. The writer writes accepted files the same, except for the spaces of the
// header, and files are read the same from memory and from disk.

#include <string>

#include "client/ctl/npy.h"
#include "kernels/base/check.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/memory_file.h"

namespace paramshard {
namespace {

bool Equal(const NpyArray& a, const NpyArray& b) {
  return a.dtype == b.dtype && a.shape == b.shape && a.bytes == b.bytes;
}

void Run(const std::string& input) {
  const absl::StatusOr<NpyArray> array = ParseNpy(input);
  const absl::StatusOr<NpyArray> from_file = ReadNpy(MemoryFile(input).path());
  PARAMSHARD_CHECK(array.status().code() == from_file.status().code());
  if (!array.ok()) return;
  PARAMSHARD_CHECK(Equal(*array, *from_file));
  const absl::StatusOr<std::string> text = SerializeNpy(*array);
  // A header of many dimensions may be longer with our spaces.
  if (!text.ok()) return;
  const absl::StatusOr<NpyArray> again = ParseNpy(*text);
  PARAMSHARD_CHECK(again.ok() && Equal(*array, *again));
}

std::string FileOf(const std::string& header, const std::string& elements) {
  std::string file("\x93NUMPY\x01\x00", 8);
  file.push_back(static_cast<char>(header.size() & 0xff));
  file.push_back(static_cast<char>(header.size() >> 8));
  return file + header + elements;
}

// Gives most inputs a length that fits the header, so that it is read.
std::string WithLength(std::string input, Mutator& mutator) {
  const size_t end = input.rfind('}');
  if (end == std::string::npos || end < 10 || mutator.Below(4) == 0) return input;
  const size_t length = end + 1 - 10;
  input[8] = static_cast<char>(length & 0xff);
  input[9] = static_cast<char>(length >> 8);
  return input;
}

}  // namespace

const FuzzTarget& Target() {
  static const auto* const target = new FuzzTarget{
      .seeds = {FileOf("{'descr': '<f4', 'fortran_order': False, 'shape': (2, 2), }", std::string(16, 'd')),
                FileOf("{'descr': '|u1', 'fortran_order': False, 'shape': (3,), }", "ddd"),
                FileOf("{'shape': (), 'fortran_order': False, 'descr': '<u2'}", "dd"),
                FileOf("{'descr': '<i2', 'fortran_order': True, 'shape': (0, 9223372036854775807), }", ""),
                FileOf("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1)}", "")},
      .words = {"{", "}", "(", ")", ",", ":", "'", "'descr'", "'shape'", "'fortran_order'", "False", "True", "'<f4'",
                "0", "1,", "4294967296", "9223372036854775807", std::string(1, '\0')},
      .runs = 100'000,
      .run = Run,
      .mend = WithLength};
  return *target;
}

}  // namespace paramshard
