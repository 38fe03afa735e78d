// Speed of readers on cpu devices, and their cost for a trainer.
//
// Usage: reader_bench [MEBIBYTES] [TIMES] [STEPS]. For FP32, BF16 and FP8_BLOCK_128X128: as many MEBIBYTES (1024) of
// planes, read by a plain copy of mapped planes, by Snapshot::ReadBFloat16 and by Snapshot::Read, in turns with a memcpy
// of as many bytes of this process' own memory: medians of TIMES (5). Then the medians of STEPS (20) steps of a trainer
// of 16 M elements without and with a process that reads everything all the time, in turns of one step.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/client.h"
#include "client/reader.h"
#include "kernels/base/status_macros.h"
#include "kernels/formats/format.h"
#include "lab/bench/arguments.h"
#include "lab/bench/or_die.h"
#include "tests/support/child_process.h"
#include "tests/support/daemon_process.h"
#include "tests/support/environment.h"

namespace paramshard {
namespace {

constexpr int64_t kColumns = 4096;
constexpr int64_t kParameterBytes = int64_t{64} << 20;  // of data
constexpr Format kMeasured[] = {Format::kFP32, Format::kBF16, Format::kFP8Block128x128};

double Seconds(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

test::DaemonProcess StartDaemon(const test::TemporaryDirectory& directory) {
  return OrDie(test::DaemonProcess::Start(PARAMSHARDD, directory.path(), {"--device=cpu:0", "--log-level=warning"}),
               "start daemon");
}

// Frozen, so that planes are all that the daemon holds.
ModelSpec FrozenModel(Format format, int count) {
  ModelSpec spec{.name = "m"};
  const Encoding encoding{.format = format};
  const int64_t rows = kParameterBytes / DataBytes(encoding, 1, kColumns);
  for (int i = 0; i < count; ++i) {
    UnitSpec& unit = spec.units.emplace_back();
    unit.name = absl::StrCat("u", i);
    unit.parameters = {{.name = absl::StrCat("w", i),
                        .shape = {rows, kColumns},
                        .encoding = {.format = format},
                        .initial_value = {Initializer::kNormal, 0.0f, 0.02f},
                        .trainable = false}};
  }
  return spec;
}

int64_t CopyPlanes(const Snapshot& snapshot, std::vector<uint8_t>& out) {
  int64_t copied = 0;
  for (const ReadParameter& parameter : snapshot.parameters()) {
    for (const PlaneRows& rows : OrDie(snapshot.Map(parameter.name), "map")) {
      for (const absl::Span<const uint8_t> bytes : {rows.matrix.data, rows.matrix.scales}) {
        std::memcpy(out.data() + copied, bytes.data(), bytes.size());
        copied += static_cast<int64_t>(bytes.size());
      }
    }
  }
  OrDie(snapshot.Check(), "check");
  return copied;
}

void MeasureFormat(Format format, int count, int times) {
  const test::TemporaryDirectory directory;
  const test::DaemonProcess daemon = StartDaemon(directory);
  Client client = OrDie(Client::Connect({.socket_dir = directory.path()}), "connect");
  OrDie(client.CreateModel(FrozenModel(format, count)).status(), "create model");
  const auto reader = OrDie(Reader::Create({.model = "m", .socket_dir = directory.path()}), "create reader");
  const Snapshot snapshot = OrDie(reader->Acquire(), "acquire");
  const std::vector<ReadParameter>& parameters = snapshot.parameters();
  const int64_t elements = parameters.front().rows * parameters.front().columns;
  std::vector<uint8_t> own(count * kParameterBytes + (count << 20), 1), copy(own.size(), 2);
  std::vector<uint16_t> rounded(elements);
  std::vector<float> values(elements);
  const int64_t bytes = CopyPlanes(snapshot, copy);  // maps the pages
  std::vector<double> memcpys, copies, bfloats, floats;
  for (int i = 0; i < times; ++i) {
    auto begin = std::chrono::steady_clock::now();
    std::memcpy(copy.data(), own.data(), bytes);
    memcpys.push_back(Seconds(begin));
    begin = std::chrono::steady_clock::now();
    CopyPlanes(snapshot, copy);
    copies.push_back(Seconds(begin));
    begin = std::chrono::steady_clock::now();
    for (const ReadParameter& parameter : parameters) {
      OrDie(snapshot.ReadBFloat16(parameter.name, absl::MakeSpan(rounded)), "read");
    }
    bfloats.push_back(Seconds(begin));
    begin = std::chrono::steady_clock::now();
    for (const ReadParameter& parameter : parameters) {
      OrDie(snapshot.Read(parameter.name, absl::MakeSpan(values)), "read");
    }
    floats.push_back(Seconds(begin));
  }
  const double memcpy_s = Median(memcpys);
  const auto column = [&](const std::vector<double>& seconds) {
    return absl::StrFormat("%6.2f GB/s (%.2f)", bytes / Median(seconds) / 1e9, memcpy_s / Median(seconds));
  };
  std::cout << absl::StrFormat("%-18s %.2f GB of planes: memcpy %s, copy %s, ReadBFloat16 %s, Read %s\n",
                               FormatName(format), bytes / 1e9, column(memcpys), column(copies), column(bfloats),
                               column(floats))
            << std::flush;
}

ModelSpec TrainedModel() {
  ModelSpec spec{.name = "m"};
  for (int i = 0; i < 4; ++i) {
    spec.units.push_back({.name = absl::StrCat("u", i),
                          .parameters = {{.name = absl::StrCat("w", i),
                                          .shape = {1024, kColumns},
                                          .encoding = {.format = Format::kFP8Block128x128},
                                          .initial_value = {Initializer::kNormal, 0.0f, 0.02f}}}});
  }
  return spec;
}

void Step(Model& model) {
  for (const UnitSpec& unit : model.spec().units) {
    GatheredUnit gathered = OrDie(model.Gather(unit.name, Phase::kForward), "gather");
    OrDie(gathered.Wait(), "wait");
  }
  for (const UnitSpec& unit : model.spec().units) {
    UnitGradients gradients = OrDie(model.Gradients(unit.name), "gradients");
    const GradientView view = OrDie(gradients.Get(unit.parameters[0].name), "gradient");
    std::fill(view.fp32().begin(), view.fp32().end(), 0.01f);
    OrDie(gradients.Push(), "push");
  }
  PendingCommit pending = OrDie(model.Commit({.learning_rate = 1e-3f}), "commit");
  OrDie(pending.Wait().status(), "wait");
}

constexpr int kTurn = 0;   // odd: read
constexpr int kReads = 1;  // whole readings
constexpr int kEnds = 2;   // readings that were aborted

absl::Status ReadInTurns(const std::string& socket_dir, test::Board& board) {
  ASSIGN_OR_RETURN(const auto reader, Reader::Create({.model = "m", .socket_dir = socket_dir}));
  std::vector<uint16_t> values(1024 * kColumns);
  while (true) {
    if (const uint32_t turn = board.numbers[kTurn]; turn % 2 == 0)
      test::AwaitNumber(board, kTurn, turn + 1, absl::Hours(1));
    ASSIGN_OR_RETURN(const Snapshot snapshot, reader->Acquire());
    bool whole = true;
    for (const ReadParameter& parameter : snapshot.parameters()) {
      whole = whole && snapshot.ReadBFloat16(parameter.name, absl::MakeSpan(values)).ok();
    }
    test::Reach(board, whole ? kReads : kEnds, board.numbers[whole ? kReads : kEnds] + 1);
  }
}

void MeasureSteps(int steps) {
  const test::TemporaryDirectory directory;
  const test::DaemonProcess daemon = StartDaemon(directory);
  test::ChildProcess reading = test::ChildProcess::Run(
      [&](test::Board& board) { return ReadInTurns(directory.path(), board); });  // forked before gRPC is used
  test::ChildProcess training = test::ChildProcess::Run([&](test::Board&) -> absl::Status {
    Client client = OrDie(Client::Connect({.rank = 0, .socket_dir = directory.path()}), "connect");
    Model model = OrDie(client.OpenModel(TrainedModel()), "open");
    std::vector<double> without, with;
    for (int i = 0; i < 2; ++i) Step(model);
    for (uint32_t turn = 1; turn <= 2 * static_cast<uint32_t>(steps); ++turn) {
      test::Reach(reading.board(), kTurn, turn);
      // A step with a reader begins in the middle of a reading.
      if (turn % 2 == 1) reading.AwaitNumber(kReads, reading.board().numbers[kReads] + 1);
      const auto begin = std::chrono::steady_clock::now();
      Step(model);
      (turn % 2 == 1 ? with : without).push_back(Seconds(begin));
    }
    std::cout << absl::StrFormat(
                     "step of 16 M elements: %.1f ms without a reader, %.1f ms with one (%.2f); it read the "
                     "model %d times, and %d readings ended early\n",
                     1e3 * Median(without), 1e3 * Median(with), Median(with) / Median(without),
                     reading.board().numbers[kReads].load(), reading.board().numbers[kEnds].load())
              << std::flush;
    return absl::OkStatus();
  });
  OrDie(training.Await(absl::Minutes(10)), "train");
}

}  // namespace
}  // namespace paramshard

int main(int argc, char** argv) {
  int mebibytes = 1024, times = 5, steps = 20;
  paramshard::ReadCounts(argc, argv, {{"MEBIBYTES", &mebibytes, 64, 65536}, {"TIMES", &times}, {"STEPS", &steps}});
  paramshard::MeasureSteps(steps);
  for (const paramshard::Format format : paramshard::kMeasured)
    paramshard::MeasureFormat(format, mebibytes / 64, times);
}
