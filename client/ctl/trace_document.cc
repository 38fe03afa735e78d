#include "client/ctl/trace_document.h"

#include <algorithm>
#include <limits>
#include <map>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace paramshard::ctl {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kNanosecondsOfMicrosecond = 1000;

const char* NameOf(v1::TraceSpanKind kind) {
  switch (kind) {
    case v1::TRACE_SPAN_KIND_COMMAND:
      return "command";
    case v1::TRACE_SPAN_KIND_WAIT:
      return "wait";
    case v1::TRACE_SPAN_KIND_GATHER:
      return "gather";
    case v1::TRACE_SPAN_KIND_PUSH:
      return "push";
    case v1::TRACE_SPAN_KIND_DISCARD:
      return "discard";
    case v1::TRACE_SPAN_KIND_SUM:
      return "sum";
    case v1::TRACE_SPAN_KIND_VOTE:
      return "vote";
    case v1::TRACE_SPAN_KIND_APPLY:
      return "apply";
    case v1::TRACE_SPAN_KIND_SHARE_AMAXES:
      return "share amaxes";
    case v1::TRACE_SPAN_KIND_ENCODE:
      return "encode";
    case v1::TRACE_SPAN_KIND_ANSWER:
      return "answer";
    case v1::TRACE_SPAN_KIND_HOLD:
      return "hold";
    default:
      return "unknown";
  }
}

const char* GroupOf(v1::TraceSpanKind kind) {
  if (kind == v1::TRACE_SPAN_KIND_COMMAND) return "commands";
  if (kind == v1::TRACE_SPAN_KIND_WAIT || kind == v1::TRACE_SPAN_KIND_HOLD) return "waits";
  return kind == v1::TRACE_SPAN_KIND_GATHER ? "gathers" : "steps";
}

class Writer {
 public:
  explicit Writer(const std::vector<DaemonTrace>& daemons) : daemons_(daemons) {}

  Json Document() {
    for (const DaemonTrace& daemon : daemons_) FindStart(daemon);
    for (const DaemonTrace& daemon : daemons_) AddDaemon(daemon);
    return {{"traceEvents", std::move(events_)}, {"displayTimeUnit", "ms"}, {"metadata", {{"daemons", metadata_}}}};
  }

 private:
  struct Thread {
    int number = 0;
    int64_t busy_until_ns = 0;
  };

  void FindStart(const DaemonTrace& daemon) {
    for (const v1::ModelTrace& model : daemon.response.models()) {
      for (const v1::TraceSpan& span : model.spans())
        start_ns_ = std::min(start_ns_, span.begin_ns() + daemon.offset_ns);
    }
  }

  void AddDaemon(const DaemonTrace& daemon) {
    const int node = daemon.response.node();
    Json models = Json::array();
    AddName("process_name", node, 0, absl::StrCat("node ", node, daemon.address.empty() ? "" : " at ", daemon.address));
    for (const v1::ModelTrace& model : daemon.response.models()) {
      models.push_back({{"model", model.model()}, {"epoch", model.epoch()}, {"truncated", model.truncated()}});
      for (const v1::TraceSpan& span : model.spans()) AddSpan(daemon, model, span);
    }
    metadata_.push_back(
        {{"node", node},
         {"address", daemon.address},
         {"clock_uncertainty_us", static_cast<double>(daemon.uncertainty_ns) / kNanosecondsOfMicrosecond},
         {"models", std::move(models)}});
  }

  void AddSpan(const DaemonTrace& daemon, const v1::ModelTrace& model, const v1::TraceSpan& span) {
    const int64_t end_ns = std::max(span.begin_ns(), span.has_end_ns() ? span.end_ns() : daemon.response.now_ns());
    Json args = {{"rank", span.rank()}, {"command", span.command()}, {"commit", span.commit_number()}};
    if (span.bytes() > 0) args["bytes"] = span.bytes();
    if (span.has_waits_for()) args["waits_for"] = absl::StrCat("rank ", span.waits_for());
    if (!span.readers().empty()) args["readers"] = absl::StrJoin(span.readers(), ", ");
    if (!span.has_end_ns()) args["unfinished"] = true;
    events_.push_back({{"name", Title(model, span)},
                       {"cat", NameOf(span.kind())},
                       {"ph", "X"},
                       {"ts", Microseconds(span.begin_ns() + daemon.offset_ns - start_ns_)},
                       {"dur", Microseconds(end_ns - span.begin_ns())},
                       {"pid", daemon.response.node()},
                       {"tid", ThreadOf(daemon.response.node(), model.model(), span, end_ns)},
                       {"args", std::move(args)}});
  }

  static double Microseconds(int64_t ns) { return static_cast<double>(ns) / kNanosecondsOfMicrosecond; }

  static std::string Title(const v1::ModelTrace& model, const v1::TraceSpan& span) {
    std::string title = NameOf(span.kind());
    if (!span.has_unit()) return title;
    const bool is_named = span.unit() >= 0 && span.unit() < model.units_size();
    return absl::StrCat(title, " ", is_named ? model.units(span.unit()) : absl::StrCat("unit ", span.unit()));
  }

  // Returns a free thread of the group.
  int ThreadOf(int node, const std::string& model, const v1::TraceSpan& span, int64_t end_ns) {
    std::vector<Thread>& threads = threads_[{node, model, span.rank(), GroupOf(span.kind())}];
    for (Thread& thread : threads) {
      if (thread.busy_until_ns > span.begin_ns()) continue;
      thread.busy_until_ns = end_ns;
      return thread.number;
    }
    const int number = ++last_thread_;
    threads.push_back({.number = number, .busy_until_ns = end_ns});
    AddName("thread_name", node, number, absl::StrCat("rank ", span.rank(), " of ", model, ": ", GroupOf(span.kind())));
    return number;
  }

  void AddName(const char* what, int node, int thread, const std::string& name) {
    events_.push_back({{"name", what}, {"ph", "M"}, {"pid", node}, {"tid", thread}, {"args", {{"name", name}}}});
  }

  const std::vector<DaemonTrace>& daemons_;
  Json events_ = Json::array();
  Json metadata_ = Json::array();
  int64_t start_ns_ = std::numeric_limits<int64_t>::max();
  // By node, model, rank and group.
  std::map<std::tuple<int, std::string, int, std::string>, std::vector<Thread>> threads_;
  int last_thread_ = 0;
};

}  // namespace

Json TraceDocument(const std::vector<DaemonTrace>& daemons) { return Writer(daemons).Document(); }

}  // namespace paramshard::ctl
