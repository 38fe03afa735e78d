#include "absl/strings/str_cat.h"
#include "benchmark/benchmark.h"
#include "common/model/layout.h"
#include "common/model/layout_fingerprint.h"
#include "common/model/model_spec_proto.h"

namespace paramshard {
namespace {

// Blocks of eight matrices and two norms.
ModelSpec Transformer(int64_t parameters) {
  ModelSpec spec;
  spec.groups.resize(1);
  for (int64_t i = 0; i < parameters; ++i) {
    if (i % 10 == 0) spec.units.emplace_back().name = absl::StrCat("blocks.", i / 10);
    ParameterSpec& parameter = spec.units.back().parameters.emplace_back();
    parameter.name = absl::StrCat("blocks.", i / 10, ".", i % 10);
    parameter.shape = {i % 10 < 2 ? 1 : 8192, 8192};
    parameter.encoding.format = i % 10 < 2 ? Format::kFP32 : Format::kMXFP8;
  }
  return spec;
}

void BM_Layout(benchmark::State& state) {
  const ModelSpec spec = Transformer(state.range(0));
  for (auto _ : state) benchmark::DoNotOptimize(Layout(spec, static_cast<int>(state.range(1))));
}
BENCHMARK(BM_Layout)
    ->ArgNames({"parameters", "ranks"})
    ->Args({10'000, 64})
    ->Args({10'000, 4096})
    ->Args({1'000'000, 64});

void BM_LayoutFingerprint(benchmark::State& state) {
  const Layout layout(Transformer(state.range(0)), 64);
  for (auto _ : state) benchmark::DoNotOptimize(LayoutFingerprint(layout));
}
BENCHMARK(BM_LayoutFingerprint)->ArgName("parameters")->Arg(10'000)->Arg(1'000'000);

void BM_ParseModelSpec(benchmark::State& state) {
  const v1::ModelSpec proto = [&] {
    ModelSpec spec = Transformer(state.range(0));
    spec.name = "transformer";
    return ModelSpecToProto(spec);
  }();
  for (auto _ : state) {
    const auto spec = ParseModelSpec(proto);
    if (!spec.ok()) state.SkipWithError(spec.status().ToString().c_str());
  }
}
BENCHMARK(BM_ParseModelSpec)->ArgName("parameters")->Arg(10'000)->Arg(1'000'000);

}  // namespace
}  // namespace paramshard
