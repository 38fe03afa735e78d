// Client library on a trainer's own CUDA streams: the calls of client.h that wait or hand over, without the host.
//
//   auto unit = model->Gather("blocks.0", paramshard::Phase::kForward);
//   status = paramshard::cuda::WaitOn(*unit, stream);             // enqueued: the host goes on
//   paramshard::Matrix w = *unit->Get("blocks.0.w1");             // w.data and w.scales: memory of GPU w.gpu
//   ... launch on `stream` what reads w ...
//   status = paramshard::cuda::Release(*unit, stream);
//   auto gradients = paramshard::cuda::Gradients(*model, "blocks.0", stream);   // a slot that `stream` zeroes
//   ... launch on `stream` what writes gradients->Get("blocks.0.w1")->fp32() ...
//   status = paramshard::cuda::Push(*gradients, stream);
//   auto commit = model->Commit(...);                             // as in client.h
//
// Views are available at once; their contents are ready for work that is enqueued later on the stream. The calls
// enqueue waits on and writes of words in host memory, copies inside the GPU, and no kernels except in Decode,
// Transpose, CopyOperands and CopyScales.
// Streams are the trainer's, of the GPU that Model::gpu() names, and any number of them; not in the middle of a
// capture. Work on a slot is ordered across streams as the calls are. A stream that a handle was given to must live
// until the handle is gone and the stream has done its work.
//
// The calls of client.h may be mixed with these. Memory that they hand out is ready for every stream; they take memory
// back after the work of the default stream and of streams that wait for it, as client.h says, or on the handle's last
// stream.
//
// While a stream waits for the daemon, cudaFree, cudaFreeHost, cudaHostUnregister, cudaDeviceSynchronize and the first
// launch of a kernel that is loaded lazily wait with it (CUDA_MODULE_LOADING=EAGER loads kernels at start).
//
// When the epoch ends, waiting streams go on, with undefined memory contents: results are valid only if
// Model::status() is OK after the stream is synchronized; Commit fails too. Synchronize the streams before you attach
// again.
//
// Errors: as in client.h; FAILED_PRECONDITION where the daemon serves the rank from host memory;
// INTERNAL for errors of CUDA.
#ifndef PARAMSHARD_CLIENT_CUDA_H_
#define PARAMSHARD_CLIENT_CUDA_H_

#include <cuda_runtime.h>

#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "client/client.h"
#include "kernels/formats/codec_cuda.h"

namespace paramshard::cuda {

using gpu::DecodedType;

// Lets `stream` wait for the unit's pieces; GatheredUnit::Get works on return. The first call also lands this rank's
// own pieces on its stream, so a stream of its own, one unit ahead, hides that copy behind running kernels; another
// call lets another stream wait for what the first one brought.
absl::Status WaitOn(GatheredUnit& unit, cudaStream_t stream);

// The first WaitOn of a unit that no other stream will wait for: it records no event. WaitOn with another stream is
// FAILED_PRECONDITION then.
absl::Status WaitAloneOn(GatheredUnit& unit, cudaStream_t stream);

// Gives the slot back when `stream` reaches this point: the stream that reads last, or one that is ordered after it.
// The handle and its views end here.
absl::Status Release(GatheredUnit& unit, cudaStream_t stream);

// Contents of a gradient slot when it is handed out.
enum class SlotContent : uint8_t {
  kZero,       // zeroed by the stream
  kUndefined,  // every element of every parameter that is not marked absent must be written
};

// Hands out a gradient slot that `stream` may write once it has drained. The host waits for nothing.
absl::StatusOr<UnitGradients> Gradients(Model& model, absl::string_view unit, cudaStream_t stream,
                                        SlotContent content = SlotContent::kZero);

// Hands the slot to the daemon when `stream` reaches this point. The views end here.
absl::Status Push(UnitGradients& gradients, cudaStream_t stream);

// Enqueues copying a unit's gradients and handing them to the daemon: Model::PushGradients, with values in memory of the
// GPU that `stream` may read. The host waits for nothing.
absl::Status PushGradients(Model& model, absl::string_view unit, absl::Span<const ConstGradient> values,
                           cudaStream_t stream);

// Enqueues decoding a plane into rows * columns values of the type, row-major, in memory of the GPU. The same values as
// Matrix::Decode.
absl::Status Decode(const Matrix& matrix, DecodedType type, void* out, cudaStream_t stream);

// The same for many planes, of one GPU: one launch decodes all planes of one format.
struct Decoding {
  Matrix matrix;
  DecodedType type = DecodedType::kFP32;
  void* out = nullptr;
};
absl::Status Decode(absl::Span<const Decoding> decodings, cudaStream_t stream);

// Enqueues writing the data of an 8-bit or 4-bit format transposed, in memory of the GPU: columns x rows bytes, or
// columns x ceil(rows / 2) bytes of two elements. Scales stay unchanged. UNIMPLEMENTED for formats of another width.
absl::Status Transpose(const Matrix& matrix, uint8_t* out, cudaStream_t stream);

// An 8-bit weight as operand of products with blocks of 128 x 128, and its place in memory of the GPU.
struct OperandCopy {
  Matrix matrix;             // in FP8_BLOCK_128X128 or an FP8_TENSOR format
  bool transposed = false;   // the operand is the transpose
  uint8_t* data = nullptr;   // of the operand, row-major
  float* scales = nullptr;   // of its blocks, row-major; in the FP8_TENSOR formats all are equal
  int64_t scales_pitch = 0;  // elements from one row of scales to the next
};

// Enqueues writing operands, of one GPU, by a handful of launches. UNIMPLEMENTED for other formats.
absl::Status CopyOperands(absl::Span<const OperandCopy> operands, cudaStream_t stream);

// Enqueues writing the scales as a product reads them: Matrix::ScaleLayoutBytes in memory of the GPU. The same bytes
// and errors as Matrix::CopyScales.
absl::Status CopyScales(const Matrix& matrix, ScaleLayout layout, uint8_t* out, cudaStream_t stream,
                        std::optional<Plane> operand = std::nullopt);

}  // namespace paramshard::cuda

#endif  // PARAMSHARD_CLIENT_CUDA_H_
