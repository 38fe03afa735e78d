// A mirror of a training with certificates: which ones are accepted, and what they may.

#include <google/protobuf/descriptor.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/tls/credentials.h"
#include "gmock/gmock.h"
#include "paramshard/v1/mirror.grpc.pb.h"
#include "tests/faults/mirrored_training.h"
#include "tests/support/environment.h"
#include "tests/support/status_matchers.h"

namespace paramshard::test {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;

std::string ReadText(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// Returns the full names of the methods that tools and trainers call.
std::vector<std::string> OtherMethods() {
  std::vector<std::string> methods;
  for (const char* const name : {"Admin", "Trainer", "Reader"}) {
    const auto* const service = google::protobuf::DescriptorPool::generated_pool()->FindServiceByName(
        absl::StrCat("paramshard.v1.", name, "Service"));
    for (int i = 0; i < service->method_count(); ++i) {
      methods.push_back(absl::StrCat("/", service->full_name(), "/", service->method(i)->name()));
    }
  }
  return methods;
}

class MirrorCertificatesTest : public testing::Test {
 protected:
  void SetUp() override { ASSERT_OK(training_.AwaitReady()); }

  std::string LogPath() const { return folder_.path() + "/log"; }
  // Calls the daemon of the training with a certificate of that role.
  absl::Status Call(const std::string& role, const std::string& method) const {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    const auto channel = grpc::CreateCustomChannel(
        absl::StrCat("127.0.0.1:", training_.port(0)),
        tls::MakeChannelCredentials(certificates_.Files(role),
                                    [](const std::vector<std::string>&) { return absl::OkStatus(); }),
        arguments);
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + kMirrorTimeout));
    context.set_wait_for_ready(true);  // the daemon opens --listen after its sockets
    const grpc::Slice nothing("");
    grpc::ByteBuffer response;
    grpc::Status status;
    grpc::CompletionQueue queue;
    const auto call = grpc::GenericStub(channel).PrepareUnaryCall(&context, method, {&nothing, 1}, &queue);
    call->StartCall();
    call->Finish(&response, &status, &status);
    void* tag = nullptr;
    bool ok = false;
    EXPECT_TRUE(queue.Next(&tag, &ok));
    return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
  }
  // Starts a mirror with these flags that cannot start. Returns its log.
  std::string LogOfRefused(const std::vector<std::string>& flags) const {
    ReadMirror mirror(training_.port(0), flags, LogPath());
    const absl::StatusOr<int> code = mirror.daemon().AwaitExit(kMirrorTimeout);
    EXPECT_OK(code.status());
    EXPECT_NE(code.value_or(0), 0);
    return ReadText(LogPath());
  }
  void ExpectNothingReceived(ReadMirror& mirror, const std::string& why) {
    EXPECT_OK(mirror.AwaitError(why));
    ASSERT_OK_AND_ASSIGN(const nlohmann::json listed, mirror.Listed());
    EXPECT_FALSE(listed.contains("active")) << listed;
    EXPECT_THAT(ReadText(LogPath()), AllOf(HasSubstr("the training does not answer"), HasSubstr(why)));
  }

  const TemporaryDirectory folder_;
  const Certificates certificates_{}, others_{};
  const std::string denied_ = folder_.path() + "/denied";
  const bool is_written_ = bool(std::ofstream(denied_) << "");
  MirroredTraining training_{{.flags = {"--tls-deny-file=" + denied_}, .certificates = &certificates_}};
};

TEST_F(MirrorCertificatesTest, AReadersIsAccepted) {
  ReadMirror mirror(training_, certificates_.Flags("reader"));
  training_.TrainTo(5);
  EXPECT_THAT(mirror.Read(5), IsOkAndHolds(5));
}

TEST_F(MirrorCertificatesTest, AMirrorDoesNotStartWithAnotherRole) {
  for (const char* const role : {"trainer", "viewer", "admin", "node/0"}) {
    SCOPED_TRACE(role);
    EXPECT_THAT(LogOfRefused(certificates_.Flags(role)),
                AllOf(HasSubstr("want a certificate of reader for a mirror, got one of "), HasSubstr(role)));
  }
}

