// Tells ThreadSanitizer that what completes a gRPC operation comes after what began it.
//
// The system's gRPC is compiled without ThreadSanitizer, and passes operations from thread to thread by atomics of its
// own. All operations, those of callbacks too, begin with a tag in one of the functions below and come back with it out
// of a completion queue: what happened before the one happened before the other. Nothing else is ordered here; that
// callbacks of one call do not meet each other in our own data is for ThreadSanitizer to look at.

#include <dlfcn.h>
#include <grpc/grpc.h>
#include <grpcpp/support/server_callback.h>
#include <sanitizer/tsan_interface.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>

namespace {

// The library's function of the type that grpc.h declares.
template <typename Function>
Function* Hidden(Function*, const char* symbol) {
  void* const function = dlsym(RTLD_NEXT, symbol);
  if (function == nullptr) {
    std::fprintf(stderr, "ThreadSanitizer and gRPC: no %s in the library\n", symbol);
    std::abort();
  }
  return reinterpret_cast<Function*>(function);
}

// ServerCallbackCall's count of what has not ended yet, which is private: explicit instantiations may name it.
std::atomic_int* CountOf(grpc::internal::ServerCallbackCall* call);

template <std::atomic_int grpc::internal::ServerCallbackCall::*count>
struct PrivateCount {
  friend std::atomic_int* CountOf(grpc::internal::ServerCallbackCall* call) { return &(call->*count); }
};

template struct PrivateCount<&grpc::internal::ServerCallbackCall::callbacks_outstanding_>;

grpc_event Completed(grpc_event event) {
  if (event.type == GRPC_OP_COMPLETE) __tsan_acquire(event.tag);
  return event;
}

}  // namespace

#define HIDDEN(function) static auto* const hidden = Hidden(&function, #function)

extern "C" {

grpc_call_error grpc_call_start_batch(grpc_call* call, const grpc_op* operations, size_t count, void* tag,
                                      void* reserved) {
  HIDDEN(grpc_call_start_batch);
  __tsan_release(tag);
  return hidden(call, operations, count, tag, reserved);
}

grpc_call_error grpc_server_request_call(grpc_server* server, grpc_call** call, grpc_call_details* details,
                                         grpc_metadata_array* metadata, grpc_completion_queue* bound,
                                         grpc_completion_queue* notified, void* tag) {
  HIDDEN(grpc_server_request_call);
  __tsan_release(tag);
  return hidden(server, call, details, metadata, bound, notified, tag);
}

grpc_event grpc_completion_queue_next(grpc_completion_queue* queue, gpr_timespec deadline, void* reserved) {
  HIDDEN(grpc_completion_queue_next);
  return Completed(hidden(queue, deadline, reserved));
}

grpc_event grpc_completion_queue_pluck(grpc_completion_queue* queue, void* tag, gpr_timespec deadline, void* reserved) {
  HIDDEN(grpc_completion_queue_pluck);
  return Completed(hidden(queue, tag, deadline, reserved));
}

}  // extern "C"

namespace grpc::internal {

// Where a call is cancelled, the library counts down what our callbacks count down, too; who comes last calls this, and
// it comes after them all.
void ServerCallbackCall::ScheduleOnDone(bool inline_ondone) {
  static auto* const hidden = Hidden(static_cast<void (*)(ServerCallbackCall*, bool)>(nullptr),
                                     "_ZN4grpc8internal18ServerCallbackCall14ScheduleOnDoneEb");
  __tsan_acquire(CountOf(this));
  hidden(this, inline_ondone);
}

}  // namespace grpc::internal
