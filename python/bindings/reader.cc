#include "python/bindings/reader.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "client/reader.h"
#include "python/bindings/arrays.h"
#include "python/bindings/calls.h"
#include "python/bindings/names.h"
#include "python/bindings/plan.h"
#include "python/bindings/streams.h"
#include "python/bindings/types.h"

namespace paramshard::python {
namespace {

namespace nb = nanobind;

// --- Snapshot

// The client library takes one thread at a time for a Snapshot. Python calls from many, and runs signal handlers inside
// of a copy: each call takes a turn, without the interpreter's lock.
class SharedSnapshot {
 public:
  explicit SharedSnapshot(Snapshot snapshot) : snapshot_(std::move(snapshot)) {}

  // Constant, also after the snapshot's end: takes no turn, and so no wait for the interpreter's lock.
  const ModelVersion& version() const { return snapshot_.version(); }
  const std::string& data() const { return snapshot_.data(); }
  const std::vector<ReadParameter>& parameters() const { return snapshot_.parameters(); }
  const ReadParameter& Find(const std::string& name) const { return *Take(snapshot_.Find(name)); }

  // `call` returns a Status or a StatusOr. FAILED_PRECONDITION in a handler that runs inside of a call.
  template <typename Call>
  auto Run(Call call) -> decltype(call(std::declval<Snapshot&>())) {
    if (holder_ == std::this_thread::get_id()) {
      return absl::FailedPreconditionError("snapshot: a signal handler has interrupted another call on it");
    }
    return Unlocked([&]() -> decltype(call(snapshot_)) {
      const std::lock_guard lock(mu_);
      holder_ = std::this_thread::get_id();
      auto result = call(snapshot_);
      holder_ = std::thread::id();
      return result;
    });
  }

 private:
  std::mutex mu_;
  std::atomic<std::thread::id> holder_ = std::thread::id();
  Snapshot snapshot_;  // guarded by mu_
};

// Its arrays keep memory mapped, and not the lease.
class PySnapshot {
 public:
  explicit PySnapshot(Snapshot snapshot) : shared_(std::make_shared<SharedSnapshot>(std::move(snapshot))) {}
  ~PySnapshot() { Release().IgnoreError(); }
  PySnapshot(const PySnapshot&) = delete;
  PySnapshot& operator=(const PySnapshot&) = delete;

  const std::shared_ptr<SharedSnapshot>& shared() const { return shared_; }
  absl::Status Release() const {
    return shared_->Run([](Snapshot& snapshot) {
      snapshot.Release();
      return absl::OkStatus();
    });
  }

