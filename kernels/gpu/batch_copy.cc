#include "kernels/gpu/batch_copy.h"

#include "kernels/gpu/status.h"

namespace paramshard::gpu {

void BatchCopy::Add(void* target, const void* source, int64_t size_bytes) {
  if (size_bytes == 0) return;
  targets_.push_back(target);
  sources_.push_back(source);
  sizes_.push_back(static_cast<size_t>(size_bytes));
}

absl::Status BatchCopy::Enqueue(cudaStream_t stream) const {
  if (empty()) return absl::OkStatus();
  cudaMemcpyAttributes attributes = {};
  attributes.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
  attributes.flags = cudaMemcpyFlagPreferOverlapWithCompute;
  size_t first = 0;  // the copy from which on the attributes hold
  return ToStatus(cudaMemcpyBatchAsync(targets_.data(), sources_.data(), sizes_.data(), targets_.size(), &attributes,
                                       &first, 1, stream),
                  "enqueue a batch of copies");
}

}  // namespace paramshard::gpu
