// RETURN_IF_ERROR(expression): returns the expression's absl::Status from the function, unless it is OK.
// ASSIGN_OR_RETURN(target, expression): assigns the value of an absl::StatusOr, or returns its status.
//
//   absl::StatusOr<int64_t> CountRows(const std::string& path) {
//     ASSIGN_OR_RETURN(const File file, File::Open(path));
//     RETURN_IF_ERROR(file.Check());
//     return file.rows();
//   }
//
// The function returns absl::Status or absl::StatusOr<T>. Expressions may hold commas. ASSIGN_OR_RETURN makes more than
// one statement: it does not stand alone under an `if`.

#ifndef PARAMSHARD_KERNELS_BASE_STATUS_MACROS_H_
#define PARAMSHARD_KERNELS_BASE_STATUS_MACROS_H_

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#define RETURN_IF_ERROR(...)                               \
  do {                                                     \
    absl::Status paramshard_status = (__VA_ARGS__);        \
    if (!paramshard_status.ok()) return paramshard_status; \
  } while (false)

#define ASSIGN_OR_RETURN(target, ...) \
  PARAMSHARD_ASSIGN_OR_RETURN(PARAMSHARD_CONCAT(paramshard_statusor_, __LINE__), target, (__VA_ARGS__))

#define PARAMSHARD_ASSIGN_OR_RETURN(statusor, target, expression) \
  auto statusor = expression;                                     \
  if (!statusor.ok()) return std::move(statusor).status();        \
  target = *std::move(statusor)

// One more step, so that __LINE__ is expanded before it is pasted.
#define PARAMSHARD_CONCAT(a, b) PARAMSHARD_CONCAT_EXPANDED(a, b)
#define PARAMSHARD_CONCAT_EXPANDED(a, b) a##b

#endif  // PARAMSHARD_KERNELS_BASE_STATUS_MACROS_H_
