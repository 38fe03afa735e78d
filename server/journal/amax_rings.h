// Rings of a journal that hold histories of amaxes.
#ifndef PARAMSHARD_SERVER_JOURNAL_AMAX_RINGS_H_
#define PARAMSHARD_SERVER_JOURNAL_AMAX_RINGS_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "server/journal/journal_codec.h"
#include "server/journal/journal_content.h"
#include "server/journal/journal_layout.h"
#include "server/journal/journal_stores.h"

namespace paramshard::server {

// View of the rings in a journal's memory; the memory outlives the view. Each parameter with a history has a ring. A
// ring has one place more than the history is long, so that a value can be stored outside the published window.
// Functions take the index in the book of such a parameter, and a window that is valid: JournalReader checks stored
// windows.
//
//   window = rings.Replace(parameter, history, window, stores);   stores a whole history
//   rings_hash += rings.Append(parameter, amax, window, stores);  stores one more value
//   rings.Hash(parameter, window)                                 returns the part of rings_hash
//   rings.Read(parameter, window)                                 returns the history
//
// Not thread-safe.
class AmaxRings {
 public:
  // `journal` is the beginning of the memory.
  AmaxRings(const JournalLayout& layout, absl::Span<const JournalIdentity::BookParameter> book, const uint8_t* journal);

  // Returns the history that the window holds.
  JournalScaling::History Read(size_t parameter, const RingWindow& window) const;
  // Returns the sum of the hashes of the window's values.
  uint64_t Hash(size_t parameter, const RingWindow& window) const;

  // Stores a history in place of the one in `old`, and returns its window. The same history stays where it is; another
  // takes places that `old` does not use, if there are enough.
  RingWindow Replace(size_t parameter, const JournalScaling::History& history, const RingWindow& old,
                     const JournalStores& stores) const;
  // Stores a value outside the window, and moves the window to it; the oldest value of a full window leaves. Returns
  // the change of the window's hash.
  uint64_t Append(size_t parameter, float amax, RingWindow& window, const JournalStores& stores) const;

 private:
  struct Ring {
    int64_t offset = 0;  // in the journal, in bytes
    int64_t places = 0;
  };

  // Returns the place of the window's value of that age.
  int64_t PlaceOf(size_t parameter, const RingWindow& window, int64_t age) const {
    return (window.newest + rings_[parameter].places - age) % rings_[parameter].places;
  }
  int64_t OffsetOf(size_t parameter, int64_t place) const {
    return rings_[parameter].offset + place * static_cast<int64_t>(sizeof(float));
  }
  float Value(size_t parameter, int64_t place) const;

  const uint8_t* const journal_;
  std::vector<Ring> rings_;  // by parameter of the book
};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_JOURNAL_AMAX_RINGS_H_
