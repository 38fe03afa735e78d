#include "kernels/formats/codec_cuda.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "kernels/formats/encoded_plane_cuda.h"
#include "kernels/formats/float8.h"
#include "kernels/formats/format.h"
#include "kernels/gpu/global_memory.h"
#include "kernels/gpu/job_list.h"

namespace paramshard::gpu {
namespace {

constexpr int kThreadsLog2 = 8;
constexpr int kThreads = 1 << kThreadsLog2;

// Groups of elements that a thread decodes, below each other or one after another, and blocks that share a
// multiprocessor. All loads of codes and scales are in flight before the first is used.
constexpr int kGroupsBelow = 8;
constexpr int kBlocksBelow = 3;
constexpr int kGroupsAlong = 4;
constexpr int kBlocksAlong = 4;

template <typename Out, typename SourcePlane>
__device__ typename Out::Stored DecodeOne(const SourcePlane& source, int64_t row, int64_t col) {
  using Codes = typename SourcePlane::Codes;
  constexpr int kGroup = kGroupOf<Out>;
  uint32_t words[kWordsOf<Codes::kBits, kGroup>] = {ReadOne<Codes::kBits>(source.data, row * source.pitch + col)};
  float values[kGroup];
  Codes::Unpack(words, values);
  const auto& scales = source.scales;
  return Out::Store(scales.Apply(values[0], scales.Decode(scales.Read(scales.Index(row, col))), scales.OfTensor()));
}

// Decodes kCount groups below each other, which are aligned. All codes and scales are read before the first store: no
// load is moved across one.
template <typename Out, int kCount, typename SourcePlane>
__device__ void DecodeGroupsBelow(const SourcePlane& source, int64_t row, int64_t col, int64_t cols,
                                  typename Out::Stored* out) {
  using Codes = typename SourcePlane::Codes;
  using Scales = typename SourcePlane::Scales;
  constexpr int kGroup = kGroupOf<Out>;
  constexpr int kScaleRows = Scales::kRows % kCount == 0 ? 1 : kCount;
  constexpr int kScaleCols = Scales::kColumns == 1 ? kGroup : 1;
  static_assert(Scales::kColumns == 1 || Scales::kColumns % kGroup == 0);
  uint32_t words[kCount][kWordsOf<Codes::kBits, kGroup>];
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    ReadAligned<Codes::kBits, kGroup>(source.data, (row + i) * source.pitch + col, words[i]);
  }
  uint32_t scale_codes[kScaleRows][kScaleCols];
#pragma unroll
  for (int i = 0; i < kScaleRows; ++i) {
#pragma unroll
    for (int j = 0; j < kScaleCols; ++j) {
      scale_codes[i][j] = source.scales.Read(source.scales.Index(row + i, col + j));
    }
  }
  if (kCount > 1) HoldLoads();
  const float of_tensor = source.scales.OfTensor();
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    float values[kGroup];
    Codes::Unpack(words[i], values);
#pragma unroll
    for (int j = 0; j < kGroup; ++j) {
      const float scale = Scales::Decode(scale_codes[i % kScaleRows][j % kScaleCols]);
      values[j] = Scales::Apply(values[j], scale, of_tensor);
    }
    StoreGlobal(Out::Pack(values), out + (row + i) * cols + col);
  }
}

// Decodes planes whose rows consist of whole, aligned groups: a block's threads form a rectangle.
template <typename Out, typename SourcePlane>
struct RowsDecode {
  static constexpr int kThreads = gpu::kThreads;
  static constexpr int kBlocksAtOnce = kBlocksBelow;

  __device__ void Run(uint32_t block) const {
    const int64_t block_row = block / blocks_across;
    const int64_t block_col = block % blocks_across;
    const int64_t row = ((block_row << (kThreadsLog2 - across_log2)) + (threadIdx.x >> across_log2)) * kGroupsBelow;
    const int64_t col = ((block_col << across_log2) + (threadIdx.x & ((1 << across_log2) - 1))) * kGroupOf<Out>;
    if (col >= cols) return;
    const int64_t last_row = row + (((threadIdx.x | 31) >> across_log2) - (threadIdx.x >> across_log2)) * kGroupsBelow;
    if (last_row + kGroupsBelow <= rows) return DecodeGroupsBelow<Out, kGroupsBelow>(source, row, col, cols, out);
#pragma unroll 1
    for (int64_t last = row; last < rows; ++last) DecodeGroupsBelow<Out, 1>(source, last, col, cols, out);
  }

