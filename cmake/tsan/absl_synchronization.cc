// Tells ThreadSanitizer about absl::Mutex, CondVar and Notification.
//
// The system's Abseil is compiled without ThreadSanitizer: whatever its locks guard would look like a race. The
// functions below stand before the library's own, for gRPC's calls too; each says what it orders and calls the one that
// it hides. Plain acquire and release instead of ThreadSanitizer's mutex events: those count as accesses to the mutex,
// and gRPC orders the ends of its mutexes by means that cannot be seen.

#include <dlfcn.h>
#include <sanitizer/tsan_interface.h>

#include <cstdio>
#include <cstdlib>

#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"

extern "C" {
void AnnotateIgnoreReadsBegin(const char* file, int line);
void AnnotateIgnoreReadsEnd(const char* file, int line);
}

namespace {

// Inside the library, threads evaluate each other's conditions, after they have said that they give the mutex up.
class ConditionScope {
 public:
  ConditionScope() { AnnotateIgnoreReadsBegin(__FILE__, __LINE__); }
  ~ConditionScope() { AnnotateIgnoreReadsEnd(__FILE__, __LINE__); }
};

// The library's function, a member's `this` being the first parameter.
template <typename Function>
Function* Hidden(const char* symbol) {
  void* const function = dlsym(RTLD_NEXT, symbol);
  if (function == nullptr) {
    std::fprintf(stderr, "ThreadSanitizer and Abseil: no %s in the library\n", symbol);
    std::abort();
  }
  return reinterpret_cast<Function*>(function);
}

// Takes the mutex: ends with an acquire.
template <typename Function, typename... Arguments>
auto Lock(absl::Mutex* mutex, Function* hidden, Arguments... arguments) {
  ConditionScope scope;
  struct AtEnd {
    ~AtEnd() { __tsan_acquire(mutex); }
    absl::Mutex* mutex;
  } at_end{mutex};
  return hidden(arguments...);
}

// Gives the mutex up, and takes it again.
template <typename Function, typename... Arguments>
auto Wait(absl::Mutex* mutex, Function* hidden, Arguments... arguments) {
  __tsan_release(mutex);
  return Lock(mutex, hidden, arguments...);
}

void Unlock(absl::Mutex* mutex, void (*hidden)(absl::Mutex*)) {
  __tsan_release(mutex);
  ConditionScope scope;
  hidden(mutex);
}

}  // namespace

#define HIDDEN(symbol, ...) static auto* const hidden = Hidden<__VA_ARGS__>(symbol)

namespace absl {
ABSL_NAMESPACE_BEGIN

void Mutex::Lock() {
  HIDDEN("_ZN4absl7debian35Mutex4LockEv", void(Mutex*));
  ::Lock(this, hidden, this);
}

bool Mutex::TryLock() {
  HIDDEN("_ZN4absl7debian35Mutex7TryLockEv", bool(Mutex*));
  return ::Lock(this, hidden, this);
}

void Mutex::Unlock() {
  HIDDEN("_ZN4absl7debian35Mutex6UnlockEv", void(Mutex*));
  ::Unlock(this, hidden);
}

void Mutex::ReaderLock() {
  HIDDEN("_ZN4absl7debian35Mutex10ReaderLockEv", void(Mutex*));
  ::Lock(this, hidden, this);
}

bool Mutex::ReaderTryLock() {
  HIDDEN("_ZN4absl7debian35Mutex13ReaderTryLockEv", bool(Mutex*));
  return ::Lock(this, hidden, this);
}

void Mutex::ReaderUnlock() {
  HIDDEN("_ZN4absl7debian35Mutex12ReaderUnlockEv", void(Mutex*));
  ::Unlock(this, hidden);
}

// Functions with a timeout call those with a deadline.

void Mutex::LockWhen(const Condition& condition) {
  HIDDEN("_ZN4absl7debian35Mutex8LockWhenERKNS0_9ConditionE", void(Mutex*, const Condition*));
  ::Lock(this, hidden, this, &condition);
}

bool Mutex::LockWhenWithDeadline(const Condition& condition, Time deadline) {
  HIDDEN("_ZN4absl7debian35Mutex20LockWhenWithDeadlineERKNS0_9ConditionENS0_4TimeE",
         bool(Mutex*, const Condition*, Time));
  return ::Lock(this, hidden, this, &condition, deadline);
}

void Mutex::Await(const Condition& condition) {
  HIDDEN("_ZN4absl7debian35Mutex5AwaitERKNS0_9ConditionE", void(Mutex*, const Condition*));
  ::Wait(this, hidden, this, &condition);
}

bool Mutex::AwaitWithDeadline(const Condition& condition, Time deadline) {
  HIDDEN("_ZN4absl7debian35Mutex17AwaitWithDeadlineERKNS0_9ConditionENS0_4TimeE", bool(Mutex*, const Condition*, Time));
  return ::Wait(this, hidden, this, &condition, deadline);
}

void CondVar::Wait(Mutex* mutex) {
  HIDDEN("_ZN4absl7debian37CondVar4WaitEPNS0_5MutexE", void(CondVar*, Mutex*));
  ::Wait(mutex, hidden, this, mutex);
}

bool CondVar::WaitWithDeadline(Mutex* mutex, Time deadline) {
  HIDDEN("_ZN4absl7debian37CondVar16WaitWithDeadlineEPNS0_5MutexENS0_4TimeE", bool(CondVar*, Mutex*, Time));
  return ::Wait(mutex, hidden, this, mutex, deadline);
}

void Notification::Notify() {
  HIDDEN("_ZN4absl7debian312Notification6NotifyEv", void(Notification*));
  __tsan_release(this);
  hidden(this);
}

void Notification::WaitForNotification() const {
  HIDDEN("_ZNK4absl7debian312Notification19WaitForNotificationEv", void(const Notification*));
  hidden(this);
  __tsan_acquire(const_cast<Notification*>(this));
}

bool Notification::WaitForNotificationWithTimeout(Duration timeout) const {
  HIDDEN("_ZNK4absl7debian312Notification30WaitForNotificationWithTimeoutENS0_8DurationE",
         bool(const Notification*, Duration));
  const bool notified = hidden(this, timeout);
  if (notified) __tsan_acquire(const_cast<Notification*>(this));
  return notified;
}

bool Notification::WaitForNotificationWithDeadline(Time deadline) const {
  HIDDEN("_ZNK4absl7debian312Notification31WaitForNotificationWithDeadlineENS0_4TimeE",
         bool(const Notification*, Time));
  const bool notified = hidden(this, deadline);
  if (notified) __tsan_acquire(const_cast<Notification*>(this));
  return notified;
}

ABSL_NAMESPACE_END
}  // namespace absl
