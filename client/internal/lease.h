// One snapshot's share of a reader session's lease.
#ifndef PARAMSHARD_CLIENT_INTERNAL_LEASE_H_
#define PARAMSHARD_CLIENT_INTERNAL_LEASE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "client/internal/interruption.h"
#include "client/internal/reader_session.h"
#include "client/reader.h"

namespace paramshard::internal {

// Keeps the session, and so its mappings. Used by one thread at a time.
class Lease {
 public:
  // Takes over one ReaderSession::Take of the generation.
  Lease(std::shared_ptr<ReaderSession> session, uint64_t generation, ModelVersion version, std::string data,
        Interruption interruption)
      : session_(std::move(session)),
        generation_(generation),
        version_(std::move(version)),
        data_(std::move(data)),
        interruption_(std::move(interruption)) {}
  ~Lease() { Release(); }
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;

  const std::shared_ptr<ReaderSession>& session() const { return session_; }
  const ModelVersion& version() const { return version_; }
  const std::string& data() const { return data_; }
  uint64_t generation() const { return generation_; }
  // See Snapshot::Check. Reads of planes before it are ordered before its look at the gate.
  absl::Status Check() const;
  // The reader's.
  const Interruption& interruption() const { return interruption_; }
  void Release();

 private:
  std::string WhyEnded(const wire::Gate& gate) const;

  const std::shared_ptr<ReaderSession> session_;
  const uint64_t generation_;
  const ModelVersion version_;
  const std::string data_;
  const Interruption interruption_;
  bool released_ = false;
};

}  // namespace paramshard::internal

#endif  // PARAMSHARD_CLIENT_INTERNAL_LEASE_H_