  SourcePlane source;
  int64_t rows;
  int64_t cols;
  uint32_t blocks_across;
  int across_log2;
  typename Out::Stored* out;
};

struct Place {
  int64_t row;
  int64_t col;
};

// Places of a matrix's elements, counted row after row.
struct Rows {
  // `element` < 2^53.
  __device__ Place Find(int64_t element) const {
    // Off by one at most.
    auto row = static_cast<int64_t>(static_cast<double>(element) * per_row);
    int64_t col = element - row * cols;
    if (col < 0) {
      --row;
      col += cols;
    } else if (col >= cols) {
      ++row;
      col -= cols;
    }
    return {row, col};
  }

  int64_t cols;
  double per_row;
};

// A place in a matrix whose sides are below 2^31, and how far on the next group of a thread begins.
struct WrappedPlace {
  uint32_t row;
  uint32_t col;
};

struct WrappedStep {
  __device__ void Advance(WrappedPlace& place) const {
    place.row += rows;
    place.col += cols;
    if (place.col >= matrix_cols) {
      place.col -= matrix_cols;
      ++place.row;
    }
  }

  uint32_t matrix_cols;
  uint32_t rows;
  uint32_t cols;
};

// The scales of a group that begins anywhere in a row and may go on in the next one. A row holds at least a group.
template <typename Scales, int kGroup, int kColumns = Scales::kColumns>
class WrappedScales {
 public:
  // A group is no larger than a block, so it has at most two scales in the row where it begins, and one in the next
  // row.
  static_assert(kColumns >= kGroup);

  __device__ void Read(const Scales& scales, WrappedPlace place, uint32_t cols) {
    of_first_ = kColumns - static_cast<int>(place.col % kColumns);
    of_row_ = static_cast<int>(min(cols - place.col, uint32_t{kGroup}));
    const int64_t first = scales.Index(place.row, place.col);
    first_ = scales.Read(first);
    second_ = scales.Read(of_first_ < of_row_ ? first + 1 : first);
    below_ = scales.Read(of_row_ < kGroup ? scales.Index(place.row + 1, 0) : first);
  }

  __device__ void Decode(float (&out)[kGroup]) const {
    const float first = Scales::Decode(first_);
    const float second = Scales::Decode(second_);
    // Bits make fewer instructions than comparisons.
    const uint32_t after_first = ~0u << min(of_first_, 31);
#pragma unroll
    for (int j = 0; j < kGroup; ++j) out[j] = (after_first >> j & 1) != 0 ? second : first;
    if (of_row_ == kGroup) return;
    const float below = Scales::Decode(below_);
#pragma unroll
    for (int j = 1; j < kGroup; ++j) out[j] = j < of_row_ ? out[j] : below;
  }

 private:
  int of_first_;
  int of_row_;
  uint32_t first_;
  uint32_t second_;
  uint32_t below_;
};

template <typename Scales, int kGroup>
class WrappedScales<Scales, kGroup, 0> {
 public:
  __device__ void Read(const Scales&, WrappedPlace, uint32_t) {}
  __device__ void Decode(float (&out)[kGroup]) const {
#pragma unroll
    for (int j = 0; j < kGroup; ++j) out[j] = 1.0f;
  }
};

// Scales of single columns, which are bytes.
template <typename Scales, int kGroup>
class WrappedScales<Scales, kGroup, 1> {
 public:
  __device__ void Read(const Scales& scales, WrappedPlace place, uint32_t cols) {
    const uint32_t of_row = cols - place.col;
    const int64_t first = scales.Index(place.row, place.col);
    if (of_row >= kGroup) {
      ReadShifted<8, kGroup>(scales.scales, first, words_);
      return;
    }
    const int64_t below = scales.Index(place.row + 1, 0) - of_row;
#pragma unroll
    for (int w = 0; w < kGroup / 4; ++w) words_[w] = 0;
#pragma unroll
    for (int j = 0; j < kGroup; ++j) words_[j / 4] |= scales.Read((j < of_row ? first : below) + j) << (j % 4 * 8);
  }

  __device__ void Decode(float (&out)[kGroup]) const {
#pragma unroll
    for (int j = 0; j < kGroup; ++j) out[j] = Scales::Decode(words_[j / 4] >> (j % 4 * 8) & 0xff);
  }

 private:
  uint32_t words_[kGroup / 4];
};

// Decodes the plane as one long row. Its groups are aligned to 16 bytes where they are stored, and independent of the
// matrix's rows, which hold at least a group.
template <typename OutType, typename SourcePlane>
struct WrappedPlane {
  using Out = OutType;
  using Codes = typename SourcePlane::Codes;
  using Scales = typename SourcePlane::Scales;

