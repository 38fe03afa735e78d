// Snapshot: a public class on top of internal::Lease.
#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/synchronization/mutex.h"
#include "client/internal/bound_plan.h"
#include "client/internal/box_copy.h"
#include "client/internal/deadline.h"
#include "client/internal/gpu_boxes.h"
#include "client/internal/host_bytes.h"
#include "client/internal/lease.h"
#include "client/internal/reader_session.h"
#include "client/internal/shared_loop.h"
#include "client/plan.h"
#include "client/reader.h"
#include "kernels/base/status_macros.h"

namespace paramshard {

using internal::BoxCopy;
using internal::Deadline;
using internal::HostBytes;
using internal::Interruption;
using internal::Lease;
using internal::OutputOf;
using internal::PlannedCopy;

namespace {

// Most bytes of a piece of what threads share; least bytes for which that is worth it.
constexpr int64_t kPieceBytes = 4 << 20;
constexpr int64_t kSharedBytes = 4 * kPieceBytes;

int64_t BytesOf(const std::vector<PlannedCopy>& copies) {
  int64_t bytes = 0;
  for (const PlannedCopy& each : copies) {
    const BoxCopy& copy = each.copy;
    const BoxOutput output = OutputOf(copy.matrix.encoding, copy.content, copy.rows.size(), copy.columns);
    bytes += output.rows * output.row_bytes;
  }
  return bytes;
}

// Says what to do where a copy is so large that it may never be in time.
absl::Status Advised(const absl::Status& status, const std::vector<PlannedCopy>& copies) {
  const int64_t bytes = absl::IsAborted(status) ? BytesOf(copies) : 0;
  if (bytes < kSharedBytes) return status;
  return absl::AbortedError(absl::StrCat(status.message(), "; ", bytes >> 20,
                                         " MiB were not read in time: if that happens again and again, raise the "
                                         "daemon's --reader-hold"));
}

// Returns the error, unless it may be of planes that were written again meanwhile: then the lease's.
absl::Status Founded(const absl::Status& error, const Lease& lease) {
  RETURN_IF_ERROR(lease.Check());
  return error;
}

// Calls `use` for each copy, in turn with the interruption and a look at the lease: a lease that has ended ends a long
// copy.
template <typename Use>
absl::Status ForAll(const Lease& lease, const std::vector<PlannedCopy>& copies, Use use) {
  RETURN_IF_ERROR(lease.Check());
  Deadline next = Deadline::After(Interruption::kSlice);
  for (const PlannedCopy& each : copies) {
    if (const absl::Status used = use(each); !used.ok()) return Founded(used, lease);
    if (!next.Passed()) continue;
    RETURN_IF_ERROR(lease.interruption().Ask());
    RETURN_IF_ERROR(lease.Check());
    next = Deadline::After(Interruption::kSlice);
  }
  return lease.Check();
}

absl::Status CopyAll(const Lease& lease, const std::vector<PlannedCopy>& copies) {
  return Advised(ForAll(lease, copies, [](const PlannedCopy& each) { return CopyBox(each.copy); }), copies);
}

// Returns the copies in pieces of some rows.
std::vector<PlannedCopy> PiecesOf(const std::vector<PlannedCopy>& copies) {
  std::vector<PlannedCopy> pieces;
  for (const PlannedCopy& each : copies) {
    for (RowRange rows = each.copy.rows; rows.begin < each.copy.rows.end; rows.begin = rows.end) {
      rows = SomeRows(each.copy, rows.begin, kPieceBytes);
      pieces.push_back({.box = each.box, .copy = PartOf(each.copy, rows)});
    }
  }
  return pieces;
}

// Calls `inspect` for each copy, or for pieces of them on all CPUs of the process where they are large: a step waits, for
// a bounded time.
absl::Status InspectAll(const Lease& lease, const std::vector<PlannedCopy>& copies, bool is_on_host,
                        absl::FunctionRef<absl::Status(const PlannedCopy& piece)> inspect) {
  const auto is_in_host_memory = [](const PlannedCopy& each) { return each.copy.matrix.gpu < 0; };
  if (!is_on_host || BytesOf(copies) < kSharedBytes || !std::all_of(copies.begin(), copies.end(), is_in_host_memory)) {
    return Advised(ForAll(lease, copies, inspect), copies);
  }
  const std::vector<PlannedCopy> pieces = PiecesOf(copies);
  const auto ask = [&] {
    RETURN_IF_ERROR(lease.Check());
    return lease.interruption().Ask();
  };
  RETURN_IF_ERROR(Advised(lease.Check(), copies));
  const absl::Status inspected = internal::RunShared({.count = static_cast<int64_t>(pieces.size()),
                                                      .threads = internal::SharedLoopThreads(),
                                                      .body = [&](int64_t i) { return inspect(pieces[i]); },
                                                      .ask = ask});
  return Advised(Founded(inspected, lease), copies);
}

// Copies a whole parameter to `size` values.
absl::Status ReadWhole(const Lease& lease, absl::string_view name, BoxContent content, void* out, size_t size) {
  ASSIGN_OR_RETURN(const int index, lease.session()->Find(name));
  const ReadParameter& parameter = lease.session()->parameters()[index];
  if (static_cast<int64_t>(size) != parameter.rows * parameter.columns) {
    return absl::InvalidArgumentError(
        absl::StrCat("read ", name, ": want ", parameter.rows, " x ", parameter.columns, " values, got ", size));
  }
  const Box box{.rows = parameter.rows, .columns = parameter.columns, .content = content, .out = out};
  std::vector<PlannedCopy> copies;
  AppendCopies(*lease.session(), lease.generation(), index, box, copies);
  return CopyAll(lease, copies);
}

// Bits are compared: a NaN equals itself, and zeros of two signs differ.
absl::Status Compare(const PlannedCopy& each, int gpu, const ModelVersion& version) {
  return ForEachPart(each.copy, [&](const BoxCopy& part, absl::Span<const uint8_t> bytes) -> absl::Status {
    const BoxOutput output = OutputOf(part.matrix.encoding, part.content, part.rows.size(), part.columns);
    // Memory from the first row to the last.
    const int64_t span = output.rows == 0 ? 0 : (output.rows - 1) * part.out_stride + output.row_bytes;
    ASSIGN_OR_RETURN(const HostBytes memory, HostBytes::Of(gpu, absl::MakeConstSpan(part.out, span)));
    for (int64_t row = 0; row < output.rows; ++row) {
      const uint8_t* const wanted = bytes.data() + row * output.row_bytes;
      const uint8_t* const present = memory.data() + row * part.out_stride;
      if (memcmp(wanted, present, output.row_bytes) == 0) continue;
      const int64_t byte = std::mismatch(wanted, wanted + output.row_bytes, present).first - wanted;
      // A scale is named by the first element of its block.
      const MatrixShape block = part.content == BoxContent::kScales
                                    ? ScaleBlock(part.matrix.encoding, part.matrix.plane)
                                    : MatrixShape{.rows = 1, .cols = 1};
      const int64_t column = byte / output.element_bytes;
      return absl::DataLossError(absl::StrCat(
          "verify: ", each.box->parameter, " differs from commit ", version.commit_number, " at row ",
          part.matrix_row + part.rows.begin + row * block.rows, ", column ", part.first_column + column * block.cols));
    }
    return absl::OkStatus();
  });
}

}  // namespace

Snapshot::Snapshot(std::unique_ptr<Lease> lease) : lease_(std::move(lease)) {}
Snapshot::Snapshot(Snapshot&&) noexcept = default;
Snapshot& Snapshot::operator=(Snapshot&&) noexcept = default;
Snapshot::~Snapshot() = default;

const ModelVersion& Snapshot::version() const { return lease_->version(); }
const std::string& Snapshot::data() const { return lease_->data(); }
const std::vector<ReadParameter>& Snapshot::parameters() const { return lease_->session()->parameters(); }
absl::Status Snapshot::Check() const { return lease_->Check(); }
void Snapshot::Release() { lease_->Release(); }

absl::StatusOr<const ReadParameter*> Snapshot::Find(absl::string_view name) const {
  ASSIGN_OR_RETURN(const int parameter, lease_->session()->Find(name));
  return &parameters()[parameter];
}

absl::Status Snapshot::Read(absl::string_view name, absl::Span<float> out) const {
  return ReadWhole(*lease_, name, BoxContent::kFloat32, out.data(), out.size());
}

absl::Status Snapshot::ReadBFloat16(absl::string_view name, absl::Span<uint16_t> out) const {
  return ReadWhole(*lease_, name, BoxContent::kBFloat16, out.data(), out.size());
}

absl::Status Snapshot::CopyTo(const Plan& plan, CUstream_st* after) const {
  ASSIGN_OR_RETURN(const auto copies, plan.bound_->CopiesIn(lease_->session(), lease_->generation()));
  if (plan.gpu() < 0) return CopyAll(*lease_, *copies);
  RETURN_IF_ERROR(Check());
  RETURN_IF_ERROR(internal::CopyBoxesToGpu(plan.gpu(), *copies, after));
  return Check();
}

absl::Status Snapshot::Verify(const Plan& plan, CUstream_st* after) const {
  ASSIGN_OR_RETURN(const auto copies, plan.bound_->CopiesIn(lease_->session(), lease_->generation()));
  if (plan.gpu() >= 0) RETURN_IF_ERROR(internal::AwaitGpuStream(plan.gpu(), after));
  return InspectAll(*lease_, *copies, plan.gpu() < 0,
                    [&](const PlannedCopy& each) { return Compare(each, plan.gpu(), version()); });
}

absl::StatusOr<PositionDigest> Snapshot::Digest(absl::string_view name, BoxContent content) const {
  ASSIGN_OR_RETURN(const int index, lease_->session()->Find(name));
  const ReadParameter& parameter = parameters()[index];
  const Box box{.parameter = parameter.name, .rows = parameter.rows, .columns = parameter.columns, .content = content};
  const absl::Status has = Plan::OutputsOf(absl::MakeConstSpan(&parameter, 1), absl::MakeConstSpan(&box, 1)).status();
  if (!has.ok()) return absl::Status(has.code(), absl::StrCat("digest", absl::StripPrefix(has.message(), "plan")));
  std::vector<PlannedCopy> copies;
  AppendCopies(*lease_->session(), lease_->generation(), index, box, copies);
  absl::Mutex mu;
  PositionDigest digest;
  RETURN_IF_ERROR(InspectAll(*lease_, copies, /*is_on_host=*/true, [&](const PlannedCopy& each) {
    return ForEachPart(each.copy, [&](const BoxCopy& part, absl::Span<const uint8_t> bytes) {
      const auto output_of = [&](int64_t rows) { return OutputOf(part.matrix.encoding, content, rows, part.columns); };
      // Parts begin at a block of scales, and have whole rows.
      const int64_t first_row = part.matrix_row + part.rows.begin;
      const int64_t rows_before = first_row == 0 ? 0 : output_of(first_row).rows;
      const BoxOutput output = output_of(part.rows.size());
      const PositionDigest of_part = DigestElements(bytes.data(), static_cast<int>(output.element_bytes),
                                                    static_cast<int64_t>(bytes.size()) / output.element_bytes,
                                                    rows_before * (output.row_bytes / output.element_bytes));
      const absl::MutexLock lock(&mu);
      digest += of_part;
      return absl::OkStatus();
    });
  }));
  return digest;
}

absl::StatusOr<std::vector<PlaneRows>> Snapshot::Map(absl::string_view name) const {
  ASSIGN_OR_RETURN(const int parameter, lease_->session()->Find(name));
  RETURN_IF_ERROR(Check());
  return lease_->session()->RowsOf(parameter, lease_->generation());
}

}  // namespace paramshard
