// Random changes of files.
#ifndef PARAMSHARD_TESTS_FUZZ_MUTATOR_H_
#define PARAMSHARD_TESTS_FUZZ_MUTATOR_H_

#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace paramshard {

class Mutator {
 public:
  // Mutations insert `words` that files consist of, so that parsers do not reject all mutated files at once.
  Mutator(uint64_t seed, std::vector<std::string> words) : random_(seed), words_(std::move(words)) {}

  // One to four changes.
  std::string Mutate(std::string bytes) {
    for (size_t changes = 1 + Below(4); changes > 0; --changes) Change(bytes);
    return bytes;
  }

  size_t Below(size_t limit) { return random_() % limit; }

 private:
  void Change(std::string& bytes) {
    const size_t at = Below(bytes.size() + 1);
    switch (Below(5)) {
      case 0:
        if (at < bytes.size()) bytes[at] = static_cast<char>(random_());
        break;
      case 1:
        if (at < bytes.size()) bytes[at] = static_cast<char>(bytes[at] ^ (1 << Below(8)));
        break;
      case 2:
        bytes.erase(at, Below(8));
        break;
      case 3:
        bytes.insert(at, words_[Below(words_.size())]);
        break;
      default:
        bytes.insert(at, bytes.substr(Below(bytes.size() + 1), Below(32)));
    }
  }

  std::mt19937_64 random_;
  std::vector<std::string> words_;
};

}  // namespace paramshard

#endif  // PARAMSHARD_TESTS_FUZZ_MUTATOR_H_