// A program of its own that has such a certificate.
TEST_F(MirrorCertificatesTest, OtherRolesGetNoPlanes) {
  const auto* const service =
      google::protobuf::DescriptorPool::generated_pool()->FindServiceByName("paramshard.v1.MirrorService");
  for (const char* const role : {"trainer", "viewer", "admin", "node/1"}) {
    SCOPED_TRACE(role);
    for (int i = 0; i < service->method_count(); ++i) {
      EXPECT_THAT(
          Call(role, absl::StrCat("/", service->full_name(), "/", service->method(i)->name())),
          StatusIs(absl::StatusCode::kPermissionDenied, HasSubstr("want a certificate of reader, got one of ")));
    }
  }
}

TEST_F(MirrorCertificatesTest, AReadersMayCallNothingElse) {
  EXPECT_OK(Call("reader", "/paramshard.v1.MirrorService/AskVersions"));
  const std::vector<std::string> methods = OtherMethods();
  EXPECT_GT(methods.size(), 25);
  for (const std::string& method : methods) {
    SCOPED_TRACE(method);
    EXPECT_THAT(Call("reader", method), StatusIs(absl::StatusCode::kPermissionDenied,
                                                 AnyOf(HasSubstr("got one of reader"), HasSubstr("got reader"))));
  }
  EXPECT_THAT(Call("reader", "/paramshard.v1.ClusterService/Join"),
              AnyOf(StatusIs(absl::StatusCode::kUnimplemented), StatusIs(absl::StatusCode::kPermissionDenied)));
}

TEST_F(MirrorCertificatesTest, AMirrorWithoutOneHearsWhy) {
  ReadMirror mirror(training_.port(0), {}, LogPath());
  ExpectNothingReceived(mirror, "the other end may use TLS: give certificates to both ends, or to neither");
}

TEST_F(MirrorCertificatesTest, OneOfAnotherAuthorityIsRejected) {
  ReadMirror mirror(training_.port(0), others_.Flags("reader"), LogPath());
  ExpectNothingReceived(mirror, "certificate is not signed by an authority in ");
}

// The mirror trusts the training's authority, and shows a certificate of another one.
TEST_F(MirrorCertificatesTest, OneThatTheTrainingDoesNotTrustIsRejected) {
  const tls::Files own = others_.Files("reader"), training = certificates_.Files("reader");
  const std::string both = folder_.path() + "/both";
  std::ofstream(both) << ReadText(own.ca) << ReadText(training.ca);
  ReadMirror mirror(training_.port(0), {"--tls-cert=" + own.cert, "--tls-key=" + own.key, "--tls-ca=" + both},
                    LogPath());
  ExpectNothingReceived(mirror, "the other end may have rejected the certificate in ");
}

// Readers keep the version that it has received.
TEST_F(MirrorCertificatesTest, OneThatIsDeniedIsShutOut) {
  ReadMirror mirror(training_.port(0), certificates_.Flags("reader"), LogPath());
  training_.TrainTo(5);
  ASSERT_THAT(mirror.Read(5), IsOkAndHolds(5));
  std::ofstream(denied_) << kWorldUri << "/reader\n";
  EXPECT_OK(mirror.AwaitError("the other end may have rejected the certificate in "));
  training_.TrainTo(6);
  EXPECT_THAT(mirror.Read(0), IsOkAndHolds(5));
  std::ofstream(denied_) << "";
  EXPECT_THAT(mirror.Read(6), IsOkAndHolds(6));
}

// A certificate of role reader is not enough to send planes to mirrors.
TEST_F(MirrorCertificatesTest, AMirrorIsNoTraining) {
  const int port = FreePort();
  std::vector<std::string> flags = certificates_.Flags("reader");
  flags.push_back(absl::StrCat("--listen=127.0.0.1:", port));
  ReadMirror first(training_.port(0), flags);
  ASSERT_OK(first.daemon().AwaitReady());
  ReadMirror second(port, certificates_.Flags("reader"), LogPath());
  EXPECT_OK(second.AwaitError("node 0 at 127.0.0.1:"));
  EXPECT_THAT(ReadText(LogPath()), HasSubstr("want the certificate of a node"));
}

}  // namespace
}  // namespace paramshard::test
