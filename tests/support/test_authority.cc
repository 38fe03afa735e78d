#include "tests/support/test_authority.h"

#include <openssl/bio.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>
#include <sys/stat.h>

#include <cstdint>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "kernels/base/check.h"

namespace paramshard::test {
namespace {

using Key = std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)>;
using Cert = std::unique_ptr<X509, decltype(&X509_free)>;

Key NewKey() { return {EVP_EC_gen("P-256"), EVP_PKEY_free}; }

template <typename Write>
std::string Pem(Write write) {
  const std::unique_ptr<BIO, decltype(&BIO_free)> bio(BIO_new(BIO_s_mem()), BIO_free);
  PARAMSHARD_CHECK(write(bio.get()) == 1);
  char* data = nullptr;
  const long size = BIO_get_mem_data(bio.get(), &data);  // NOLINT(google-runtime-int): OpenSSL's
  return {data, static_cast<size_t>(size)};
}

std::string PemOf(X509* cert) {
  return Pem([&](BIO* bio) { return PEM_write_bio_X509(bio, cert); });
}

void Extend(X509* cert, X509* issuer, int kind, const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx(&context, issuer, cert, nullptr, nullptr, 0);
  X509_EXTENSION* const extension = X509V3_EXT_conf_nid(nullptr, &context, kind, value.c_str());
  PARAMSHARD_CHECK(extension != nullptr);
  X509_add_ext(cert, extension, -1);
  X509_EXTENSION_free(extension);
}

Cert NewCert(EVP_PKEY* key, const std::string& name, const TestAuthority::Validity& validity) {
  Cert cert(X509_new(), X509_free);
  X509_set_version(cert.get(), 2);
  uint32_t serial = 0;
  RAND_bytes(reinterpret_cast<unsigned char*>(&serial), sizeof(serial));
  ASN1_INTEGER_set_uint64(X509_get_serialNumber(cert.get()), serial);
  ASN1_TIME_set(X509_getm_notBefore(cert.get()), absl::ToTimeT(validity.from));
  ASN1_TIME_set(X509_getm_notAfter(cert.get()), absl::ToTimeT(validity.to));
  X509_set_pubkey(cert.get(), key);
  X509_NAME_add_entry_by_txt(X509_get_subject_name(cert.get()), "CN", MBSTRING_ASC,
                             reinterpret_cast<const unsigned char*>(name.c_str()), -1, -1, 0);
  return cert;
}

void Replace(const std::string& path, const std::string& text) {
  const std::string next = path + ".new";
  std::ofstream(next) << text;
  chmod(next.c_str(), 0600);
  std::filesystem::rename(next, path);
}

}  // namespace

struct TestAuthority::Impl {
  Key key = NewKey();
  Cert cert = NewCert(key.get(), "authority", {.from = absl::Now() - absl::Hours(48)});
  std::string pem;
};

TestAuthority::TestAuthority() : impl_(std::make_unique<Impl>()) {
  X509* const cert = impl_->cert.get();
  X509_set_issuer_name(cert, X509_get_subject_name(cert));
  Extend(cert, cert, NID_basic_constraints, "critical,CA:TRUE");
  Extend(cert, cert, NID_key_usage, "critical,keyCertSign,cRLSign");
  Extend(cert, cert, NID_subject_key_identifier, "hash");
  X509_sign(cert, impl_->key.get(), EVP_sha256());
  impl_->pem = PemOf(cert);
}

TestAuthority::~TestAuthority() = default;

const std::string& TestAuthority::cert() const { return impl_->pem; }

TestAuthority::Issued TestAuthority::Issue(const std::vector<std::string>& uris, const Validity& validity) const {
  const Key key = NewKey();
  const Cert cert = NewCert(key.get(), "member", validity);
  X509_set_issuer_name(cert.get(), X509_get_subject_name(impl_->cert.get()));
  std::string names = "IP:127.0.0.1";
  for (const std::string& uri : uris) absl::StrAppend(&names, ",URI:", uri);
  Extend(cert.get(), impl_->cert.get(), NID_subject_alt_name, names);
  // Authorities that follow each other have one name, and keys of their own.
  Extend(cert.get(), impl_->cert.get(), NID_authority_key_identifier, "keyid");
  Extend(cert.get(), impl_->cert.get(), NID_key_usage, "critical,digitalSignature");
  Extend(cert.get(), impl_->cert.get(), NID_ext_key_usage, "serverAuth,clientAuth");
  X509_sign(cert.get(), impl_->key.get(), EVP_sha256());
  return {.cert = PemOf(cert.get()), .key = Pem([&](BIO* bio) {
                                       return PEM_write_bio_PrivateKey(bio, key.get(), nullptr, nullptr, 0, nullptr,
                                                                       nullptr);
                                     })};
}

tls::Files Install(const std::string& folder, const TestAuthority::Issued& issued, const std::string& ca) {
  std::filesystem::create_directories(folder);
  tls::Files files{.cert = folder + "/cert.pem", .key = folder + "/key.pem", .ca = folder + "/ca.pem"};
  Replace(files.key, issued.key);
  Replace(files.cert, issued.cert);
  Replace(files.ca, ca);
  return files;
}

tls::Files Certificates::Files(const std::string& role) const {
  const std::string folder = absl::StrCat(folder_.path(), "/", absl::StrJoin(absl::StrSplit(role, '/'), "-"));
  return Install(folder, authority_.Issue({absl::StrCat(kWorldUri, "/", role)}), authority_.cert());
}

std::vector<std::string> Certificates::Flags(const std::string& role) const {
  const tls::Files files = Files(role);
  return {"--tls-cert=" + files.cert, "--tls-key=" + files.key, "--tls-ca=" + files.ca};
}

}  // namespace paramshard::test
