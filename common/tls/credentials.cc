#include "common/tls/credentials.h"

#include <grpc/grpc_security_constants.h>
#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_certificate_verifier.h>
#include <grpcpp/security/tls_credentials_options.h>

#include <utility>

namespace paramshard::tls {
namespace {

namespace grpc_tls = grpc::experimental;

constexpr unsigned kRefreshSeconds = 2;

class UriVerifier final : public grpc_tls::ExternalCertificateVerifier {
 public:
  explicit UriVerifier(PeerCheck check) : check_(std::move(check)) {}

  bool Verify(grpc_tls::TlsCustomVerificationCheckRequest* request, std::function<void(grpc::Status)>,
              grpc::Status* answer) override {
    std::vector<std::string> uris;
    for (const grpc::string_ref& uri : request->uri_names()) uris.emplace_back(uri.data(), uri.size());
    const absl::Status status = check_(uris);
    *answer =
        status.ok() ? grpc::Status::OK : grpc::Status(grpc::StatusCode::UNAUTHENTICATED, std::string(status.message()));
    return true;
  }
  void Cancel(grpc_tls::TlsCustomVerificationCheckRequest*) override {}

 private:
  const PeerCheck check_;
};

std::shared_ptr<grpc_tls::CertificateProviderInterface> Watch(const Files& files) {
  return std::make_shared<grpc_tls::FileWatcherCertificateProvider>(files.key, files.cert, files.ca, kRefreshSeconds);
}

template <typename Options>
void SetUp(Options& options, [[maybe_unused]] const PeerCheck& check) {
  options.watch_root_certs();
  options.watch_identity_key_cert_pairs();
#ifndef __clang_analyzer__  // it reports a leak in gRPC's own header, where Create passes ownership to gRPC's core
  options.set_certificate_verifier(grpc_tls::ExternalCertificateVerifier::Create<UriVerifier>(check));
#endif
  options.set_check_call_host(false);
}

}  // namespace

std::shared_ptr<grpc::ServerCredentials> MakeServerCredentials(const Files& files, const PeerCheck& check) {
  grpc_tls::TlsServerCredentialsOptions options(Watch(files));
  options.set_cert_request_type(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  SetUp(options, check);
  return grpc_tls::TlsServerCredentials(options);
}

std::shared_ptr<grpc::ChannelCredentials> MakeChannelCredentials(const Files& files, const PeerCheck& check) {
  grpc_tls::TlsChannelCredentialsOptions options;
  options.set_certificate_provider(Watch(files));
  SetUp(options, check);
  return grpc_tls::TlsCredentials(options);
}

std::vector<std::string> PeerUris(const grpc::AuthContext& context) {
  std::vector<std::string> uris;
  for (const grpc::string_ref& uri : context.FindPropertyValues(GRPC_PEER_URI_PROPERTY_NAME)) {
    uris.emplace_back(uri.data(), uri.size());
  }
  return uris;
}

std::string PeerCertificate(const grpc::AuthContext& context) {
  const std::vector<grpc::string_ref> certificates = context.FindPropertyValues(GRPC_X509_PEM_CERT_PROPERTY_NAME);
  return certificates.empty() ? "" : std::string(certificates[0].data(), certificates[0].size());
}

}  // namespace paramshard::tls
