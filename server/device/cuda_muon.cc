#include "server/device/cuda_muon.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "kernels/base/align.h"
#include "kernels/base/status_macros.h"
#include "kernels/gpu/cublas_lt.h"
#include "kernels/gpu/status.h"
#include "kernels/optim/moved_state.h"
#include "kernels/optim/orthogonalizer_cuda.h"

namespace paramshard::server {
namespace {

// Elements that updates begin at multiples of.
constexpr int64_t kUpdateAlignment = 128;

const MutableMoment& MomentumOf(const ExtentTensors& extent) { return extent.state.moments[MomentKind::kFirst]; }

}  // namespace

absl::StatusOr<std::unique_ptr<CudaMuon>> CudaMuon::Create(int device, cudaStream_t stream,
                                                           absl::Span<const ExtentTensors> tensors,
                                                           absl::Span<const BandStart> bands) {
  std::unique_ptr<CudaMuon> muon(new CudaMuon(stream, tensors, bands));
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (!tensors[i].muon.has_value()) continue;
    muon->extents_.push_back(i);
    const MomentType type = MomentumOf(tensors[i]).type;
    if (!HasMomentScales(type)) continue;
    return absl::UnimplementedError(
        absl::StrCat("Muon on GPUs: want a momentum of FP32 or BF16, got ", MomentTypeName(type)));
  }
  if (muon->extents_.empty()) return nullptr;
  const int64_t bytes = muon->PlaceUpdates() * static_cast<int64_t>(sizeof(uint16_t));
  ASSIGN_OR_RETURN(muon->updates_, gpu::DeviceMemory::Create(device, bytes, {device}, /*shareable=*/false));
  std::vector<BFloat16Matrix> matrices;
  for (const size_t i : muon->extents_) {
    const std::vector<BFloat16Matrix> more = MatricesOf(*tensors[i].muon, muon->UpdateOf(i), tensors[i].columns);
    matrices.insert(matrices.end(), more.begin(), more.end());
  }
  ASSIGN_OR_RETURN(const gpu::CublasLt* const library, gpu::CublasLt::Load(""));
  ASSIGN_OR_RETURN(muon->orthogonalizer_, gpu::MakeCudaOrthogonalizer(*library, device, stream, matrices));
  return muon;
}

// Each update takes the first place that no update before it has which is needed at the same time.
int64_t CudaMuon::PlaceUpdates() {
  struct Place {
    size_t extent;
    int64_t begin;
    int64_t end;
  };
  update_offsets_.resize(tensors_.size(), 0);
  std::vector<Place> places;  // in the order of memory
  int64_t elements = 0;
  for (const size_t extent : extents_) {
    places.erase(std::remove_if(places.begin(), places.end(),
                                [&](const Place& place) { return !HaveCommonBand(place.extent, extent); }),
                 places.end());
    const int64_t size = AlignUp(tensors_[extent].elements(), kUpdateAlignment);
    int64_t begin = 0;
    auto next = places.begin();
    for (; next != places.end() && begin + size > next->begin; ++next) begin = next->end;
    places.insert(next, {extent, begin, begin + size});
    update_offsets_[extent] = begin;
    elements = std::max(elements, begin + size);
  }
  return elements;
}

bool CudaMuon::HaveCommonBand(size_t one, size_t other) const {
  if (bands_.empty()) return true;
  for (int band = 0; band < band_count(); ++band) {
    if (RowsIn(band, one).count > 0 && RowsIn(band, other).count > 0) return true;
  }
  return false;
}

ExtentRows CudaMuon::RowsIn(int band, size_t extent) const {
  return RowsInBand(bands_, band, static_cast<int64_t>(extent), tensors_[extent].rows);
}

uint16_t* CudaMuon::UpdateOf(size_t extent) const {
  return reinterpret_cast<uint16_t*>(updates_.data()) + update_offsets_[extent];
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
  has_update_.assign(tensors_.size(), false);
  position_ = position;
  distance_ = distance;
  progress_ = progress;
}

gpu::MuonElements CudaMuon::ElementsOf(size_t extent, const ExtentRows& rows) const {
  const ExtentTensors& tensors = tensors_[extent];
  const int64_t first = rows.first * tensors.columns;
  const OptimizerState old = MovedBy(tensors.state, position_);
  const OptimizerState fresh = MovedBy(old, distance_);
  return {.step = steps_[extent].value_or(OptimizerStep()),
          .gradient = GradientAt(tensors.gradient, first),
          .old = MomentAt(old.moments[MomentKind::kFirst], tensors.columns, rows.first, 0),
          .fresh = MomentAt(fresh.moments[MomentKind::kFirst], tensors.columns, rows.first, 0),
          .count = rows.count * tensors.columns};
}

absl::Status CudaMuon::EnqueueBand(int n) {
  const int band = BandAt(n, band_count(), /*forward=*/distance_ > 0);
  std::vector<size_t> without_update;
  std::vector<gpu::MuonElements> momentum;
  for (const size_t extent : extents_) {
    const ExtentRows rows = RowsIn(band, extent);
    if (rows.count == 0) continue;
    if (!steps_[extent].has_value()) {
      RETURN_IF_ERROR(CopyMomentum(extent, rows));
      continue;
    }
    if (!has_update_[extent]) without_update.push_back(extent);
    momentum.push_back(ElementsOf(extent, rows));
  }
  RETURN_IF_ERROR(EnqueueUpdates(without_update));
  return gpu::StepMuonMomentum(momentum, stream_);
}

// Bands that another process has done have left their momentum at the new place; that of all others is at the old one.
absl::Status CudaMuon::EnqueueUpdates(absl::Span<const size_t> extents) {
  std::vector<gpu::MuonUpdateElements> parts;
  for (const size_t extent : extents) {
    has_update_[extent] = true;
    for (int n = 0; n < std::max(band_count(), 1); ++n) {
      const ExtentRows rows = RowsIn(BandAt(n, band_count(), /*forward=*/distance_ > 0), extent);
      if (rows.count == 0) continue;
      gpu::MuonElements elements = ElementsOf(extent, rows);
      if (!progress_.HasDone(n)) elements.fresh.data = nullptr;
      parts.push_back({elements, UpdateOf(extent) + rows.first * tensors_[extent].columns});
    }
  }
  RETURN_IF_ERROR(gpu::MakeMuonUpdate(parts, stream_));
  for (const size_t extent : extents) {
    const ExtentTensors& tensors = tensors_[extent];
    RETURN_IF_ERROR(orthogonalizer_->Run({tensors.muon->steps, steps_[extent]->epsilon},
                                         MatricesOf(*tensors.muon, UpdateOf(extent), tensors.columns)));
  }
  return absl::OkStatus();
}

absl::Status CudaMuon::CopyMomentum(size_t extent, const ExtentRows& rows) const {
  if (distance_ == 0) return absl::OkStatus();
  const gpu::MuonElements elements = ElementsOf(extent, rows);
  return gpu::ToStatus(cudaMemcpyAsync(elements.fresh.data, elements.old.data,
                                       static_cast<size_t>(elements.count * MomentBytes(elements.old.type)),
                                       cudaMemcpyDeviceToDevice, stream_),
                       "move a momentum");
}

}  // namespace paramshard::server
