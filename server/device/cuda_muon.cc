#include "server/device/cuda_muon.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "kernels/gpu/status.h"
#include "kernels/optim/moved_state.h"
#include "kernels/optim/orthogonalizer_cuda.h"
#include "kernels/products/device_products.h"

namespace paramshard::server {
namespace {

const MutableMoment& MomentumOf(const ExtentTensors& extent) { return extent.state.moments[MomentKind::kFirst]; }

bool AreEqual(const NewtonSchulz& one, const NewtonSchulz& other) {
  return one.epsilon == other.epsilon &&
         std::equal(one.steps.begin(), one.steps.end(), other.steps.begin(), other.steps.end(),
                    [](const NewtonSchulzStep& a, const NewtonSchulzStep& b) {
                      return a.a == b.a && a.b == b.b && a.c == b.c;
                    });
}

}  // namespace

absl::StatusOr<std::unique_ptr<CudaMuon>> CudaMuon::Create(int device, cudaStream_t stream,
                                                           absl::Span<const ExtentTensors> tensors,
                                                           absl::Span<const BandStart> bands) {
  std::unique_ptr<CudaMuon> muon(new CudaMuon(stream, tensors, bands));
  if (muon->groups().empty()) return nullptr;
  for (const ExtentTensors& extent : tensors) {
    if (!extent.muon.has_value() || !HasMomentScales(MomentumOf(extent).type)) continue;
    return absl::UnimplementedError(
        absl::StrCat("Muon on GPUs: want a momentum of FP32 or BF16, got ", MomentTypeName(MomentumOf(extent).type)));
  }
  ASSIGN_OR_RETURN(muon->memory_,
                   gpu::DeviceMemory::Create(device, muon->plan_.UpdateBytes(), {device}, /*shareable=*/false));
  ASSIGN_OR_RETURN(std::unique_ptr<gpu::MatrixProducts> products, gpu::MakeMatrixProducts(device));
  ASSIGN_OR_RETURN(muon->orthogonalizer_,
                   gpu::MakeCudaOrthogonalizer(std::move(products), device, stream, muon->plan_.product_bytes));
  return muon;
}

int64_t CudaMuon::BytesFor(int device, absl::Span<const MuonExtent> extents, absl::Span<const BandStart> bands) {
  const MuonMemory plan = GpuMuonMemory(extents, bands);
  return plan.updates.groups.empty() ? 0 : plan.Total() + gpu::MatrixProductsBytes(device);
}

bool CudaMuon::HasRows(const Group& group, int band) const {
  return std::any_of(group.begin(), group.end(), [&](size_t extent) { return RowsIn(band, extent).count > 0; });
}

ExtentRows CudaMuon::RowsIn(int band, size_t extent) const {
  return RowsInBand(bands_, band, static_cast<int64_t>(extent), tensors_[extent].rows);
}

uint16_t* CudaMuon::UpdateOf(size_t extent) const {
  return reinterpret_cast<uint16_t*>(memory_.data()) + plan_.updates.offsets[extent];
}

ExtentTensors CudaMuon::ForFusedStep(const ExtentTensors& extent, size_t index) const {
  if (!extent.muon.has_value()) return extent;
  ExtentTensors stepped = extent;
  stepped.state.moments = {};
  stepped.gradient = {UpdateOf(index), GradientType::kBF16};
  return stepped;
}

void CudaMuon::BeginStep(absl::Span<const std::optional<OptimizerStep>> steps, int64_t position, int64_t distance,
                         const StepProgress& progress) {
  steps_.assign(steps.begin(), steps.end());
  has_updates_.assign(groups().size(), false);
  position_ = position;
  distance_ = distance;
  progress_ = progress;
}

MutableMoment CudaMuon::MomentumAt(size_t extent, int64_t row, int64_t position) const {
  const ExtentTensors& tensors = tensors_[extent];
  return MomentAt(MovedBy(tensors.state, position).moments[MomentKind::kFirst], tensors.columns, row, 0);
}

absl::Status CudaMuon::EnqueueBand(int n) {
  std::vector<gpu::MuonElements> parts;
  std::vector<const Group*> without_updates;
  for (size_t g = 0; g < groups().size(); ++g) {
    const Group& group = groups()[g];
    const int band = BandAt(n, band_count(), /*forward=*/distance_ > 0);
    if (!HasRows(group, band)) continue;
    const bool makes_updates = !has_updates_[g];
    has_updates_[g] = true;
    if (makes_updates) without_updates.push_back(&group);
    for (const size_t extent : group) {
      if (steps_[extent].has_value()) {
        AddParts(extent, n, makes_updates, parts);
      } else {
        RETURN_IF_ERROR(CopyMomentum(extent, RowsIn(band, extent)));
      }
    }
  }
  RETURN_IF_ERROR(gpu::StepMuon(parts, stream_));
  for (const Group* const group : without_updates) RETURN_IF_ERROR(Orthogonalize(*group));
  return absl::OkStatus();
}

// Bands that another process has done have left their momentum at the new place; that of all others is at the old one.
void CudaMuon::AddParts(size_t extent, int n, bool makes_updates, std::vector<gpu::MuonElements>& parts) const {
  const int64_t columns = tensors_[extent].columns;
  const bool forward = distance_ > 0;
  for (int m = 0; m < std::max(band_count(), 1); ++m) {
    const ExtentRows rows = RowsIn(BandAt(m, band_count(), forward), extent);
    if (rows.count == 0 || (m != n && !makes_updates)) continue;
    const bool is_stepped = progress_.HasDone(m);
    gpu::MuonElements& elements = parts.emplace_back(
        gpu::MuonElements{.step = *steps_[extent],
                          .gradient = GradientAt(tensors_[extent].gradient, rows.first * columns),
                          .momentum = MomentumAt(extent, rows.first, is_stepped ? position_ + distance_ : position_),
                          .is_stepped = is_stepped,
                          .count = rows.count * columns});
    if (m == n) elements.fresh = MomentumAt(extent, rows.first, position_ + distance_);
    if (makes_updates) elements.update = UpdateOf(extent) + rows.first * columns;
  }
}

absl::Status CudaMuon::Orthogonalize(const Group& group) const {
  NewtonSchulz iteration;
  std::vector<BFloat16Matrix> matrices;
  for (const size_t extent : group) {
    if (!steps_[extent].has_value()) continue;
    const ExtentTensors& tensors = tensors_[extent];
    const NewtonSchulz next = {tensors.muon->steps, steps_[extent]->epsilon};
    if (!AreEqual(next, iteration)) {
      RETURN_IF_ERROR(orthogonalizer_->Run(iteration, matrices));
      matrices.clear();
      iteration = next;
    }
    const std::vector<BFloat16Matrix> more = MatricesOf(*tensors.muon, UpdateOf(extent), tensors.columns);
    matrices.insert(matrices.end(), more.begin(), more.end());
  }
  return orthogonalizer_->Run(iteration, matrices);
}

absl::Status CudaMuon::CopyMomentum(size_t extent, const ExtentRows& rows) const {
  if (distance_ == 0 || rows.count == 0) return absl::OkStatus();
  const MutableMoment old = MomentumAt(extent, rows.first, position_);
  const MutableMoment fresh = MomentumAt(extent, rows.first, position_ + distance_);
  const int64_t bytes = rows.count * tensors_[extent].columns * MomentBytes(old.type);
  return gpu::ToStatus(
      cudaMemcpyAsync(fresh.data, old.data, static_cast<size_t>(bytes), cudaMemcpyDeviceToDevice, stream_),
      "move a momentum");
}

}  // namespace paramshard::server
