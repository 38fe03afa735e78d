// The files of a process's own certificate, and of those whom it trusts.
#ifndef PARAMSHARD_PROTO_TLS_FILES_H_
#define PARAMSHARD_PROTO_TLS_FILES_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace paramshard::tls {

// Paths of PEM files. All three are given, or none.
struct Files {
  std::string cert;  // the leaf first, then what is between it and the authority
  std::string key;   // not encrypted
  std::string ca;    // one or more: of whom certificates are taken

  bool any() const { return !cert.empty() || !key.empty() || !ca.empty(); }
  bool all() const { return !cert.empty() && !key.empty() && !ca.empty(); }
};

// What is read of a certificate.
struct Certificate {
  std::vector<std::string> uris;  // among its alternative names
  absl::Time not_before;
  absl::Time not_after;
  std::string fingerprint;  // SHA-256 of it
};

// Reads the files as they are now, and returns the leaf. FAILED_PRECONDITION names the file and what is
// expected: all three given and readable; a key that others cannot read and that is the certificate's; a certificate
// that is valid at `now` and that the authorities have signed.
absl::StatusOr<Certificate> CheckFiles(const Files& files, absl::Time now);

// Reads the first certificate of a text. INVALID_ARGUMENT: there is none.
absl::StatusOr<Certificate> ParseCertificate(absl::string_view pem);

// Reads the first certificate of the file as it is now, whoever has signed it and whenever it ends. FAILED_PRECONDITION
// as above.
absl::StatusOr<Certificate> ReadCertificate(const std::string& path);

}  // namespace paramshard::tls

#endif  // PARAMSHARD_PROTO_TLS_FILES_H_
