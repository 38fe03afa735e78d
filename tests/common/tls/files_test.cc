#include "common/tls/files.h"

#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/test_authority.h"

namespace paramshard::tls {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class FilesTest : public testing::Test {
 protected:
  FilesTest() : files_(test::Install(folder_.path(), authority_.Issue({kUri}), authority_.cert())) {}

  static void Write(const std::string& path, const std::string& text) { std::ofstream(path) << text; }
  void ExpectRefused(absl::string_view name, absl::string_view what) const {
    EXPECT_THAT(CheckFiles(files_, absl::Now()).status(),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         testing::AllOf(testing::StartsWith(absl::StrCat(name, " ")), HasSubstr(std::string(what)))));
  }

  static constexpr char kUri[] = "spiffe://example.test/paramshard/w1/node/0";
  const test::TestAuthority authority_;
  const test::TemporaryDirectory folder_;
  Files files_;
};

TEST_F(FilesTest, DescribesTheLeaf) {
  ASSERT_OK_AND_ASSIGN(const Certificate leaf, CheckFiles(files_, absl::Now()));
  EXPECT_THAT(leaf.uris, ElementsAre(kUri));
  EXPECT_LT(leaf.not_before, absl::Now());
  EXPECT_GT(leaf.not_after, absl::Now());
}

TEST_F(FilesTest, AllThreeAreNeeded) {
  for (std::string Files::*file : {&Files::cert, &Files::key, &Files::ca}) {
    Files some = files_;
    (some.*file).clear();
    EXPECT_THAT(CheckFiles(some, absl::Now()).status(),
                StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("a PEM file is required")));
  }
}

TEST_F(FilesTest, AFileThatIsNotThereIsNamed) {
  const Files files = files_;
  files_.cert = "/nowhere/cert.pem";
  ExpectRefused("TLS certificate", "/nowhere/cert.pem");
  files_ = files;
  files_.key = folder_.path();
  ExpectRefused("TLS key", "want a regular file");
}

TEST_F(FilesTest, AKeyThatOthersCanReadIsRefused) {
  for (const mode_t mode : {0604, 0640, 0602, 0620}) {
    chmod(files_.key.c_str(), mode);
    ExpectRefused("TLS key", "its owner alone");
  }
  chmod(files_.key.c_str(), 0400);
  EXPECT_OK(CheckFiles(files_, absl::Now()));
}

TEST_F(FilesTest, AKeyOfAnotherUserIsRefused) {
  if (geteuid() != 0) GTEST_SKIP() << "root alone gives files away";
  ASSERT_EQ(chown(files_.key.c_str(), 65534, -1), 0);
  ExpectRefused("TLS key", "got one of user 65534");
}

TEST_F(FilesTest, WhatIsNoPemIsNamed) {
  const Files files = files_;
  const std::string other = folder_.path() + "/other";
  Write(other, "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n");
  chmod(other.c_str(), 0600);
  files_.cert = other;
  ExpectRefused("TLS certificate", "want a certificate in PEM");
  files_ = files;
  files_.key = other;
  ExpectRefused("TLS key", "want a private key in PEM, not encrypted");
  files_ = files;
  files_.ca = other;
  ExpectRefused("TLS authorities", "want certificates of authorities in PEM");
}

TEST_F(FilesTest, AnotherCertificatesKeyIsRefused) {
  Write(files_.key, authority_.Issue({kUri}).key);
  ExpectRefused("TLS key", absl::StrCat("want the key of ", files_.cert));
}

TEST_F(FilesTest, ACertificateThatIsNotValidNowIsRefused) {
  EXPECT_THAT(CheckFiles(files_, absl::Now() + absl::Hours(2)).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("a certificate that is valid at")));
  EXPECT_FALSE(CheckFiles(files_, absl::Now() - absl::Hours(2)).ok());
}

TEST_F(FilesTest, ACertificateIsReadWhateverItIsWorth) {
  const absl::Time end = absl::FromUnixSeconds(1'700'000'000);
  const auto expired = authority_.Issue({kUri}, {.from = end - absl::Hours(1), .to = end});
  ASSERT_OK_AND_ASSIGN(const Certificate leaf,
                       ReadCertificate(test::Install(folder_.path(), expired, "no authority").cert));
  EXPECT_THAT(leaf.uris, ElementsAre(kUri));
  EXPECT_EQ(leaf.not_after, end);

  Write(files_.cert, "no certificate");
  EXPECT_THAT(ReadCertificate(files_.cert), StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr(files_.cert)));
  EXPECT_THAT(ReadCertificate(folder_.path() + "/none"),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("/none")));
}

TEST_F(FilesTest, AnotherAuthoritysCertificateIsRefused) {
  Write(files_.ca, test::TestAuthority().cert());
  ExpectRefused("TLS certificate", absl::StrCat("not signed by an authority in ", files_.ca));
  Write(files_.ca, test::TestAuthority().cert() + authority_.cert());
  EXPECT_OK(CheckFiles(files_, absl::Now())) << "one of two";
}

TEST_F(FilesTest, ALargeFileIsRefused) {
  Write(files_.ca, std::string(5 << 20, '\n'));
  ExpectRefused("TLS authorities", "want at most 4194304 bytes");
}

}  // namespace
}  // namespace paramshard::tls
