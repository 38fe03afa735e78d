#include "server/observe/trace.h"

#include <algorithm>
#include <limits>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"

namespace paramshard::server {
namespace {

using Key = std::pair<EventKind, int64_t>;  // with the command's number

// Arrivals of one commit from the daemon's ranks.
struct Arrivals {
  std::vector<bool> sent;
  int64_t last_ns = 0;
  int last = 0;
  int count = 0;

  int Missing() const { return static_cast<int>(std::find(sent.begin(), sent.end(), false) - sent.begin()); }
};

bool IsOfDaemon(EventKind kind) {
  return kind == EventKind::kVote || kind == EventKind::kShareAmaxes || kind == EventKind::kAnswer;
}

class Assembly {
 public:
  explicit Assembly(const Recorder& recorder) : recorder_(recorder), ranks_(recorder.ranks()) {
    for (int rank = 0; rank < recorder.ranks(); ++rank) {
      ranks_[rank].commands = recorder.of(rank).commands.Read();
      ranks_[rank].oldest_command = OldestOf(recorder.of(rank).commands, ranks_[rank].commands);
      AddArrivals(rank);
    }
  }

  std::vector<Span> Spans(absl::Span<const ReaderWait> waits = {}) {
    for (int rank = 0; rank < recorder_.ranks(); ++rank) {
      AddCommands(rank);
      AddThread(rank, recorder_.of(rank).gathers);
      AddThread(rank, recorder_.of(rank).pushes);
    }
    AddHolds(waits);
    std::stable_sort(spans_.begin(), spans_.end(),
                     [](const Span& a, const Span& b) { return a.begin_ns < b.begin_ns; });
    return std::move(spans_);
  }

  // Returns the step of the last command; a step begins with its first one.
  int64_t last_step() const {
    int64_t last = 1;
    for (const Rank& rank : ranks_) {
      if (!rank.commands.empty()) last = std::max(last, StepOf(rank, rank.commands.back().command));
    }
    return last;
  }
  // Returns true if some of the step, or of a later one, may be gone from a ring.
  bool IsTruncated(int64_t step) const {
    return std::any_of(ranks_.begin(), ranks_.end(), [&](const Rank& rank) {
      return rank.oldest_command > 0 && rank.oldest_command > FirstCommandOf(rank, step);
    });
  }

 private:
  // Every rank counts its own commands.
  struct Rank {
    std::vector<Event> commands;
    std::map<int64_t, int64_t> steps;  // commit numbers by command
    int64_t oldest_command = 0;        // commands before it may be gone from some ring
  };

  // Returns the first command of which everything is in the ring.
  static int64_t OldestOf(const EventRing& ring, const std::vector<Event>& events) {
    return ring.written() <= EventRing::kSlots || events.empty() ? 0 : events.front().command + 1;
  }
  // Returns the commit that a command is of: the next one from it on, or the one after the last.
  static int64_t StepOf(const Rank& rank, int64_t command) {
    const auto next = rank.steps.lower_bound(command);
    if (next != rank.steps.end()) return next->second;
    return rank.steps.empty() ? 1 : rank.steps.rbegin()->second + 1;
  }
  // Returns the first command of the step, as far as that is known; 0 otherwise.
  static int64_t FirstCommandOf(const Rank& rank, int64_t step) {
    for (const auto& [command, commit] : rank.steps) {
      if (commit == step - 1) return command + 1;
    }
    return 0;
  }

  void AddArrivals(int rank) {
    for (const Event& event : ranks_[rank].commands) {
      if (event.commit_number == 0) continue;
      ranks_[rank].steps[event.command] = event.commit_number;
      Arrivals& arrivals = arrivals_[event.commit_number];
      arrivals.sent.resize(recorder_.ranks());
      arrivals.sent[rank] = true;
      ++arrivals.count;
      if (event.time_ns >= arrivals.last_ns) {
        arrivals.last_ns = event.time_ns;
        arrivals.last = rank;
      }
    }
  }

  // A commit waits until all ranks have sent it.
  void AddCommands(int rank) {
    for (const Event& event : ranks_[rank].commands) {
      Span span = NewSpan(rank, event);
      span.end_ns = event.time_ns;
      const auto found = arrivals_.find(event.commit_number);
      if (found != arrivals_.end()) {
        const Arrivals& arrivals = found->second;
        const bool by_all = arrivals.count == recorder_.ranks();
        // Another rank's ring may have forgotten it.
        if (!by_all && arrivals_.upper_bound(event.commit_number) != arrivals_.end()) continue;
        span.end_ns = by_all ? std::optional(arrivals.last_ns) : std::nullopt;
        const int waited = by_all ? arrivals.last : arrivals.Missing();
        if (waited != rank) span.waits_for = recorder_.first_rank() + waited;
      }
      spans_.push_back(span);
    }
  }

  void AddThread(int rank, const EventRing& ring) {
    const std::vector<Event> events = ring.Read();
    ranks_[rank].oldest_command = std::max(ranks_[rank].oldest_command, OldestOf(ring, events));
    std::map<Key, Span> open;
    std::optional<Span> wait;
    for (const Event& event : events) {
      if (wait.has_value()) {
        // The next event ends a wait.
        wait->end_ns = event.time_ns;
        spans_.push_back(*std::exchange(wait, std::nullopt));
      }
      if (event.kind == EventKind::kWait) {
        wait = NewSpan(rank, event);
      } else if (event.edge == EventEdge::kBegin) {
        open.insert_or_assign(Key(event.kind, event.command), NewSpan(rank, event));
      } else {
        Close(rank, event, open);
      }
    }
    if (wait.has_value()) spans_.push_back(*wait);
    for (const auto& [key, span] : open) Add(span);
  }

