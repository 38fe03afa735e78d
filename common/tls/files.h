// The files of a process's own certificate, and of the authorities that it trusts.
#ifndef PARAMSHARD_COMMON_TLS_FILES_H_
#define PARAMSHARD_COMMON_TLS_FILES_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace paramshard::tls {

// Paths of PEM files. All three are given, or none.
struct Files {
  std::string cert;  // the leaf first, then the intermediate certificates
  std::string key;   // not encrypted
  std::string ca;    // one or more authorities whose certificates are accepted

  bool any() const { return !cert.empty() || !key.empty() || !ca.empty(); }
  bool all() const { return !cert.empty() && !key.empty() && !ca.empty(); }
};

// The fields of a certificate that are used.
struct Certificate {
  std::vector<std::string> uris;  // among its alternative names
  absl::Time not_before;
  absl::Time not_after;
  std::string fingerprint;  // SHA-256 of the certificate
};

// Reads the files as they are now, and returns the leaf. FAILED_PRECONDITION names the file that breaks a rule: all
// three are given and readable; the key belongs to the certificate, and others cannot read it; the certificate is valid
// at `now` and signed by an authority.
absl::StatusOr<Certificate> CheckFiles(const Files& files, absl::Time now);

// Reads the first certificate of a text. INVALID_ARGUMENT if there is none.
absl::StatusOr<Certificate> ParseCertificate(absl::string_view pem);

// Reads the first certificate of the file as it is now, without checking signature or validity. FAILED_PRECONDITION as
// above.
absl::StatusOr<Certificate> ReadCertificate(const std::string& path);

}  // namespace paramshard::tls

#endif  // PARAMSHARD_COMMON_TLS_FILES_H_
