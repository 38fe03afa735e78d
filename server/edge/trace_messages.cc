#include "server/edge/trace_messages.h"

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "server/observe/trace.h"

namespace paramshard::server {
namespace {

constexpr int32_t kDefaultSteps = 3;
constexpr int32_t kMaxSteps = 100;
// Limits of an answer: together less than the 4 MiB that gRPC's clients accept.
constexpr size_t kMostSpans = 20'000;
constexpr size_t kMostBytesOfNames = size_t{1} << 20;

// Kinds have the same order.
v1::TraceSpanKind ToProto(EventKind kind) { return static_cast<v1::TraceSpanKind>(static_cast<int>(kind) + 1); }
static_assert(static_cast<int>(EventKind::kHold) + 1 == v1::TRACE_SPAN_KIND_HOLD);
static_assert(static_cast<int>(EventKind::kVote) + 1 == v1::TRACE_SPAN_KIND_VOTE);

// Leaves out names of readers for which `room` has no bytes left.
v1::TraceSpan ToProto(const Span& span, size_t& room) {
  v1::TraceSpan proto;
  proto.set_kind(ToProto(span.kind));
  proto.set_rank(span.rank);
  proto.set_begin_ns(span.begin_ns);
  if (span.end_ns.has_value()) proto.set_end_ns(*span.end_ns);
  proto.set_command(span.command);
  proto.set_commit_number(span.commit_number);
  if (span.unit >= 0) proto.set_unit(span.unit);
  proto.set_bytes(span.bytes);
  if (span.waits_for.has_value()) proto.set_waits_for(*span.waits_for);
  for (const std::string& reader : span.readers) {
    if (reader.size() > room) break;
    room -= reader.size();
    proto.add_readers(reader);
  }
  return proto;
}

// Adds the names of units, if `room` has enough bytes left for them.
void AddUnits(const Model& model, size_t& room, v1::ModelTrace& trace) {
  size_t bytes = 0;
  for (const auto& unit : model.spec().units) bytes += unit.name.size();
  if (bytes > room) return;
  room -= bytes;
  for (const auto& unit : model.spec().units) trace.add_units(unit.name);
}

absl::StatusOr<std::vector<std::shared_ptr<Model>>> FindModels(const ModelStore& store, const std::string& name) {
  if (name.empty()) return store.List();
  ASSIGN_OR_RETURN(std::shared_ptr<Model> model, store.Find(name));
  return std::vector<std::shared_ptr<Model>>{std::move(model)};
}

}  // namespace

absl::StatusOr<v1::GetTraceResponse> GetTrace(const ModelStore& store, const v1::GetTraceRequest& request) {
  if (request.steps() < 0 || request.steps() > kMaxSteps) {
    return absl::InvalidArgumentError(
        absl::StrCat("get trace: want steps in [0, ", kMaxSteps, "], got ", request.steps()));
  }
  v1::GetTraceResponse response;
  response.set_node(store.world().cluster->node());
  response.set_now_ns(TraceNow());
  if (request.only_clock()) return response;
  ASSIGN_OR_RETURN(const auto models, FindModels(store, request.model()));
  size_t spans = kMostSpans;
  size_t names = kMostBytesOfNames;
  for (const auto& model : models) {
    const std::shared_ptr<const Recorder> recorder = model->trainers().recorder();
    if (recorder == nullptr) continue;
    const Trace trace = MakeTrace(*recorder, request.steps() == 0 ? kDefaultSteps : request.steps(), spans,
                                  model->publication().waits());
    spans -= trace.spans.size();
    v1::ModelTrace& proto = *response.add_models();
    proto.set_model(model->spec().name);
    proto.set_epoch(trace.epoch);
    proto.set_truncated(trace.truncated);
    AddUnits(*model, names, proto);
    for (const Span& span : trace.spans) *proto.add_spans() = ToProto(span, names);
  }
  // The time is later than the last event.
  response.set_now_ns(TraceNow());
  return response;
}

}  // namespace paramshard::server
