// Reads a unit's values into a caller's memory, by one call for each gather.
#ifndef PARAMSHARD_PYTHON_BINDINGS_UNIT_READER_H_
#define PARAMSHARD_PYTHON_BINDINGS_UNIT_READER_H_

#include <nanobind/nanobind.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "client/client.h"
#include "python/bindings/shared_model.h"
#include "python/bindings/streams.h"

namespace paramshard::python {

// Plan of reads: parameters, representations, and places in blocks of memory, whose addresses each call gives.
class PyUnitReader {
 public:
  // Parameter; FP32 or BF16; block, and bytes from its beginning.
  using DecodedTuple = std::tuple<std::string, std::string, size_t, int64_t>;
  // Parameter; true for transposed; block, and bytes from its beginning; address and pitch of scales.
  using OperandTuple = std::tuple<std::string, bool, size_t, int64_t, uintptr_t, int64_t>;

  PyUnitReader(std::shared_ptr<SharedModel> model, std::string unit, const std::vector<DecodedTuple>& decoded,
               const std::vector<OperandTuple>& operands);

  // See BindUnitReader. With the interpreter's lock, which it releases while it works.
  void Read(const std::vector<uintptr_t>& blocks, std::optional<StreamAddress> stream) const;

 private:
  struct Place {
    size_t block;
    int64_t offset;
  };
  struct Decoded {
    std::string parameter;
    DecodedElement element;
    Place place;
  };
  struct Operand {
    std::string parameter;
    bool transposed;
    Place place;
    uintptr_t scales;
    int64_t scales_pitch;
  };

  // Throws for an impossible place.
  Place PlaceAt(const std::string& parameter, size_t block, int64_t offset);
  static uintptr_t AddressAt(absl::Span<const uintptr_t> blocks, const Place& place);
  absl::Status ReadFrom(Model& model, absl::Span<const uintptr_t> blocks, std::optional<StreamAddress> stream) const;

  const std::shared_ptr<SharedModel> model_;
  const std::string unit_;
  std::vector<Decoded> decoded_;
  std::vector<Operand> operands_;
  size_t blocks_ = 0;
};

void BindUnitReader(nanobind::module_& module);

}  // namespace paramshard::python

#endif  // PARAMSHARD_PYTHON_BINDINGS_UNIT_READER_H_
