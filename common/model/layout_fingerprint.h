// Fingerprint of a layout, which daemon and client compare before they exchange addresses.
#ifndef PARAMSHARD_COMMON_MODEL_LAYOUT_FINGERPRINT_H_
#define PARAMSHARD_COMMON_MODEL_LAYOUT_FINGERPRINT_H_

#include <cstdint>

#include "common/model/layout.h"

namespace paramshard {

// Returns XXH3-64 of the spec's fingerprint and of every number of the layout. It is equal if both sides read the spec
// the same way and put every byte at the same place.
uint64_t LayoutFingerprint(const Layout& layout);

}  // namespace paramshard

#endif  // PARAMSHARD_COMMON_MODEL_LAYOUT_FINGERPRINT_H_
