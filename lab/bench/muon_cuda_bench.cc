// Time of Muon's parts on one GPU, for the matrices of a Llama of 1.1 billion parameters (torch_llama.py).
//
//   muon_cuda_bench [LIBRARY]
//
// LIBRARY: cuBLASLt; default: the one that the dynamic linker finds. All rates are in TFLOP/s, with 2 s^2 l operations for
// a Gram matrix, also where half of it is computed. Products of 8192 x 8192 x 8192 by cuBLASLt are the yardstick.

#include <cuda_runtime.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/formats/bfloat16.h"
#include "kernels/gpu/cublas_lt.h"
#include "kernels/gpu/memory.h"
#include "kernels/gpu/status.h"
#include "kernels/gpu/stream.h"
#include "kernels/optim/muon_kernels.h"
#include "kernels/optim/orthogonalizer_cuda.h"
#include "kernels/optim/orthogonalizer_memory.h"
#include "kernels/products/cublas_lt_products.h"
#include "kernels/products/hopper_products.h"
#include "kernels/random/initial_values_cuda.h"

namespace paramshard::gpu {
namespace {

constexpr int kDevice = 0;

void Check(const absl::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  std::exit(1);
}
void Check(cudaError_t error) { Check(ToStatus(error, "benchmark")); }

template <typename Value>
Value OrDie(absl::StatusOr<Value> value) {
  Check(value.status());
  return *std::move(value);
}

// Device memory that lives as long as the program.
template <typename Element>
Element* Allocate(int64_t count) {
  void* memory = nullptr;
  Check(cudaMalloc(&memory, count * sizeof(Element)));
  return static_cast<Element*>(memory);
}

struct Shape {
  int64_t rows, columns;

  int64_t elements() const { return rows * columns; }
  int64_t small() const { return std::min(rows, columns); }
  int64_t large() const { return std::max(rows, columns); }
  double Operations() const {
    const auto s = static_cast<double>(small());
    return 4 * s * s * static_cast<double>(large()) + 2 * s * s * s;
  }
};

constexpr Shape kBlock[] = {{2048, 2048}, {1024, 2048}, {1024, 2048}, {2048, 2048},
                            {8192, 2048}, {8192, 2048}, {2048, 8192}};
constexpr int kBlocks = 16;

class Bench {
 public:
  Bench() : stream_(OrDie(Stream::Create(kDevice))) {
    Check(cudaEventCreate(&begin_));
    Check(cudaEventCreate(&end_));
  }

  cudaStream_t stream() const { return stream_.get(); }

  // Median of the milliseconds.
  double Time(int repetitions, const std::function<void()>& work) {
    work();
    std::vector<float> times(repetitions);
    for (float& time : times) {
      Check(cudaEventRecord(begin_, stream()));
      work();
      Check(cudaEventRecord(end_, stream()));
      Check(cudaEventSynchronize(end_));
      Check(cudaEventElapsedTime(&time, begin_, end_));
    }
    std::nth_element(times.begin(), times.begin() + repetitions / 2, times.end());
    return times[repetitions / 2];
  }

  void Fill(uint16_t* elements, int64_t count, int64_t parameter) {
    float* const values = Allocate<float>(count);
    Check(FillInitialValues({Initializer::kNormal, 0.0f, 1e-3f}, 1, parameter, 0, count, values, stream()));
    std::vector<float> host(count);
    Check(cudaStreamSynchronize(stream()));
    Check(cudaMemcpy(host.data(), values, count * sizeof(float), cudaMemcpyDeviceToHost));
    std::vector<uint16_t> rounded(count);
    std::transform(host.begin(), host.end(), rounded.begin(), EncodeBFloat16);
    Check(cudaMemcpy(elements, rounded.data(), count * sizeof(uint16_t), cudaMemcpyHostToDevice));
    Check(cudaFree(values));
  }

 private:
  Stream stream_;
  cudaEvent_t begin_ = nullptr;
  cudaEvent_t end_ = nullptr;
};

struct Product {
  const char* name;
  MatrixProduct product;
};

class MuonBench {
 public:
  explicit MuonBench(const std::string& library)
      : library_(*OrDie(CublasLt::Load(library))),
        lt_(OrDie(MakeCublasLtProducts(library_, kDevice))),
        hopper_(OrDie(MakeHopperProducts(kDevice))) {}

  void Run() {
    MeasureProducts();
    MeasureIterations();
    MeasureElements();
  }