  static constexpr int kGroup = kGroupOf<Out>;
  static constexpr int kStep = kThreads * kGroup;
  static constexpr bool kHasPlaces = Scales::kColumns > 0;
  static constexpr bool kMayBePadded = kHasPlaces && Codes::kBits == 4;

  __device__ void DecodeElement(int64_t element) const {
    const Place place = rows.Find(element);
    out[element] = DecodeOne<Out>(source, place.row, place.col);
  }

  SourcePlane source;
  Rows rows;
  WrappedStep step;
  int64_t count;
  // Elements before the first group.
  int head;
  typename Out::Stored* out;
};

// Reads a group's codes. kAligned: they are aligned to their size.
template <bool kAligned, typename Plane>
__device__ void ReadWrapped(const Plane& plane, int64_t element, WrappedPlace place,
                            uint32_t (&words)[kWordsOf<Plane::Codes::kBits, Plane::kGroup>]) {
  constexpr int kBits = Plane::Codes::kBits;
  if constexpr (kAligned) {
    ReadAligned<kBits, Plane::kGroup>(plane.source.data, element, words);
  } else if constexpr (Plane::kMayBePadded) {
    // Rows of nibbles may end with a nibble of padding, which a group that continues in the next row skips.
    const bool is_padded = plane.source.pitch != plane.rows.cols;
    const uint32_t of_row = plane.step.matrix_cols - place.col;
    const bool passes_padding = is_padded && of_row < Plane::kGroup;
    uint32_t window[2];
    const uint32_t shift = ReadWindow<kBits>(plane.source.data, element + (is_padded ? place.row : 0),
                                             Plane::kGroup + (passes_padding ? 1 : 0), window);
    const uint64_t codes = (uint64_t{window[1]} << 32 | window[0]) >> shift;
    const uint32_t mask = passes_padding ? (1u << (kBits * of_row)) - 1 : ~0u;
    words[0] = (static_cast<uint32_t>(codes) & mask) | (static_cast<uint32_t>(codes >> kBits) & ~mask);
  } else {
    ReadShifted<kBits, Plane::kGroup>(plane.source.data, element, words);
  }
}

// Decodes kCount groups of a thread. All codes and scales are read before the first store: no load is moved across one.
template <bool kAligned, int kCount, typename Plane>
__device__ void DecodeGroupsAlong(const Plane& plane, int64_t first, WrappedPlace& place) {
  using Scales = typename Plane::Scales;
  constexpr int kGroup = Plane::kGroup;
  uint32_t words[kCount][kWordsOf<Plane::Codes::kBits, kGroup>];
  WrappedScales<Scales, kGroup> group_scales[kCount];
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    ReadWrapped<kAligned>(plane, first + i * Plane::kStep, place, words[i]);
    group_scales[i].Read(plane.source.scales, place, plane.step.matrix_cols);
    if (Plane::kHasPlaces) plane.step.Advance(place);
  }
  if (kCount > 1) HoldLoads();
  const float of_tensor = plane.source.scales.OfTensor();
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    float scales[kGroup];
    group_scales[i].Decode(scales);
    float values[kGroup];
    Plane::Codes::Unpack(words[i], values);
#pragma unroll
    for (int j = 0; j < kGroup; ++j) values[j] = Scales::Apply(values[j], scales[j], of_tensor);
    StoreGlobal(Plane::Out::Pack(values), plane.out + first + i * Plane::kStep);
  }
}

template <bool kAligned, typename Plane>
struct WrappedDecode {
  static constexpr int kThreads = gpu::kThreads;
  static constexpr int kBlocksAtOnce = kBlocksAlong;

  __device__ void Run(uint32_t block) const {
    constexpr int kGroup = Plane::kGroup;
    const int thread = static_cast<int>(threadIdx.x);
    int64_t first = plane.head + int64_t{block} * (Plane::kStep * kGroupsAlong) + thread * kGroup;
    WrappedPlace place = {};
    if (Plane::kHasPlaces && first < plane.count) {
      const Place found = plane.rows.Find(first);
      place = {static_cast<uint32_t>(found.row), static_cast<uint32_t>(found.col)};
    }
    const int64_t last = first + (31 - thread % 32) * kGroup;
    if (last + (kGroupsAlong - 1) * Plane::kStep + kGroup <= plane.count) {
      DecodeGroupsAlong<kAligned, kGroupsAlong>(plane, first, place);
    } else {
#pragma unroll 1
      for (; first + kGroup <= plane.count; first += Plane::kStep) DecodeGroupsAlong<kAligned, 1>(plane, first, place);
    }
    // The elements before and after all groups.
    if (block > 0 || thread >= 2 * kGroup) return;
    const auto tail = static_cast<int>((plane.count - plane.head) % kGroup);
    const bool is_tail = thread >= kGroup;
    if (is_tail ? thread - kGroup >= tail : thread >= plane.head) return;
    const int64_t element = is_tail ? plane.count - tail + thread - kGroup : thread;
    plane.DecodeElement(element);
  }

