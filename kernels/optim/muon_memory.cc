#include "kernels/optim/muon_memory.h"

#include <algorithm>
#include <cstddef>
#include <vector>

#include "kernels/optim/orthogonalizer.h"
#include "kernels/optim/orthogonalizer_memory.h"

namespace paramshard {
namespace {

// Returns the matrices of all updates, as if the memory of updates began at a page's boundary: only alignment counts.
std::vector<BFloat16Matrix> MatricesOf(absl::Span<const MuonExtent> extents, const UpdateGroups& updates) {
  constexpr uintptr_t kBegin = 4096;
  std::vector<BFloat16Matrix> matrices;
  for (const std::vector<size_t>& group : updates.groups) {
    for (const size_t extent : group) {
      // Never read or written. NOLINTNEXTLINE(performance-no-int-to-ptr)
      auto* const update = reinterpret_cast<uint16_t*>(kBegin + updates.offsets[extent] * sizeof(uint16_t));
      const std::vector<BFloat16Matrix> more =
          MatricesOf(*extents[extent].matrices, update, extents[extent].shape.cols);
      matrices.insert(matrices.end(), more.begin(), more.end());
    }
  }
  return matrices;
}

}  // namespace

MuonMemory HostMuonMemory(absl::Span<const MuonExtent> extents) {
  MuonMemory memory;
  memory.updates.offsets.resize(extents.size(), 0);
  for (size_t i = 0; i < extents.size(); ++i) {
    if (!extents[i].matrices.has_value()) continue;
    memory.updates.groups.push_back({i});
    memory.updates.elements = std::max(memory.updates.elements, extents[i].shape.rows * extents[i].shape.cols);
  }
  if (memory.updates.groups.empty()) return memory;
  memory.product_bytes = HostOrthogonalizerBytes(MatricesOf(extents, memory.updates));
  return memory;
}

MuonMemory GpuMuonMemory(absl::Span<const MuonExtent> extents, absl::Span<const BandStart> bands) {
  std::vector<MatrixShape> shapes;
  std::vector<bool> has_update;
  for (const MuonExtent& extent : extents) {
    shapes.push_back(extent.shape);
    has_update.push_back(extent.matrices.has_value());
  }
  MuonMemory memory;
  memory.updates = GroupUpdates(shapes, has_update, bands);
  memory.product_bytes = gpu::OrthogonalizerBytes(MatricesOf(extents, memory.updates));
  return memory;
}

}  // namespace paramshard
