// An authority for tests, and the certificates that it gives out.
#ifndef PARAMSHARD_TESTS_SUPPORT_TEST_AUTHORITY_H_
#define PARAMSHARD_TESTS_SUPPORT_TEST_AUTHORITY_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/tls/files.h"
#include "tests/support/temporary_directory.h"

namespace paramshard::test {

// Name of the tests' world.
inline constexpr char kWorldUri[] = "spiffe://example.test/paramshard/w1";

class TestAuthority {
 public:
  // PEM.
  struct Issued {
    std::string cert;
    std::string key;
  };
  struct Validity {
    absl::Time from = absl::Now() - absl::Hours(1);
    absl::Time to = absl::Now() + absl::Hours(1);
  };

  TestAuthority();
  ~TestAuthority();

  const std::string& cert() const;
  // For servers and clients, with these URIs and 127.0.0.1 among its alternative names.
  Issued Issue(const std::vector<std::string>& uris) const { return Issue(uris, Validity()); }
  Issued Issue(const std::vector<std::string>& uris, const Validity& validity) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Writes the files of `issued` to the folder, with `ca` as the trusted authority. Replaces each existing file
// atomically.
tls::Files Install(const std::string& folder, const TestAuthority::Issued& issued, const std::string& ca);

// Certificates of one world, as flags.
class Certificates {
 public:
  // Returns the flags with a certificate of that role: node/0, reader, ...
  std::vector<std::string> Flags(const std::string& role) const;
  tls::Files Files(const std::string& role) const;

 private:
  const TestAuthority authority_;
  const TemporaryDirectory folder_;
};

}  // namespace paramshard::test

#endif  // PARAMSHARD_TESTS_SUPPORT_TEST_AUTHORITY_H_