  Plane plane;
};

// An element a thread: rows that are shorter than a group.
template <typename Plane>
struct ElementsDecode {
  static constexpr int kThreads = gpu::kThreads;
  static constexpr int kBlocksAtOnce = 1;

  __device__ void Run(uint32_t block) const {
    const int64_t element = int64_t{block} * kThreads + threadIdx.x;
    if (element < plane.count) plane.DecodeElement(element);
  }

  Plane plane;
};

int64_t CeilDivide(int64_t size, int64_t step) { return (size + step - 1) / step; }

// Threads that lie beside each other: as many as a row has groups, up to a block of them.
int AcrossLog2(int64_t groups) {
  int log2 = 3;
  while ((1 << log2) < std::min<int64_t>(groups, kThreads)) ++log2;
  return log2;
}

bool IsAligned(const void* address, size_t bytes) { return reinterpret_cast<uintptr_t>(address) % bytes == 0; }

// Alignment in bytes that lets a group of codes be read at once.
template <typename Out, typename SourcePlane>
constexpr size_t kReadAlignment = std::min<size_t>(SourcePlane::Codes::kBits* kGroupOf<Out> / 8, 16);

template <typename Out, typename SourcePlane>
void DecodeRows(const SourcePlane& source, int64_t rows, int64_t cols, typename Out::Stored* out, JobList& jobs) {
  const int64_t groups = cols / kGroupOf<Out>;
  const int across_log2 = AcrossLog2(groups);
  const int64_t across = CeilDivide(groups, 1 << across_log2);
  const int64_t down = CeilDivide(rows, (kThreads >> across_log2) * kGroupsBelow);
  jobs.Add(RowsDecode<Out, SourcePlane>{source, rows, cols, static_cast<uint32_t>(across), across_log2, out},
           across * down);
}

template <typename Out, typename SourcePlane>
void DecodeWrapped(const SourcePlane& source, int64_t rows, int64_t cols, typename Out::Stored* out, JobList& jobs) {
  using Plane = WrappedPlane<Out, SourcePlane>;
  constexpr int64_t kMostSide = (int64_t{1} << 31) - 1;
  Plane plane = {source, {cols, 1.0 / static_cast<double>(cols)}, {}, rows * cols, 0, out};
  if (Plane::kHasPlaces && (cols < Plane::kGroup || std::max(rows, cols) > kMostSide)) {
    return jobs.Add(ElementsDecode<Plane>{plane}, CeilDivide(plane.count, kThreads));
  }
  if (Plane::kHasPlaces) {
    plane.step = {static_cast<uint32_t>(cols), static_cast<uint32_t>(Plane::kStep / cols),
                  static_cast<uint32_t>(Plane::kStep % cols)};
  }
  const auto phase = static_cast<int64_t>(reinterpret_cast<uintptr_t>(out) % 16 / sizeof(typename Out::Stored));
  plane.head = static_cast<int>(std::min((Plane::kGroup - phase) % Plane::kGroup, plane.count));
  const int64_t head_bits = int64_t{plane.head} * SourcePlane::Codes::kBits;
  const bool is_aligned = source.pitch == cols && head_bits % 8 == 0 &&
                          IsAligned(source.data + head_bits / 8, kReadAlignment<Out, SourcePlane>);
  const int64_t elements_of_block = int64_t{Plane::kStep} * kGroupsAlong;
  const int64_t blocks = std::max<int64_t>(1, CeilDivide(plane.count - plane.head, elements_of_block));
  if (is_aligned) {
    jobs.Add(WrappedDecode<true, Plane>{plane}, blocks);
  } else {
    jobs.Add(WrappedDecode<false, Plane>{plane}, blocks);
  }
}

