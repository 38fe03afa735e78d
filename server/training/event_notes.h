// Notes of an epoch's threads in its recorder.
#ifndef PARAMSHARD_SERVER_TRAINING_EVENT_NOTES_H_
#define PARAMSHARD_SERVER_TRAINING_EVENT_NOTES_H_

#include "paramshard/v1/trainer.pb.h"
#include "server/observe/recorder.h"
#include "server/training/sequence.h"

namespace paramshard::server {

// Writes the event with the present time. A ring is written by the thread that Recorder::Rings names.
void Note(EventRing& ring, Event event);

// Returns the event of a command with its numbers as they were sent: its unit may not exist.
Event EventOf(EventKind kind, EventEdge edge, const v1::Command& command);

// Writes the trainer that is waited for, unless it is `noted`, which was written last.
void NoteHolder(EventRing& ring, const Sequence::Holder& holder, Sequence::Holder& noted);

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_TRAINING_EVENT_NOTES_H_
