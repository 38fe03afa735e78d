#include "server/training/event_notes.h"

#include "server/observe/trace.h"

namespace paramshard::server {

void Note(EventRing& ring, Event event) {
  event.time_ns = TraceNow();
  ring.Write(event);
}

Event EventOf(EventKind kind, EventEdge edge, const v1::Command& command) {
  Event event{.kind = kind, .edge = edge, .command = command.number()};
  if (command.has_gather()) event.unit = command.gather().unit();
  if (command.has_push()) event.unit = command.push().unit();
  if (command.has_commit()) event.commit_number = command.commit().commit_number();
  return event;
}

void NoteHolder(EventRing& ring, const Sequence::Holder& holder, Sequence::Holder& noted) {
  if (holder == noted) return;
  noted = holder;
  if (holder.rank < 0) return;
  Note(ring, {.kind = EventKind::kWait, .edge = EventEdge::kBegin, .peer = holder.rank, .command = holder.command});
}

}  // namespace paramshard::server