template <typename Out, typename SourcePlane>
void Decode(const SourcePlane& source, int64_t rows, int64_t cols, void* untyped_out, JobList& jobs) {
  auto* const out = static_cast<typename Out::Stored*>(untyped_out);
  if constexpr (SourcePlane::Scales::kColumns > 0) {
    const bool has_whole_groups =
        cols % kGroupOf<Out> == 0 && IsAligned(out, 16) && IsAligned(source.data, kReadAlignment<Out, SourcePlane>);
    if (has_whole_groups) return DecodeRows<Out>(source, rows, cols, out, jobs);
  }
  DecodeWrapped<Out>(source, rows, cols, out, jobs);
}

template <typename Out, typename Element>
void DecodeFloat8(const Encoding& encoding, Plane plane, ConstPlane encoded, int64_t rows, int64_t cols, void* out,
                  JobList& jobs) {
  using Codes = Float8Codes<Element>;
  const int64_t across = ScaleShape(encoding, plane, rows, cols).cols;
  const uint8_t* const scales = encoded.scales;
  switch (encoding.format) {
    case Format::kFP8Block128x128:
      return Decode<Out>(Source<Codes, Fp8BlockScales>{encoded.data, cols, {{scales, across}}}, rows, cols, out, jobs);
    case Format::kMXFP8:
      if (plane == Plane::kColumnWise) {
        using Scales = Mxfp8Scales<5, 1>;
        return Decode<Out>(Source<Codes, Scales>{encoded.data, cols, {{scales, across}}}, rows, cols, out, jobs);
      }
      return Decode<Out>(Source<Codes, Mxfp8Scales<0, 32>>{encoded.data, cols, {{scales, across}}}, rows, cols, out,
                         jobs);
    case Format::kMXFP8_2D:
      return Decode<Out>(Source<Codes, Mxfp8Scales<5, 32>>{encoded.data, cols, {{scales, across}}}, rows, cols, out,
                         jobs);
    case Format::kFP8TensorCurrent:
    case Format::kFP8TensorDelayed:
      return Decode<Out>(Source<Codes, TensorScale>{encoded.data, cols, {{}, scales}}, 1, rows * cols, out, jobs);
    case Format::kFP32:
    case Format::kBF16:
    case Format::kFP16:
    case Format::kNVFP4_2D:
      break;  // not FP8
  }
}

template <typename Out>
void DecodeInto(const Encoding& encoding, Plane plane, ConstPlane encoded, int64_t rows, int64_t cols, void* out,
                JobList& jobs) {
  const uint8_t* const data = encoded.data;
  switch (encoding.format) {
    case Format::kFP32:
      return Decode<Out>(Source<FloatCodes, NoScales>{data, cols, {}}, 1, rows * cols, out, jobs);
    case Format::kBF16:
      return Decode<Out>(Source<BFloat16Codes, NoScales>{data, cols, {}}, 1, rows * cols, out, jobs);
    case Format::kFP16:
      return Decode<Out>(Source<Float16Codes, NoScales>{data, cols, {}}, 1, rows * cols, out, jobs);
    case Format::kNVFP4_2D: {
      const int64_t across = ScaleShape(encoding, plane, rows, cols).cols;
      const Nvfp4Scales scales = {{encoded.scales, across}, encoded.amax};
      return Decode<Out>(Source<Float4Codes, Nvfp4Scales>{data, (cols + 1) / 2 * 2, scales}, rows, cols, out, jobs);
    }
    case Format::kFP8TensorCurrent:
    case Format::kFP8TensorDelayed:
    case Format::kFP8Block128x128:
    case Format::kMXFP8:
    case Format::kMXFP8_2D:
      if (encoding.element == ElementType::kE4M3) {
        return DecodeFloat8<Out, E4M3>(encoding, plane, encoded, rows, cols, out, jobs);
      }
      return DecodeFloat8<Out, E5M2>(encoding, plane, encoded, rows, cols, out, jobs);
  }
}

}  // namespace

absl::Status DecodePlanes(absl::Span<const PlaneDecode> planes, cudaStream_t stream) {
  JobList jobs;
  for (const PlaneDecode& each : planes) {
    RETURN_IF_ERROR(CheckEncodable(each.encoding));
    if (each.plane == Plane::kColumnWise && !HasColumnPlane(each.encoding.format)) {
      return absl::InvalidArgumentError(
          absl::StrCat("decode a plane: format ", FormatName(each.encoding.format), " has no column-wise plane"));
    }
    if (each.rows * each.cols == 0) continue;
    const auto decode = each.type == DecodedType::kFP32 ? DecodeInto<FloatOut> : DecodeInto<BFloat16Out>;
    decode(each.encoding, each.plane, each.encoded, each.rows, each.cols, each.out, jobs);
  }
  return jobs.Launch("decode planes", stream);
}

}  // namespace paramshard::gpu
