#include "common/tls/files.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include <cstdint>
#include <ctime>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/safetensors/regular_file.h"
#include "kernels/base/status_macros.h"

namespace paramshard::tls {
namespace {

// Largest file; chains and bundles of authorities are smaller.
constexpr int64_t kMostBytes = 4 << 20;

// Names of the files in messages. The paths come from flags, environment variables, or arguments of a function.
constexpr char kCertificate[] = "TLS certificate";
constexpr char kKey[] = "TLS key";
constexpr char kAuthorities[] = "TLS authorities";

template <typename T, void (*kFree)(T*)>
struct Freer {
  void operator()(T* object) const { kFree(object); }
};
template <typename T, void (*kFree)(T*)>
using Owned = std::unique_ptr<T, Freer<T, kFree>>;

void FreeCertificates(STACK_OF(X509) * certificates) { sk_X509_pop_free(certificates, X509_free); }
void FreeBio(BIO* bio) { BIO_free(bio); }

using OwnedBio = Owned<BIO, FreeBio>;
using OwnedCertificates = Owned<STACK_OF(X509), FreeCertificates>;
using OwnedKey = Owned<EVP_PKEY, EVP_PKEY_free>;
using OwnedNames = Owned<GENERAL_NAMES, GENERAL_NAMES_free>;
using OwnedStore = Owned<X509_STORE, X509_STORE_free>;
using OwnedStoreContext = Owned<X509_STORE_CTX, X509_STORE_CTX_free>;

absl::Status FileError(absl::string_view name, absl::string_view path, absl::string_view what) {
  return absl::FailedPreconditionError(absl::StrCat(name, " ", path, ": ", what));
}

absl::StatusOr<std::string> Named(absl::string_view name, absl::StatusOr<std::string> text) {
  if (text.ok()) return text;
  return absl::FailedPreconditionError(absl::StrCat(name, " ", text.status().message()));
}

absl::StatusOr<std::string> ReadText(absl::string_view name, const std::string& path) {
  return Named(name, safetensors::ReadWholeFile(path, kMostBytes));
}

// Clears OpenSSL's error queue, which keeps a thread's errors until they are read.
OwnedCertificates ReadCertificates(absl::string_view pem) {
  OwnedCertificates certificates(sk_X509_new_null());
  const OwnedBio bio(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())));
  while (X509* const certificate = PEM_read_bio_X509(bio.get(), nullptr, nullptr, nullptr)) {
    sk_X509_push(certificates.get(), certificate);
  }
  ERR_clear_error();
  return certificates;
}

// Answers OpenSSL's request for a password with none.
int NoPassword(char*, int, int, void*) { return 0; }

OwnedKey ReadKey(absl::string_view pem) {
  const OwnedBio bio(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())));
  OwnedKey key(PEM_read_bio_PrivateKey(bio.get(), nullptr, NoPassword, nullptr));
  ERR_clear_error();
  return key;
}

absl::StatusOr<absl::Time> TimeOf(const ASN1_TIME* time) {
  tm parts{};
  if (ASN1_TIME_to_tm(time, &parts) != 1) return absl::InvalidArgumentError("cannot parse a time of the certificate");
  return absl::FromTM(parts, absl::UTCTimeZone());
}

std::vector<std::string> UrisOf(const X509* certificate) {
  std::vector<std::string> uris;
  const OwnedNames names(
      static_cast<GENERAL_NAMES*>(X509_get_ext_d2i(certificate, NID_subject_alt_name, nullptr, nullptr)));
  if (names == nullptr) return uris;
  for (int i = 0; i < sk_GENERAL_NAME_num(names.get()); ++i) {
    const GENERAL_NAME* const name = sk_GENERAL_NAME_value(names.get(), i);
    if (name->type != GEN_URI) continue;
    const ASN1_IA5STRING* const uri = name->d.uniformResourceIdentifier;
    uris.emplace_back(reinterpret_cast<const char*>(ASN1_STRING_get0_data(uri)), ASN1_STRING_length(uri));
  }
  return uris;
}

std::string FingerprintOf(const X509* certificate) {
  std::string digest(EVP_MAX_MD_SIZE, '\0');
  unsigned int size = 0;
  X509_digest(certificate, EVP_sha256(), reinterpret_cast<unsigned char*>(digest.data()), &size);
  digest.resize(size);
  return digest;
}

absl::StatusOr<Certificate> Describe(const X509* certificate) {
  Certificate described;
  described.fingerprint = FingerprintOf(certificate);
  described.uris = UrisOf(certificate);
  ASSIGN_OR_RETURN(described.not_before, TimeOf(X509_get0_notBefore(certificate)));
  ASSIGN_OR_RETURN(described.not_after, TimeOf(X509_get0_notAfter(certificate)));
  return described;
}

