// Plays gathers of a layout on tagged bytes, and looks for every byte where the layout says that
// it is.
#ifndef PARAMSHARD_TESTS_PROTO_MODEL_GATHER_CHECK_H_
#define PARAMSHARD_TESTS_PROTO_MODEL_GATHER_CHECK_H_

#include <cstdint>
#include <vector>

#include "proto/model/layout.h"
#include "proto/model/model_spec.h"

namespace paramshard {

// What a byte of an arena or slot is: which byte of which array of which parameter. 0 is a byte
// that nobody wrote.
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

  // One plane of one parameter: what tests know of it, and what the layout says.
  struct PlaneCase;

  int ParameterCount(int unit) const { return static_cast<int>(spec_.units[unit].parameters.size()); }
  const ParameterSpec& Spec(int unit, int parameter) const { return spec_.units[unit].parameters[parameter]; }
  std::vector<PlaneCase> Planes(int unit, int parameter) const;
  std::vector<PlaneCase> PlanesOfUnit(int unit) const;
  // The owner of each row, by the rule for large parameters or as the layout says for a small one.
  std::vector<int> RowOwners(int unit, int parameter) const;

  void FillArenas();
  void FillPlane(const PlaneCase& plane, int rank);
  void CheckExtents(int unit, int parameter) const;
  int64_t ExpectedPlaneBytes(int unit, int parameter, int64_t rows) const;

  // A slot after the gather of a phase, with every piece checked on its way.
  Memory Gather(int unit, Phase phase) const;
  static void CheckOffsets(const PlaneCase& plane, Phase phase);
  void ExpectPlane(const Memory& slot, const PlaneCase& plane, Phase phase) const;
  void ExpectScales(const Memory& slot, const PlaneCase& plane, Phase phase) const;
  // A number of the tensor is on every rank, or on the owner.
  void ExpectAmax(const Memory& slot, const PlaneCase& plane, Phase phase) const;

  // The rank that sends each byte of a gradient slot, -1 where nobody does.
  std::vector<int> GradientSenders(int unit) const;

  const ModelSpec& spec_;
  const Layout& layout_;
  std::vector<Memory> arenas_;
};

}  // namespace paramshard

#endif  // PARAMSHARD_TESTS_PROTO_MODEL_GATHER_CHECK_H_
