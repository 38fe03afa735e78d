#include <algorithm>
#include <chrono>
#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "client/ctl/commands.h"
#include "client/ctl/options.h"
#include "client/ctl/terminal_text.h"
#include "client/ctl/trace_document.h"

namespace paramshard::ctl {
namespace {

// Clock samples; the shortest one counts.
constexpr int kClockSamples = 5;
constexpr int kMaxSteps = 100;

int64_t NowNs() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
}

// The daemon reads its clock between the request and the answer.
absl::Status SampleClock(AdminClient& client, DaemonTrace& trace) {
  v1::GetTraceRequest request;
  request.set_only_clock(true);
  for (int i = 0; i < kClockSamples; ++i) {
    v1::GetTraceResponse response;
    const int64_t asked = NowNs();
    RETURN_IF_ERROR(client.Call(&AdminClient::Stub::GetTrace, request, response));
    const int64_t half = (NowNs() - asked) / 2;
    if (i > 0 && half >= trace.uncertainty_ns) continue;
    trace.uncertainty_ns = half;
    trace.offset_ns = asked + half - response.now_ns();
  }
  return absl::OkStatus();
}

class Trace final : public Command {
 public:
  void AddOptions(CLI::App& app) override {
    app.add_option("--model", request_model_, "one model (default: all)")->check(IsNotEmpty);
    app.add_option("--steps", steps_, "number of last steps (default: 3)")->check(CLI::Range(1, kMaxSteps));
    app.add_option("--out", out_, "a file to write (default: standard output)");
  }
  absl::StatusOr<int> Run(const Context& context) override;

 private:
  absl::StatusOr<DaemonTrace> Ask(const Context& context) const;
  absl::Status Write(const Context& context, const std::string& document) const;

  std::string request_model_;
  int steps_ = 3;
  std::string out_;
};

absl::StatusOr<DaemonTrace> Trace::Ask(const Context& context) const {
  ASSIGN_OR_RETURN(AdminClient client, context.Connect());
  DaemonTrace trace;
  if (!context.options().addresses.empty()) trace.address = context.options().addresses[0];
  RETURN_IF_ERROR(SampleClock(client, trace));
  v1::GetTraceRequest request;
  request.set_model(request_model_);
  request.set_steps(steps_);
  RETURN_IF_ERROR(client.Call(&AdminClient::Stub::GetTrace, request, trace.response));
  return trace;
}

absl::Status Trace::Write(const Context& context, const std::string& document) const {
  if (out_.empty()) {
    context.streams().out << document;
    return absl::OkStatus();
  }
  std::ofstream file(out_, std::ios::binary | std::ios::trunc);
  file << document << std::flush;
  if (!file.good()) return absl::InvalidArgumentError(absl::StrCat("--out: failed to write ", out_));
  context.streams().out << "wrote " << TerminalText(out_) << "\n";
  return absl::OkStatus();
}

// Writes one document of all daemons that answer.
absl::StatusOr<int> Trace::Run(const Context& context) {
  std::vector<DaemonTrace> traces;
  absl::Status failed;
  const std::vector<std::string>& addresses = context.options().addresses;
  for (size_t i = 0; i < std::max<size_t>(1, addresses.size()); ++i) {
    GlobalOptions options = context.options();
    if (!addresses.empty()) options.addresses = {addresses[i]};
    absl::StatusOr<DaemonTrace> trace = Ask(Context(options, context.streams()));
    if (trace.ok()) {
      traces.push_back(*std::move(trace));
    } else {
      failed = addresses.size() < 2
                   ? trace.status()
                   : absl::Status(trace.status().code(), absl::StrCat(addresses[i], ": ", trace.status().message()));
    }
  }
  if (!traces.empty()) RETURN_IF_ERROR(Write(context, JsonText(TraceDocument(traces))));
  RETURN_IF_ERROR(failed);
  return kSucceeded;
}

}  // namespace

const CommandInfo kTrace = {.name = "trace",
                            .help = "write a trace of the last steps, for Perfetto",
                            .asks_all_at_once = true,
                            .create = Create<Trace>};

}  // namespace paramshard::ctl
