#include "lab/campaign/readable_training.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "kernels/base/status_macros.h"
#include "lab/campaign/kept_server.h"
#include "lab/campaign/world.h"

namespace paramshard::test {
namespace {

struct Shape {
  const char* unit;
  Format format;
  std::vector<int64_t> dimensions;
};

const Shape kShapes[] = {{"first", Format::kFP32, {48, 32}},
                         {"first", Format::kMXFP8, {64, 64}},
                         {"second", Format::kFP8Block128x128, {144, 32}},
                         {"second", Format::kBF16, {40, 48}}};

constexpr int kPeriod = 64;
constexpr int kOfLife = 17;      // values of the next life are so many commits ahead
constexpr int kOfParameter = 5;  // likewise, of the next parameter

// Mean of the ranks' gradients; the ranks' own differ by what is exact.
float GradientOf(absl::string_view parameter, int64_t commit, int rank) {
  const float mean = ValueAt(parameter, commit - 1) - ValueAt(parameter, commit);
  return rank % 2 == 0 ? mean + 0.5f : mean - 0.5f;
}

absl::Status Step(Model& model, const ReadableTraining& training, int64_t commit, Board& board) {
  for (const UnitSpec& unit : model.spec().units) {
    ASSIGN_OR_RETURN(GatheredUnit gathered, model.Gather(unit.name, Phase::kForward));
    RETURN_IF_ERROR(gathered.Wait());
  }
  for (const UnitSpec& unit : model.spec().units) {
    ASSIGN_OR_RETURN(UnitGradients gradients, model.Gradients(unit.name));
    for (const ParameterSpec& parameter : unit.parameters) {
      ASSIGN_OR_RETURN(const GradientView view, gradients.Get(parameter.name));
      std::fill(view.fp32().begin(), view.fp32().end(), GradientOf(parameter.name, commit, training.rank));
    }
    RETURN_IF_ERROR(gradients.Push());
  }
  const absl::Time begin = absl::Now();
  ASSIGN_OR_RETURN(PendingCommit pending, model.Commit({.learning_rate = 1.0f}));
  ASSIGN_OR_RETURN(const StepResult result, pending.Wait());
  const absl::Duration took = absl::Now() - begin;
  board.numbers[kLongestCommitUs] =
      std::max<uint32_t>(board.numbers[kLongestCommitUs], static_cast<uint32_t>(absl::ToInt64Microseconds(took)));
  board.numbers[kCommitsOver20Ms] += took > absl::Milliseconds(20);
  if (result.commit_number == commit && !result.skipped) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("applied commit: want ", commit, ", got ", result.commit_number));
}

absl::Status TrainEpoch(const ReadableTraining& training, Board& board) {
  ASSIGN_OR_RETURN(Client client, Client::Connect({.rank = training.rank,
                                                   .socket_dir = training.socket_dir,
                                                   .attach_timeout = kTimeout,
                                                   .restart_timeout = absl::ZeroDuration(),
                                                   .on_wait = [](absl::string_view) {}}));
  ASSIGN_OR_RETURN(Model model, client.OpenModel(ReadableModel(training)));
  ++board.numbers[kEpochs];
  for (int64_t commit = model.commit_number() + 1; commit <= training.commits; ++commit) {
    Reach(board, kAtCommit, static_cast<uint32_t>(commit));
    if (!AwaitNumber(board, kMayCommit, static_cast<uint32_t>(commit), 5 * kTimeout)) {
      return absl::InternalError(absl::StrCat("commit ", commit, ": timed out waiting for permission to begin it"));
    }
    RETURN_IF_ERROR(Step(model, training, commit, board));
  }
  return absl::OkStatus();
}

}  // namespace

ModelSpec ReadableModel(const ReadableTraining& training) {
  ModelSpec spec{.name = training.model, .units = {{.name = "first"}, {.name = "second"}}};
  spec.groups = {{.optimizer = Optimizer::kSgd}};
  spec.small_parameter_bytes = 4096;
  spec.shard_size = training.ranks;
  spec.gradient_sums = training.gradient_sums;
  std::vector<Shape> shapes(std::begin(kShapes), std::end(kShapes));
  if (training.large_rows > 0) shapes.push_back({"second", Format::kBF16, {training.large_rows, 2048}});
  int number = 0;
  for (const Shape& shape : shapes) {
    // The name tells ValueAt its place in the sequence.
    const std::string name =
        absl::StrCat(FormatName(shape.format), ".", kOfParameter * number++ + kOfLife * training.life);
    const auto unit = std::find_if(spec.units.begin(), spec.units.end(),
                                   [&](const UnitSpec& candidate) { return candidate.name == shape.unit; });
    unit->parameters.push_back({.name = name,
                                .shape = shape.dimensions,
                                .encoding = {.format = shape.format},
                                .initial_value = {Initializer::kConstant, ValueAt(name, 0)}});
  }
  return spec;
}

// Four significant bits, as many as E4M3 has; differences of values are exact in float32.
float ValueAt(absl::string_view parameter, int64_t commit) {
  int64_t ahead = 0;
  if (!absl::SimpleAtoi(parameter.substr(parameter.rfind('.') + 1), &ahead)) return std::nanf("");
  const auto place = static_cast<int>((commit + ahead) % kPeriod);
  return std::ldexp(static_cast<float>(8 + place % 8), place / 8 - 8);
}

absl::Status TrainReadable(const ReadableTraining& training, Board& board) {
  absl::Status status = absl::UnavailableError("not yet");
  const auto may_come_right = [&] {
    return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status) || absl::IsAborted(status);
  };
  const absl::Time latest = absl::Now() + 30 * kTimeout;
  while (may_come_right() && absl::Now() < latest) status = TrainEpoch(training, board);
  return status;
}

}  // namespace paramshard::test