// Checks signatures only: CheckIsValid has a better message for the times.
absl::Status CheckIsSigned(STACK_OF(X509) * chain, STACK_OF(X509) * authorities) {
  const OwnedStore store(X509_STORE_new());
  for (int i = 0; i < sk_X509_num(authorities); ++i) X509_STORE_add_cert(store.get(), sk_X509_value(authorities, i));
  const OwnedStoreContext context(X509_STORE_CTX_new());
  X509_STORE_CTX_init(context.get(), store.get(), sk_X509_value(chain, 0), chain);
  X509_STORE_CTX_set_flags(context.get(), X509_V_FLAG_NO_CHECK_TIME | X509_V_FLAG_PARTIAL_CHAIN);
  const bool is_signed = X509_verify_cert(context.get()) == 1;
  ERR_clear_error();
  if (is_signed) return absl::OkStatus();
  return absl::FailedPreconditionError(X509_verify_cert_error_string(X509_STORE_CTX_get_error(context.get())));
}

absl::Status CheckIsValid(const Files& files, const Certificate& certificate, absl::Time now) {
  if (certificate.not_before <= now && now < certificate.not_after) return absl::OkStatus();
  const auto text = [](absl::Time time) { return absl::FormatTime(absl::RFC3339_sec, time, absl::UTCTimeZone()); };
  return FileError(kCertificate, files.cert,
                   absl::StrCat("want a certificate that is valid at ", text(now), ", got one that is valid from ",
                                text(certificate.not_before), " to ", text(certificate.not_after)));
}

absl::Status CheckAllGiven(const Files& files) {
  for (const auto& [name, path] :
       {std::pair(kCertificate, &files.cert), std::pair(kKey, &files.key), std::pair(kAuthorities, &files.ca)}) {
    if (path->empty()) {
      return absl::FailedPreconditionError(
          absl::StrCat(name, ": a PEM file is required; certificate, key and authorities are given together"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Certificate> ParseCertificate(absl::string_view pem) {
  const OwnedCertificates chain = ReadCertificates(pem);
  if (sk_X509_num(chain.get()) == 0) return absl::InvalidArgumentError("want a certificate in PEM, got none");
  return Describe(sk_X509_value(chain.get(), 0));
}

absl::StatusOr<Certificate> ReadCertificate(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string text, ReadText(kCertificate, path));
  const absl::StatusOr<Certificate> leaf = ParseCertificate(text);
  return leaf.ok() ? leaf : FileError(kCertificate, path, leaf.status().message());
}

absl::StatusOr<Certificate> CheckFiles(const Files& files, absl::Time now) {
  RETURN_IF_ERROR(CheckAllGiven(files));
  ASSIGN_OR_RETURN(const std::string cert_text, ReadText(kCertificate, files.cert));
  ASSIGN_OR_RETURN(const std::string key_text, Named(kKey, safetensors::ReadSecretFile(files.key, kMostBytes)));
  ASSIGN_OR_RETURN(const std::string ca_text, ReadText(kAuthorities, files.ca));
  const OwnedCertificates chain = ReadCertificates(cert_text);
  if (sk_X509_num(chain.get()) == 0) {
    return FileError(kCertificate, files.cert, "want a certificate in PEM, got none");
  }
  const OwnedCertificates authorities = ReadCertificates(ca_text);
  if (sk_X509_num(authorities.get()) == 0) {
    return FileError(kAuthorities, files.ca, "want certificates of authorities in PEM, got none");
  }
  const OwnedKey key = ReadKey(key_text);
  if (key == nullptr) return FileError(kKey, files.key, "want a private key in PEM, not encrypted, got none");
  const bool fits = X509_check_private_key(sk_X509_value(chain.get(), 0), key.get()) == 1;
  ERR_clear_error();
  if (!fits) return FileError(kKey, files.key, absl::StrCat("want the key of ", files.cert, ", got a different key"));
  const absl::StatusOr<Certificate> leaf = Describe(sk_X509_value(chain.get(), 0));
  if (!leaf.ok()) return FileError(kCertificate, files.cert, leaf.status().message());
  RETURN_IF_ERROR(CheckIsValid(files, *leaf, now));
  if (const absl::Status is_signed = CheckIsSigned(chain.get(), authorities.get()); !is_signed.ok()) {
    return FileError(kCertificate, files.cert,
                     absl::StrCat("not signed by an authority in ", files.ca, ": ", is_signed.message()));
  }
  return *leaf;
}

}  // namespace paramshard::tls