 private:
  // Products of the shape's iteration.
  std::vector<Product> ProductsOf(const Shape& shape) {
    const bool is_wide = shape.rows <= shape.columns;
    const int64_t s = shape.small();
    const int64_t l = shape.large();
    const Operand x = {x_, shape.columns};
    const Operand next = {next_, shape.columns};
    const Operand gram = {gram_, s};
    const Operand gram_transpose = {gram_, s, true};
    const Operand polynomial = {polynomial_, s};
    const Operand polynomial_transpose = {polynomial_, s, true};
    const Operand x_transpose = {x_, shape.columns, true};
    return {{"gram",
             {.left = is_wide ? x : x_transpose,
              .right = is_wide ? x_transpose : x,
              .result = gram,
              .rows = s,
              .columns = s,
              .terms = l,
              .is_symmetric = true}},
            {"polynomial",
             {.left = gram,
              .right = gram_transpose,
              .addend = gram,
              .result = polynomial,
              .rows = s,
              .columns = s,
              .terms = s,
              .factor = 2.0315f,
              .addend_factor = -4.775f,
              .is_symmetric = true}},
            {"next",
             {.left = is_wide ? polynomial : x,
              .right = is_wide ? x : polynomial_transpose,
              .addend = x,
              .result = next,
              .rows = shape.rows,
              .columns = shape.columns,
              .terms = s,
              .factor = 1,
              .addend_factor = 3.4445f}}};
  }

  void PrintRate(const char* engine, const std::string& name, double operations, double milliseconds) {
    const double rate = operations / milliseconds;
    std::printf("%-10s %-40s %9.3f ms %7.0f TFLOP/s %6.1f %% of the product rate\n", engine, name.c_str(), milliseconds,
                rate / 1e9, 100 * rate / product_rate_);
    std::fflush(stdout);
  }

  void MeasureProducts() {
    constexpr int64_t kSize = 8192;
    bench_.Fill(x_, kSize * kSize, 1);
    bench_.Fill(next_, kSize * kSize, 2);
    const MatrixProduct large = {.left = {x_, kSize},
                                 .right = {next_, kSize, true},
                                 .result = {gram_, kSize},
                                 .rows = kSize,
                                 .columns = kSize,
                                 .terms = kSize};
    for (MatrixProducts* const engine : {lt_.get(), hopper_.get()}) {
      const double time = TimeOf(*engine, large);
      if (engine == lt_.get()) product_rate_ = OperationsOf(large) / time;
      PrintRate(NameOf(engine), "8192 x 8192 x 8192", OperationsOf(large), time);
    }
    for (const Shape& shape : {Shape{2048, 8192}, Shape{8192, 2048}, Shape{2048, 2048}, Shape{1024, 2048}}) {
      bench_.Fill(x_, shape.elements(), 1);
      for (const Product& each : ProductsOf(shape)) {
        const std::string name = absl::StrCat(shape.rows, " x ", shape.columns, ": ", each.name);
        for (MatrixProducts* const engine : {lt_.get(), hopper_.get()}) {
          PrintRate(NameOf(engine), name, OperationsOf(each.product), TimeOf(*engine, each.product));
        }
      }
    }
  }

  // Milliseconds of one of several products in a row.
  double TimeOf(MatrixProducts& engine, const MatrixProduct& product) {
    constexpr int kProducts = 8;
    return bench_.Time(5, [&] {
      for (int i = 0; i < kProducts; ++i) Check(engine.Enqueue({product}, bench_.stream()));
    }) / kProducts;
  }

  static double OperationsOf(const MatrixProduct& product) {
    return 2.0 * static_cast<double>(product.rows) * static_cast<double>(product.columns) *
           static_cast<double>(product.terms);
  }

  const char* NameOf(const MatrixProducts* engine) const { return engine == lt_.get() ? "cuBLASLt" : "Hopper"; }

  void MeasureIterations() {
    int64_t elements = 0;
    double operations = 0;
    for (const Shape& shape : kBlock) {
      elements += shape.elements();
      operations += kBlocks * 5 * shape.Operations();
    }
    uint16_t* const updates = Allocate<uint16_t>(elements * kBlocks);
    uint16_t* const kept = Allocate<uint16_t>(elements);
    bench_.Fill(kept, elements, 3);
    std::vector<std::vector<BFloat16Matrix>> blocks(kBlocks);
    uint16_t* next = updates;
    for (std::vector<BFloat16Matrix>& matrices : blocks) {
      for (const Shape& shape : kBlock) {
        matrices.push_back({next, shape.rows, shape.columns, shape.columns});
        next += shape.elements();
      }
    }
    const auto restore = [&] {
      for (int block = 0; block < kBlocks; ++block) {
        Check(
            cudaMemcpyAsync(updates + block * elements, kept, elements * 2, cudaMemcpyDeviceToDevice, bench_.stream()));
      }
    };
    const double copy = bench_.Time(5, restore);
    std::vector<uint16_t> results[2];
    for (const bool is_hopper : {false, true}) {
      const char* const engine = is_hopper ? "Hopper" : "cuBLASLt";
      auto orthogonalizer = OrDie(MakeCudaOrthogonalizer(
          is_hopper ? OrDie(MakeHopperProducts(kDevice)) : OrDie(MakeCublasLtProducts(library_, kDevice)), kDevice,
          bench_.stream(), OrthogonalizerBytes(blocks.front())));
      std::chrono::duration<double, std::milli> host{};
      const double time = bench_.Time(9, [&] {
        restore();
        const auto begin = std::chrono::steady_clock::now();
        for (const auto& matrices : blocks) Check(orthogonalizer->Run(NewtonSchulz(), matrices));
        host = std::chrono::steady_clock::now() - begin;
      });
      results[is_hopper] = Download(updates, elements);
      PrintRate(engine, absl::StrCat("iterations, host ", host.count(), " ms"), operations, time - copy);
    }
    PrintDifference(results[0], results[1]);
  }