  void Close(int rank, const Event& event, std::map<Key, Span>& open) {
    Span span = NewSpan(rank, event);
    span.end_ns = event.time_ns;
    if (event.edge == EventEdge::kEnd) {
      const auto found = open.find(Key(event.kind, event.command));
      if (found == open.end()) return;  // its begin has been overwritten
      span = found->second;
      span.end_ns = event.time_ns;
      open.erase(found);
    }
    Add(span);
  }

  void Add(Span span) {
    if (!IsOfDaemon(span.kind)) return spans_.push_back(span);
    for (int rank = 0; rank < recorder_.ranks(); ++rank) {
      span.rank = recorder_.first_rank() + rank;
      spans_.push_back(span);
    }
  }

  // A rank's apply begins with the wait for readers.
  void AddHolds(absl::Span<const ReaderWait> waits) {
    constexpr int64_t kNotYet = std::numeric_limits<int64_t>::max();
    std::vector<Span> holds;
    for (const Span& apply : spans_) {
      if (apply.kind != EventKind::kApply) continue;
      for (const ReaderWait& wait : waits) {
        const int64_t begin_ns = std::max(apply.begin_ns, wait.begin_ns);
        const int64_t end_ns = std::min(apply.end_ns.value_or(kNotYet), wait.end_ns.value_or(kNotYet));
        if (begin_ns >= end_ns) continue;
        Span& hold = holds.emplace_back(apply);
        hold.kind = EventKind::kHold;
        hold.begin_ns = begin_ns;
        hold.end_ns = end_ns == kNotYet ? std::nullopt : std::optional(end_ns);
        hold.readers = wait.readers;
      }
    }
    spans_.insert(spans_.end(), holds.begin(), holds.end());
  }

  Span NewSpan(int rank, const Event& event) const {
    Span span{.kind = event.kind,
              .rank = recorder_.first_rank() + rank,
              .begin_ns = event.time_ns,
              .command = event.command,
              .commit_number = StepOf(ranks_[rank], event.command),
              .unit = event.unit,
              .bytes = event.bytes};
    if (event.peer >= 0) span.waits_for = recorder_.first_rank() + event.peer;
    return span;
  }

  const Recorder& recorder_;
  std::vector<Rank> ranks_;
  std::map<int64_t, Arrivals> arrivals_;  // by commit number
  std::vector<Span> spans_;
};

std::string Ago(int64_t time_ns, int64_t now_ns) {
  return absl::FormatDuration(absl::Trunc(absl::Nanoseconds(now_ns - time_ns), absl::Milliseconds(1)));
}

// Returns the last span of the rank that `is_meant`.
template <typename Predicate>
const Span* LastOf(const std::vector<Span>& spans, int rank, Predicate is_meant) {
  const auto found =
      std::find_if(spans.rbegin(), spans.rend(), [&](const Span& span) { return span.rank == rank && is_meant(span); });
  return found == spans.rend() ? nullptr : &*found;
}

}  // namespace

Trace MakeTrace(const Recorder& recorder, int64_t steps, size_t most, absl::Span<const ReaderWait> waits) {
  Assembly assembly(recorder);
  Trace trace{.epoch = recorder.epoch(), .spans = assembly.Spans(waits)};
  const int64_t first = assembly.last_step() - steps + 1;
  trace.truncated = assembly.IsTruncated(first);
  const auto is_earlier = [&](const Span& span) { return span.commit_number < first; };
  trace.spans.erase(std::remove_if(trace.spans.begin(), trace.spans.end(), is_earlier), trace.spans.end());
  if (trace.spans.size() > most) {
    trace.spans.erase(trace.spans.begin(), trace.spans.end() - static_cast<std::ptrdiff_t>(most));
    trace.truncated = true;
  }
  return trace;
}

std::vector<std::string> LastWords(const Recorder& recorder, int64_t now_ns) {
  const std::vector<Span> spans = Assembly(recorder).Spans();
  std::vector<std::string> texts;
  for (int i = 0; i < recorder.ranks(); ++i) {
    const int rank = recorder.first_rank() + i;
    const auto is_command = [](const Span& span) { return span.kind == EventKind::kCommand; };
    const Span* const command = LastOf(spans, rank, is_command);
    std::string& text = texts.emplace_back(absl::StrCat("rank ", rank, ": "));
    if (command == nullptr) {
      absl::StrAppend(&text, "no command");
      continue;
    }
    absl::StrAppend(&text, "sent command ", command->command, " ", Ago(command->begin_ns, now_ns), " ago");
    const auto is_open = [](const Span& span) { return !span.end_ns.has_value(); };
    if (const Span* const open = LastOf(spans, rank, is_open); open != nullptr) {
      if (!is_command(*open) && open->kind != EventKind::kWait) absl::StrAppend(&text, ", at ", EventName(open->kind));
      if (open->waits_for.has_value()) absl::StrAppend(&text, ", waited for rank ", *open->waits_for);
      absl::StrAppend(&text, " in command ", open->command, " for ", Ago(open->begin_ns, now_ns));
    }
  }
  return texts;
}

const char* EventName(EventKind kind) {
  static constexpr const char* kNames[kEventKinds] = {"command", "wait",  "gather",       "push",   "discard", "sum",
                                                      "vote",    "apply", "share amaxes", "encode", "answer",  "hold"};
  return kNames[static_cast<int>(kind)];
}

}  // namespace paramshard::server