 private:
  const std::shared_ptr<SharedSnapshot> shared_;
};

absl::Status CheckSnapshot(SharedSnapshot& shared) {
  return shared.Run([](Snapshot& snapshot) { return snapshot.Check(); });
}

Result<named::Floats> ReadParameterOf(const PySnapshot& self, const std::string& name) {
  const ReadParameter& parameter = self.shared()->Find(name);
  const size_t size = parameter.rows * parameter.columns;
  const auto values = std::make_shared_for_overwrite<float[]>(size);
  Check(
      self.shared()->Run([&](Snapshot& snapshot) { return snapshot.Read(name, absl::MakeSpan(values.get(), size)); }));
  return NativeArray({.data = values.get(),
                      .shape = std::vector<size_t>(parameter.shape.begin(), parameter.shape.end()),
                      .type = nb::dtype<float>(),
                      .read_only = false,
                      .owner = values});
}

// --- Plans

PyPlan PlanOfNames(absl::string_view call, SharedSnapshot& shared, nb::handle outputs, bool decoded) {
  Check(CheckSnapshot(shared));
  return PlanOfParameters(
      call, [&](const std::string& name) -> const ReadParameter& { return shared.Find(name); }, outputs, decoded);
}

// NOLINTNEXTLINE(performance-no-int-to-ptr)
CUstream_st* StreamAt(std::optional<StreamAddress> address) {
  return reinterpret_cast<CUstream_st*>(address.value_or(0));
}

void CopyPlan(const PySnapshot& self, const PyPlan& plan, std::optional<StreamAddress> stream) {
  Check(CheckSnapshot(*self.shared()));
  absl::Status status = plan.CheckMemory();
  if (status.ok()) {
    status = self.shared()->Run([&](Snapshot& snapshot) { return snapshot.CopyTo(plan.plan(), StreamAt(stream)); });
  }
  if (status.ok()) return;
  const bool begun = !absl::IsFailedPrecondition(status) && !absl::IsNotFound(status);
  Raise(absl::Status(status.code(), absl::StrCat("copy_into: ", status.message(),
                                                 begun ? "; the destination is half new" : ": nothing was written")));
}

void CopyInto(const PySnapshot& self, Argument<named::Outputs> outputs, bool decoded,
              std::optional<StreamAddress> stream) {
  CopyPlan(self, PlanOfNames("copy_into", *self.shared(), outputs, decoded), stream);
}

void VerifyPlan(const PySnapshot& self, const PyPlan& plan, std::optional<StreamAddress> stream) {
  const absl::Status present = plan.CheckMemory();
  if (!present.ok()) Raise(absl::Status(present.code(), absl::StrCat("verify: ", present.message())));
  Check(self.shared()->Run([&](Snapshot& snapshot) { return snapshot.Verify(plan.plan(), StreamAt(stream)); }));
}

void Verify(const PySnapshot& self, Argument<named::Outputs> values, bool decoded,
            std::optional<StreamAddress> stream) {
  VerifyPlan(self, PlanOfNames("verify", *self.shared(), values, decoded), stream);
}

// --- Digests

PositionDigest DigestOf(const PySnapshot& self, const std::string& name, const std::string& what) {
  const std::optional<BoxContent> content = ContentNamed(what);
  if (!content.has_value()) {
    Raise(absl::InvalidArgumentError(
        absl::StrCat("digest: want float32, bfloat16, float16, codes, scales or amax, got ", what)));
  }
  return Take(self.shared()->Run([&](Snapshot& snapshot) { return snapshot.Digest(name, *content); }));
}

PositionDigest DigestOfArray(Argument<named::Any> array, int64_t first, std::optional<int64_t> row_stride) {
  Check(CheckHoldsItsValues("digest", array));
  nb::ndarray<nb::ro, nb::c_contig, nb::device::cpu> values;
  const bool is_array = nb::try_cast(array, values);
  if (!is_array || values.itemsize() > 4 || values.itemsize() == 3) {
    RaiseType("digest: want a C-contiguous array in host memory, of elements of 1, 2 or 4 bytes", array);
  }
  const auto columns = values.ndim() == 0 ? int64_t{1} : static_cast<int64_t>(values.shape(values.ndim() - 1));
  const int64_t stride = row_stride.value_or(columns);
  const auto size = static_cast<int64_t>(values.size());
  if (first < 0 || stride < columns) {
    Raise(absl::InvalidArgumentError(absl::StrCat("digest: want first >= 0 and a row_stride of at least ", columns,
                                                  ", got ", first, " and ", stride)));
  }
  int64_t last = 0;
  const int64_t rows = columns == 0 ? 0 : size / columns;
  if (rows > 0 && (__builtin_mul_overflow(rows - 1, stride, &last) || __builtin_add_overflow(last, first, &last) ||
                   __builtin_add_overflow(last, columns, &last))) {
    Raise(absl::InvalidArgumentError(absl::StrCat("digest: want positions below 2^63, got ", rows, " rows from ", first,
                                                  " on, ", stride, " apart")));
  }
  return Unlocked([&] {
    const auto element_bytes = static_cast<int>(values.itemsize());
    const auto* const bytes = static_cast<const uint8_t*>(values.data());
    if (stride == columns) return DigestElements(bytes, element_bytes, size, first);
    PositionDigest digest;
    for (int64_t begin = 0, position = first; begin < size; begin += columns, position += stride) {
      digest += DigestElements(bytes + begin * element_bytes, element_bytes, columns, position);
    }
    return digest;
  });
}

void BindDigest(nb::module_& module) {
  nb::class_<PositionDigest>(module, "Digest",
                             "A digest of 128 bits that knows the position of every element: digests of the parts of a "
                             "tensor add up to its own. It finds differences that nobody has made on purpose.")
      .def(
          "__add__", [](PositionDigest self, const PositionDigest& other) { return self += other; }, nb::is_operator())
      .def(
          "__eq__", [](const PositionDigest& self, const PositionDigest& other) { return self == other; },
          nb::is_operator(), nb::sig("def __eq__(self, other: object, /) -> bool"))
      .def("__hash__", [](const PositionDigest& self) { return nb::hash(nb::str(self.ToString().c_str())); })
      .def("__str__", &PositionDigest::ToString)
      .def("__repr__",
           [](const PositionDigest& self) { return absl::StrCat("<paramshard.Digest ", self.ToString(), ">"); });
  module.def(
      "digest", &DigestOfArray, nb::arg("array"), nb::arg("first") = 0, nb::arg("row_stride") = nb::none(),
      "Returns the digest of an array's bits: a C-contiguous array in host memory, of elements of 1, 2 or 4 "
      "bytes. `first` is the position of its first element in the whole tensor, row-major, and `row_stride` that "
      "of a row less that of the row before; None: the array's columns.");
}

// --- Planes where they lie

class PyPlaneRows {
 public:
  PyPlaneRows(std::shared_ptr<SharedSnapshot> shared, const PlaneRows& rows)
      : shared_(std::move(shared)), rows_(rows) {}

