#include "lab/bench/block_products.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <utility>

#include "kernels/gpu/status.h"
#include "lab/bench/or_die.h"

namespace paramshard {

// A moment on a stream.
class BlockProducts::Event {
 public:
  Event() { cudaEventCreate(&event_); }
  Event(Event&& other) noexcept : event_(std::exchange(other.event_, nullptr)) {}
  ~Event() {
    if (event_ != nullptr) cudaEventDestroy(event_);
  }
  void Record(cudaStream_t stream) { cudaEventRecord(event_, stream); }
  double SecondsSince(const Event& earlier) const {
    float milliseconds = 0;
    OrDie(gpu::ToStatus(cudaEventElapsedTime(&milliseconds, earlier.event_, event_), "measure"), "measure");
    return milliseconds / 1e3;
  }

 private:
  cudaEvent_t event_ = nullptr;
};

BlockProducts::BlockProducts(int gpu, int blocks, int tokens)
    : plan_(PlanStep(blocks)),
      tokens_(tokens),
      compute_(OrDie(gpu::Stream::Create(gpu), "stream")),
      blas_(compute_.get()) {
  const int accessors[] = {gpu};
  const auto allocate = [&](int64_t elements) {
    return OrDie(gpu::DeviceMemory::Create(gpu, elements * 2, accessors, false), "allocate");
  };
  activations_ = allocate(int64_t{tokens} * 14336);
  outputs_ = allocate(int64_t{tokens} * 14336);
  weights_ = allocate(int64_t{14336} * 4096);
  gradient_ = allocate(int64_t{14336} * 4096);
  Randomize(activations_);
  Randomize(weights_);
}

StepTimes BlockProducts::Run(BlockCalls& calls, int steps, bool products, absl::FunctionRef<void()> enqueued) {
  OrDie(compute_.Synchronize(), "synchronize");
  std::vector<Event> ends(steps), begins(steps);
  Event begin, end;
  begin.Record(stream());
  for (int step = 0; step < steps; ++step) Step(calls, products, begins[step], ends[step]);
  calls.Finish();
  end.Record(stream());
  enqueued();
  OrDie(compute_.Synchronize(), "train");
  StepTimes times{.seconds = end.SecondsSince(begin) / steps};
  for (int step = 1; step < steps; ++step) times.between_steps += begins[step].SecondsSince(ends[step - 1]);
  times.between_steps /= std::max(1, steps - 1);
  step_seconds_.clear();
  for (int step = 0; step < steps; ++step) {
    step_seconds_.push_back((step + 1 < steps ? begins[step + 1] : end).SecondsSince(begins[step]));
  }
  return times;
}

// Fills memory with random numbers: products of constants would draw less power than real products.
void BlockProducts::Randomize(const gpu::DeviceMemory& memory) {
  std::vector<uint16_t> values(memory.size_bytes() / 2);
  uint32_t state = 1;
  for (uint16_t& value : values) {
    state = state * 1664525u + 1013904223u;
    value = static_cast<uint16_t>(0x3c00u + (state >> 16 & 0x83ffu));
  }
  OrDie(gpu::ToStatus(cudaMemcpy(memory.data(), values.data(), memory.size_bytes(), cudaMemcpyHostToDevice), "copy"),
        "fill");
  OrDie(gpu::ToStatus(cudaDeviceSynchronize(), "copy"), "fill");
}

void BlockProducts::Step(BlockCalls& calls, bool products, Event& begin, Event& end) {
  calls.BeginStep();
  for (size_t use = 0; use < plan_.size(); ++use) {
    calls.Await(use);
    if (use == 0) begin.Record(stream());
    if (products) plan_[use].phase == Phase::kForward ? Forward() : Backward(plan_[use].block, calls);
    calls.Release();
  }
  end.Record(stream());
  if (products) calls.EndStep();
}

void BlockProducts::Forward() const {
  for (const BlockWeight& weight : kBlockWeights) {
    blas_.Multiply(tokens_, weight.rows, weight.columns, activations_.data(), weights_.data(), outputs_.data());
  }
}

void BlockProducts::Backward(int block, BlockCalls& calls) {
  calls.BeginGradients(block);
  for (int i = 0; i < static_cast<int>(std::size(kBlockWeights)); ++i) {
    const BlockWeight& weight = kBlockWeights[i];
    blas_.Multiply(tokens_, weight.columns, weight.rows, activations_.data(), weights_.data(), outputs_.data());
    void* const gradient = calls.Gradient(i);
    blas_.Multiply(weight.columns, weight.rows, tokens_, activations_.data(), outputs_.data(),
                   gradient != nullptr ? gradient : gradient_.data());
  }
  calls.EndGradients(block);
}

}  // namespace paramshard