  static std::vector<uint16_t> Download(const uint16_t* elements, int64_t count) {
    std::vector<uint16_t> host(count);
    Check(cudaDeviceSynchronize());
    Check(cudaMemcpy(host.data(), elements, count * sizeof(uint16_t), cudaMemcpyDeviceToHost));
    return host;
  }

  static void PrintDifference(const std::vector<uint16_t>& one, const std::vector<uint16_t>& other) {
    double difference = 0;
    double size = 0;
    int64_t unequal = 0;
    for (size_t i = 0; i < one.size(); ++i) {
      const double a = DecodeBFloat16(one[i]);
      const double b = DecodeBFloat16(other[i]);
      unequal += one[i] != other[i] ? 1 : 0;
      difference += (a - b) * (a - b);
      size += a * a;
    }
    std::printf("updates of the engines: %.2f %% of the elements differ, by %.2e in the Frobenius norm\n",
                100.0 * static_cast<double>(unequal) / static_cast<double>(one.size()), std::sqrt(difference / size));
  }

  // A quarter of the model's elements.
  void MeasureElements() {
    constexpr int64_t kCount = int64_t{235} << 20;
    constexpr int64_t kPart = kCount / 16;
    float* const gradient = Allocate<float>(kCount);
    float* const momentum = Allocate<float>(kCount);
    uint16_t* const update = Allocate<uint16_t>(kCount);
    OptimizerStep step;
    step.optimizer = Optimizer::kMuonNesterov;
    step.momentum = 0.95f;
    step.gradient_scale = 1;
    std::vector<MuonElements> fused;
    std::vector<MuonElements> momentum_alone;
    for (int64_t i = 0; i < 16; ++i) {
      MuonElements part = {.step = step,
                           .gradient = {gradient + i * kPart},
                           .momentum = {momentum + i * kPart, nullptr, MomentType::kFP32},
                           .fresh = {momentum + i * kPart, nullptr, MomentType::kFP32},
                           .count = kPart};
      momentum_alone.push_back(part);
      part.update = update + i * kPart;
      fused.push_back(part);
    }
    PrintBandwidth("copy", 8.0 * kCount, bench_.Time(9, [&] {
      Check(cudaMemcpyAsync(gradient, momentum, kCount * 4, cudaMemcpyDeviceToDevice, bench_.stream()));
    }));
    PrintBandwidth("momentum and update", 14.0 * kCount,
                   bench_.Time(9, [&] { Check(StepMuon(fused, bench_.stream())); }));
    PrintBandwidth("momentum", 12.0 * kCount,
                   bench_.Time(9, [&] { Check(StepMuon(momentum_alone, bench_.stream())); }));
  }

  void PrintBandwidth(const char* name, double bytes, double milliseconds) {
    std::printf("%-51s %9.3f ms %7.0f GB/s\n", name, milliseconds, bytes / milliseconds / 1e6);
    std::fflush(stdout);
  }

  const CublasLt& library_;
  const std::unique_ptr<MatrixProducts> lt_;
  const std::unique_ptr<MatrixProducts> hopper_;
  Bench bench_;
  double product_rate_ = 1;
  uint16_t* const x_ = Allocate<uint16_t>(int64_t{8192} * 8192);
  uint16_t* const next_ = Allocate<uint16_t>(int64_t{8192} * 8192);
  uint16_t* const gram_ = Allocate<uint16_t>(int64_t{8192} * 8192);
  uint16_t* const polynomial_ = Allocate<uint16_t>(int64_t{8192} * 8192);
};

}  // namespace
}  // namespace paramshard::gpu

int main(int argc, char** argv) {
  int gpus = 0;
  if (cudaGetDeviceCount(&gpus) != cudaSuccess || gpus == 0) {
    std::printf("skipped: no GPU here\n");
    return 0;
  }
  paramshard::gpu::MuonBench(argc > 1 ? argv[1] : "").Run();
  return 0;
}
