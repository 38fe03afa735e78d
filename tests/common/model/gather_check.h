// Simulation of a layout's gathers on tagged bytes: every byte has to be where the layout says.
#ifndef PARAMSHARD_TESTS_COMMON_MODEL_GATHER_CHECK_H_
#define PARAMSHARD_TESTS_COMMON_MODEL_GATHER_CHECK_H_

#include <cstdint>
#include <vector>

#include "common/model/layout.h"
#include "common/model/model_spec.h"

namespace paramshard {

// Origin of a byte of an arena or slot: its parameter, array and place in the array. 0 is a byte that
// was not written.
using Tag = uint64_t;

// Fills the arenas of all ranks as the daemon does, from the fields of Layout; reads slots as a
// client does, from nothing but Layout::ToProto(). Failures are reported to GoogleTest.
class GatherCheck {
 public:
  GatherCheck(const ModelSpec& spec, const Layout& layout);

  // Every byte of every plane lies in exactly one arena, nothing overlaps, and extents are
  // torch.chunk's.
  void CheckArenas() const;
  // Pieces of all ranks fill a slot without overlap, and each plane of the phase is found in it,
  // whole and contiguous.
  void CheckGather(int unit, Phase phase) const;
  // With one rank, planes are found in the arena itself.
  void CheckArenaAsView(int unit) const;
  // Slices of all ranks hold every gradient once, as rows are owned.
  void CheckGradients(int unit) const;

 private:
  using Memory = std::vector<Tag>;

  // One plane of one parameter: the reference's numbers and the layout's.
  struct PlaneCase;

  int ParameterCount(int unit) const { return static_cast<int>(spec_.units[unit].parameters.size()); }
  const ParameterSpec& Spec(int unit, int parameter) const { return spec_.units[unit].parameters[parameter]; }
  std::vector<PlaneCase> Planes(int unit, int parameter) const;
  std::vector<PlaneCase> PlanesOfUnit(int unit) const;
  // Returns the owner of each row: by the rule for a large parameter, by the layout for a small one.
  std::vector<int> RowOwners(int unit, int parameter) const;

  // Does the same for a large parameter of Placement::kOwned, by the layout, and checks that matrices are whole.
  std::vector<int> MatrixOwners(int unit, int parameter) const;

  void FillArenas();
  void FillPlane(const PlaneCase& plane, int rank);
  void FillOwnedPlane(const PlaneCase& plane, int rank);
  void CheckExtents(int unit, int parameter) const;
  int64_t ExpectedPlaneBytes(int unit, int parameter, int64_t rows) const;

  // Returns a slot after the gather of a phase, and checks every piece.
  Memory Gather(int unit, Phase phase) const;
  static void CheckOffsets(const PlaneCase& plane, Phase phase);
  void ExpectPlane(const Memory& slot, const PlaneCase& plane, Phase phase) const;
  void ExpectScales(const Memory& slot, const PlaneCase& plane, Phase phase) const;
  // A number of the tensor is on every rank, or on the owner.
  void ExpectAmax(const Memory& slot, const PlaneCase& plane, Phase phase) const;

  // Returns the rank that sends each byte of a gradient slot, -1 for bytes that are not sent.
  std::vector<int> GradientSenders(int unit) const;

  const ModelSpec& spec_;
  const Layout& layout_;
  std::vector<Memory> arenas_;
};

}  // namespace paramshard

#endif  // PARAMSHARD_TESTS_COMMON_MODEL_GATHER_CHECK_H_