  const PlaneRows& rows() const { return rows_; }
  const Matrix& matrix() const { return rows_.matrix; }

  Result<named::Any> Data() const { return NativeArray(Checked(DataOf(matrix(), shared_))); }
  Result<named::Any> TypedData() const { return DLPackArray(Checked(DataOf(matrix(), shared_))); }
  Result<named::Any> Scales() const {
    ArrayMemory memory = Checked(ScalesOf(matrix(), shared_));
    return matrix().scales.empty() ? nb::none() : NativeArray(std::move(memory));
  }
  Result<named::Any> TypedScales() const {
    const ArrayMemory memory = Checked(ScalesOf(matrix(), shared_));
    return matrix().scales.empty() ? nb::none() : DLPackArray(memory);
  }
  Result<named::Any> Amax() const {
    ArrayMemory memory = Checked(AmaxOf(matrix(), shared_));
    return matrix().amax.empty() ? nb::none() : NativeArray(std::move(memory));
  }

 private:
  // Throws once the snapshot has ended.
  ArrayMemory Checked(ArrayMemory memory) const {
    Check(CheckSnapshot(*shared_));
    return memory;
  }

  std::shared_ptr<SharedSnapshot> shared_;
  PlaneRows rows_;
};

std::vector<PyPlaneRows> Map(const PySnapshot& self, const std::string& name) {
  std::vector<PyPlaneRows> pieces;
  for (const PlaneRows& rows : Take(self.shared()->Run([&](Snapshot& snapshot) { return snapshot.Map(name); }))) {
    pieces.emplace_back(self.shared(), rows);
  }
  return pieces;
}

// --- Reader

class PyReader {
 public:
  explicit PyReader(std::unique_ptr<Reader> reader) : reader_(std::move(reader)) {}
  Reader& reader() const { return *reader_; }

  // The history of the last snapshot; empty before the first one.
  std::string last_history() const {
    const std::lock_guard lock(mu_);
    return last_history_;
  }
  void SetLastHistory(std::string history) {
    const std::lock_guard lock(mu_);
    last_history_ = std::move(history);
  }

 private:
  const std::unique_ptr<Reader> reader_;
  mutable std::mutex mu_;
  std::string last_history_;
};

void MakeReader(PyReader* self, const std::string& model, const std::optional<std::string>& socket_dir,
                const std::optional<std::string>& name, double connect_timeout) {
  new (self) PyReader(Take(Reader::Create({.model = model,
                                           .socket_dir = socket_dir.value_or(""),
                                           .name = name.value_or(""),
                                           .connect_timeout = absl::Seconds(connect_timeout),
                                           .interrupted = &RunSignalHandlers})));
}

absl::Duration DurationOf(absl::string_view what, double seconds) {
  if (std::isnan(seconds)) Raise(absl::InvalidArgumentError(absl::StrCat(what, ": want seconds, got nan")));
  return absl::Seconds(seconds);
}

std::unique_ptr<PySnapshot> Acquire(PyReader& self, std::optional<int64_t> min_version, double timeout) {
  const absl::Duration longest = DurationOf("acquire: timeout", timeout);
  auto snapshot = std::make_unique<PySnapshot>(Take(
      Unlocked([&] { return self.reader().Acquire({.min_commit = min_version.value_or(0), .timeout = longest}); })));
  self.SetLastHistory(snapshot->shared()->version().history_id);
  return snapshot;
}

int64_t WaitNewer(const PyReader& self, int64_t version, double timeout, const std::optional<std::string>& history) {
  ModelVersion than{.history_id = history.value_or(self.last_history()), .commit_number = version};
  const absl::Duration longest = DurationOf("wait_newer: timeout", timeout);
  const auto begin = std::chrono::steady_clock::now();
  const auto wait = [&] {
    const absl::Duration spent = absl::FromChrono(std::chrono::steady_clock::now() - begin);
    return Take(Unlocked([&] { return self.reader().WaitNewer(than, longest - spent); }));
  };
  if (than.history_id.empty()) {
    const ModelVersion present = wait();
    if (present.commit_number > version) return present.commit_number;
    than.history_id = present.history_id;
  }
  return wait().commit_number;
}

// --- Classes

void BindReadParameter(nb::module_& module) {
  nb::class_<ReadParameter>(module, "ReadParameter",
                            "A parameter as readers see it: a matrix [rows, columns], its last dimension by all "
                            "others.")
      .def_ro("name", &ReadParameter::name)
      .def_ro("shape", &ReadParameter::shape)
      .def_ro("rows", &ReadParameter::rows)
      .def_ro("columns", &ReadParameter::columns)
      .def_prop_ro("format", [](const ReadParameter& self) { return NameOf(self.encoding.format); })
      .def_prop_ro("element", [](const ReadParameter& self) { return NameOf(self.encoding.element); })
      .def("__repr__", [](const ReadParameter& self) {
        return absl::StrFormat("<paramshard.ReadParameter %s: %d x %d %s>", self.name, self.rows, self.columns,
                               NameOf(self.encoding.format));
      });
}

void BindPlaneRows(nb::module_& module) {
  nb::class_<PyPlaneRows>(module, "PlaneRows",
                          "Rows of a parameter's row-wise plane, as one rank of the daemon has them. Asking for an "
                          "array after the snapshot's end raises AbortedError, or FailedPreconditionError after its "
                          "release; one that is still there shows other bytes, and reading it is safe.")
      .def_prop_ro("first_row", [](const PyPlaneRows& self) { return self.rows().first_row; })
      .def_prop_ro("rows", [](const PyPlaneRows& self) { return self.matrix().rows; })
      .def_prop_ro("columns", [](const PyPlaneRows& self) { return self.matrix().columns; })
      .def_prop_ro("format", [](const PyPlaneRows& self) { return NameOf(self.matrix().encoding.format); })
      .def_prop_ro("element", [](const PyPlaneRows& self) { return NameOf(self.matrix().encoding.element); })
      .def_prop_ro(
          "gpu", [](const PyPlaneRows& self) { return self.matrix().gpu; },
          "This process's index of their GPU; -1: host memory.")
      .def_prop_ro("data", &PyPlaneRows::Data,
                   "The encoded elements, [rows, columns] and read-only, without a copy, as `Matrix.data`: in host "
                   "memory a NumPy array, of unsigned integers where NumPy has no such type; else as `typed_data`.")
      .def_prop_ro("typed_data", &PyPlaneRows::TypedData, "The same as an object with __dlpack__, of its own type.")
      .def_prop_ro("scales", &PyPlaneRows::Scales,
                   "The compact scales of these rows, as `data`; None where the format has none.")
      .def_prop_ro("typed_scales", &PyPlaneRows::TypedScales, "The same as an object with __dlpack__.")
      .def_prop_ro("amax", &PyPlaneRows::Amax, "NVFP4_2D: the amax of the whole tensor, one float32; else None.")
      .def("__repr__", [](const PyPlaneRows& self) {
        return absl::StrFormat("<paramshard.PlaneRows from row %d: %d x %d %s>", self.rows().first_row,
                               self.matrix().rows, self.matrix().columns, NameOf(self.matrix().encoding.format));
      });
}

void BindSnapshot(nb::module_& module) {
  nb::class_<PySnapshot>(module, "Snapshot",
                         "A lease on one version of a model: its bytes are those that the next forward of the trainers "
                         "computes with. A step of the trainers waits for it, for the daemon's --reader-hold at most; "
                         "then it ends, and its next call raises AbortedError: take another one. As a context manager "
                         "it is released at the end. Threads take turns.")
      .def_prop_ro(
          "version", [](const PySnapshot& self) { return self.shared()->version().commit_number; },
          "The last answered commit, as `Model.commit_number`: it counts within `history`.")
      .def_prop_ro(
          "history", [](const PySnapshot& self) { return self.shared()->version().history_id; },
          "Id of the history, as `ModelSummary.history_id`. One begins with a creation, an import or a restore.")
      .def_prop_ro(
          "data",
          [](const PySnapshot& self) {
            const std::string& data = self.shared()->data();
            return nb::bytes(data.data(), data.size());
          },
          "Bytes that the trainers gave with the commit (`reader_data` of `Model.commit`); empty: they gave none, or a "
          "creation, an import or a restore began the history here.")
      .def(
          "parameters", [](const PySnapshot& self) { return self.shared()->parameters(); },
          "Returns all parameters, in the order of the model's units.")
      .def("__getitem__", &ReadParameterOf, nb::arg("name"),
           "A parameter's decoded values: a new NumPy array of its shape, float32. NotFoundError with similar names; "
           "AbortedError.")
      .def("map", &Map, nb::arg("name"),
           "Returns the plane where it lies, in rows ascending, without a copy. Its bytes change without notice once "
           "the snapshot has ended: what was made of them counts if `check` raises nothing afterwards. NotFoundError; "
           "AbortedError.")
      .def(
          "copy_into", &CopyPlan, nb::arg("plan"), nb::kw_only(), nb::arg("stream") = nb::none(),
          "Copies the outputs of a plan; done on return. `stream`: a copy to a GPU begins after the work so far of the "
          "CUDA stream at this address; None: of the default stream. FailedPreconditionError if the model was made "
          "anew with other parameters: "
          "nothing was written. AbortedError if the snapshot has ended meanwhile, UnavailableError if the daemon has "
          "died: the outputs are then half new, as they are after Ctrl-C.")
      .def(
          "copy_into", &CopyInto, nb::arg("outputs"), nb::arg("decoded") = true, nb::kw_only(),
          nb::arg("stream") = nb::none(),
          "Decodes parameters into the caller's memory: `outputs` maps names to writable, C-contiguous arrays, all in "
          "host memory or all of one GPU, with DLPack or the buffer protocol, of the parameter's shape or [rows, "
          "columns], float32 or "
          "bfloat16 (rounded to the nearest even). With decoded=False codes are copied as stored: arrays have as "
          "many bytes as the row-wise plane, and formats with scales take a tuple of codes and scales. `stream` as for "
          "a plan. Names, shapes, types and memory are checked before the first byte "
          "is written: NotFoundError and InvalidArgumentError name the first that is wrong. AbortedError if the "
          "snapshot has ended meanwhile, UnavailableError if the daemon has died: the destination is then half new, "
          "as it is after Ctrl-C.")
      .def("verify", &VerifyPlan, nb::arg("plan"), nb::kw_only(), nb::arg("stream") = nb::none(),
           "Compares the outputs of a plan with the snapshot, bit by bit. DataLossError names the first parameter that "
           "differs, and where. Errors of `copy_into`; nothing is written.")
      .def("verify", &Verify, nb::arg("values"), nb::arg("decoded") = true, nb::kw_only(),
           nb::arg("stream") = nb::none(),
           "Compares the caller's memory with the snapshot, bit by bit: `values` as `outputs` of `copy_into`. "
           "DataLossError "
           "names the first parameter that differs, and where. Errors of `copy_into`; nothing is written.")
      .def("digest", &DigestOf, nb::arg("name"), nb::arg("what") = "float32",
           "Returns the digest of a parameter: of its decoded values (float32, bfloat16 or float16), or of its codes, "
           "scales or amax as stored. `paramshard.digest` of an array with the same bits is equal. NotFoundError, "
           "InvalidArgumentError, AbortedError.")
      .def(
          "check", [](const PySnapshot& self) { Check(CheckSnapshot(*self.shared())); },
          "Raises unless the snapshot's bytes are those of `version`: AbortedError after its end, naming both "
          "versions; UnavailableError the daemon has died; FailedPreconditionError it was released.")
      .def(
          "release", [](const PySnapshot& self) { Check(self.Release()); },
          "Ends the snapshot. Later calls raise FailedPreconditionError. Idempotent.")
      .def("__enter__", &Itself<PySnapshot>)
      .def(
          "__exit__", [](const PySnapshot& self, const nb::args&) { Check(self.Release()); }, kExitSignature)
      .def("__repr__", [](const PySnapshot& self) {
        return absl::StrCat("<paramshard.Snapshot at version ", self.shared()->version().commit_number, " of history ",
                            self.shared()->version().history_id, ">");
      });
}

}  // namespace

void BindReader(nb::module_& module) {
  BindReadParameter(module);
  BindPlan(module);
  BindDigest(module);
  BindPlaneRows(module);
  BindSnapshot(module);
  nb::class_<PyReader>(module, "Reader",
                       "Reads one model of the daemon on this machine while it trains, across restarts of the daemon "
                       "and deletions of the model. It is no rank: it may come, go or die at any time, and no trainer "
                       "notices. Thread-safe. In a forked child every call is FailedPreconditionError.")
      .def(
          "__init__", &MakeReader, nb::arg("model"), nb::arg("socket_dir") = nb::none(), nb::kw_only(),
          nb::arg("name") = nb::none(), nb::arg("connect_timeout") = 10.0,
          "Asks no daemon: the first `acquire` connects. `socket_dir` as for Client. `name` is shown by `paramshardctl "
          "readers`, at most 64 bytes; None: the name of the program. `connect_timeout` is in seconds.")
      .def_prop_ro("model", [](const PyReader& self) { return self.reader().model(); })
      .def("acquire", &Acquire, nb::arg("min_version") = nb::none(), nb::arg("timeout") = 60.0,
           "Waits for a readable version and takes a lease on it. `min_version` is its least commit number, in the "
           "present history; None: any. It waits, `timeout` seconds at most, where the model is not there yet or is "
           "being "
           "written, or its daemon is restarted. Ctrl-C ends the wait. DeadlineExceededError says what it waited for; "
           "FailedPreconditionError if the daemon does not hold a whole shard group; PermissionDeniedError; "
           "ResourceExhaustedError.")
      .def("wait_newer", &WaitNewer, nb::arg("version"), nb::arg("timeout") = 60.0, nb::kw_only(),
           nb::arg("history") = nb::none(),
           "Waits until there is a readable version that is newer than `version`, and returns it: a larger one of "
           "`history`, or any of another history. None: the history of this reader's last snapshot; before the first "
           "one the present history. Takes no lease. Errors of `acquire`.")
      .def("__repr__",
           [](const PyReader& self) { return absl::StrCat("<paramshard.Reader of ", self.reader().model(), ">"); });
}

}  // namespace paramshard::python
