// Real handshakes between gRPC servers and channels of one process.
#include "server/edge/transport.h"

#include <grpcpp/grpcpp.h>
#include <unistd.h>

#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/tls/credentials.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "paramshard/v1/admin.grpc.pb.h"
#include "paramshard/v1/cluster.grpc.pb.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/test_authority.h"

namespace paramshard::server {
namespace {

using test::TestAuthority;
using ::testing::HasSubstr;

constexpr absl::Duration kLong = absl::Seconds(30);
constexpr int kNodes = 3;

std::string InWorld(absl::string_view rest) { return absl::StrCat(test::kWorldUri, "/", rest); }

// Answers votes of the node that the caller's certificate names.
class Votes final : public v1::ClusterService::Service {
 public:
  explicit Votes(const Transport* transport) : transport_(transport) {}
  grpc::Status Vote(grpc::ServerContext* context, const v1::VoteRequest* request, v1::VoteResponse*) override {
    const absl::Status status = transport_->CheckSpeaksFor(*context->auth_context(), request->node());
    return {static_cast<grpc::StatusCode>(status.code()), std::string(status.message())};
  }

 private:
  const Transport* const transport_;
};

class Inspection final : public v1::AdminService::Service {
 public:
  grpc::Status ListModels(grpc::ServerContext*, const v1::ListModelsRequest*, v1::ListModelsResponse*) override {
    return grpc::Status::OK;
  }
  grpc::Status Drain(grpc::ServerContext*, const v1::DrainRequest*, v1::DrainResponse*) override {
    return grpc::Status::OK;
  }
};

// Node 0 with one server for the other nodes and one for tools.
class TransportTest : public testing::Test {
 protected:
  TransportTest() {
    const auto transport =
        Transport::Create({.files = Install("0", authority_.Issue({InWorld("node/0")}))}, absl::Now());
    EXPECT_OK(transport);
    transport_ = *transport;
    EXPECT_TRUE(transport_.encrypts());
    nodes_port_ = Serve(transport_.ForNodes(kNodes), &votes_);
    tools_port_ = Serve(transport_.ForTools(), &inspection_);
  }
  ~TransportTest() override {
    for (const auto& server : servers_) server->Shutdown(std::chrono::system_clock::now());
  }

  int Serve(const std::shared_ptr<grpc::ServerCredentials>& credentials, grpc::Service* service,
            const std::shared_ptr<PeerConnections>& connections = nullptr) {
    grpc::ServerBuilder builder;
    if (connections != nullptr) {
      builder.experimental().SetInterceptorCreators(PeerConnections::Interceptors(connections));
    }
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", credentials, &port);
    builder.RegisterService(service);
    servers_.push_back(builder.BuildAndStart());
    EXPECT_NE(servers_.back(), nullptr);
    return port;
  }
  tls::Files Install(const std::string& name, const TestAuthority::Issued& issued) {
    return test::Install(absl::StrCat(folder_.path(), "/", name), issued, authority_.cert());
  }
  // A connection with that certificate, to any server with a certificate of the authority.
  static std::shared_ptr<grpc::Channel> ChannelOf(const tls::Files& files, int port) {
    return ChannelOf(
        tls::MakeChannelCredentials(files, [](const std::vector<std::string>&) { return absl::OkStatus(); }), port);
  }
  static std::shared_ptr<grpc::Channel> ChannelOf(const std::shared_ptr<grpc::ChannelCredentials>& credentials,
                                                  int port) {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
    return grpc::CreateCustomChannel(absl::StrCat("127.0.0.1:", port), credentials, arguments);
  }
  std::shared_ptr<grpc::Channel> With(const TestAuthority::Issued& issued, int port) {
    return ChannelOf(Install(absl::StrCat("peer", ++peers_), issued), port);
  }
  std::shared_ptr<grpc::Channel> As(const std::string& role, int port) {
    return With(authority_.Issue({InWorld(role)}), port);
  }

  template <typename Call>
  static absl::Status Answer(Call call) {
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + kLong));
    const grpc::Status status = call(&context);
    return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
  }
  static absl::Status VoteOf(int node, const std::shared_ptr<grpc::Channel>& channel) {
    return Answer([&](grpc::ClientContext* context) {
      v1::VoteRequest request;
      request.set_node(node);
      v1::VoteResponse response;
      return v1::ClusterService::NewStub(channel)->Vote(context, request, &response);
    });
  }
  static absl::Status List(const std::shared_ptr<grpc::Channel>& channel) {
    return Answer([&](grpc::ClientContext* context) {
      v1::ListModelsResponse response;
      return v1::AdminService::NewStub(channel)->ListModels(context, {}, &response);
    });
  }
  static absl::Status Drain(const std::shared_ptr<grpc::Channel>& channel) {
    return Answer([&](grpc::ClientContext* context) {
      v1::DrainResponse response;
      return v1::AdminService::NewStub(channel)->Drain(context, {}, &response);
    });
  }
  // The handshake fails: no call is answered.
  static void ExpectRefused(const std::shared_ptr<grpc::Channel>& channel) {
    EXPECT_THAT(VoteOf(1, channel), StatusIs(absl::StatusCode::kUnavailable));
  }
  // Until files that were replaced are noticed.
  static void AwaitTrue(const std::function<bool()>& holds) {
    const absl::Time end = absl::Now() + kLong;
    while (!holds() && absl::Now() < end) {
    }
    EXPECT_TRUE(holds());
  }

  const TestAuthority authority_;
  const test::TemporaryDirectory folder_;
  Transport transport_;
  Votes votes_{&transport_};
  Inspection inspection_;
  std::vector<std::unique_ptr<grpc::Server>> servers_;
  int nodes_port_ = 0;
  int tools_port_ = 0;
  int peers_ = 0;
};

TEST_F(TransportTest, ANodeIsServed) { EXPECT_OK(VoteOf(1, As("node/1", nodes_port_))); }

TEST_F(TransportTest, ANodeReachesNodeZeroAlone) {
  const auto one =
      Transport::Create({.files = Install("1", authority_.Issue({InWorld("node/1")})), .node = 1}, absl::Now());
  ASSERT_OK(one);
  EXPECT_OK(VoteOf(1, ChannelOf(one->ToCoordinator(), nodes_port_)));
  // A server that has the certificate of another node is not node 0.
  const int port = Serve(one->ForNodes(kNodes), &votes_);
  EXPECT_THAT(VoteOf(1, ChannelOf(one->ToCoordinator(), port)), StatusIs(absl::StatusCode::kUnavailable));
}

TEST_F(TransportTest, ANodeSpeaksForItselfAlone) {
  EXPECT_THAT(VoteOf(2, As("node/1", nodes_port_)),
              StatusIs(absl::StatusCode::kPermissionDenied, HasSubstr("want the certificate of node/2, got the "
                                                                      "certificate of node/1")));
}

TEST_F(TransportTest, OthersThanNodesAreRefusedByTheServerForNodes) {
  for (const char* role : {"trainer", "viewer", "admin"}) ExpectRefused(As(role, nodes_port_));
}

TEST_F(TransportTest, ANodeThatTheWorldHasNotIsRefused) {
  EXPECT_OK(VoteOf(2, As("node/2", nodes_port_)));
  ExpectRefused(As("node/3", nodes_port_));
}

TEST_F(TransportTest, NoCertificateIsRefused) {
  grpc::SslCredentialsOptions options;
  options.pem_root_certs = authority_.cert();
  ExpectRefused(ChannelOf(grpc::SslCredentials(options), nodes_port_));
}

TEST_F(TransportTest, AnotherAuthoritysCertificateIsRefused) {
  const TestAuthority other;
  ExpectRefused(With(other.Issue({InWorld("node/1")}), nodes_port_));
}

TEST_F(TransportTest, ACertificateThatHasEndedIsRefused) {
  ExpectRefused(With(
      authority_.Issue({InWorld("node/1")}, {.from = absl::Now() - absl::Hours(3), .to = absl::Now() - absl::Hours(2)}),
      nodes_port_));
}

TEST_F(TransportTest, AnotherWorldsCertificateIsRefused) {
  ExpectRefused(With(authority_.Issue({"spiffe://example.test/paramshard/w2/node/1"}), nodes_port_));
}

TEST_F(TransportTest, WhoIsDeniedIsRefusedAtBothEnds) {
  const std::string deny_file = folder_.path() + "/deny";
  std::ofstream(deny_file) << InWorld("node/1") << "\n" << InWorld("node/0") << "\n";
  const auto one = Transport::Create(
      {.files = Install("1", authority_.Issue({InWorld("node/1")})), .deny_file = deny_file, .node = 1}, absl::Now());
  ASSERT_OK(one);
  const int port = Serve(one->ForNodes(kNodes), &votes_);
  ExpectRefused(As("node/1", port));
  EXPECT_OK(VoteOf(2, As("node/2", port)));
  EXPECT_THAT(VoteOf(1, ChannelOf(one->ToCoordinator(), nodes_port_)), StatusIs(absl::StatusCode::kUnavailable));
}

TEST_F(TransportTest, ACertificateWithoutOneUriIsRefused) {
  ExpectRefused(With(authority_.Issue({}), nodes_port_));
  ExpectRefused(With(authority_.Issue({InWorld("node/1"), InWorld("node/2")}), nodes_port_));
}

TEST_F(TransportTest, PlaintextIsRefusedByTlsAndTheReverse) {
  ExpectRefused(ChannelOf(grpc::InsecureChannelCredentials(), nodes_port_));
  const Transport in_the_clear;
  Votes votes(&in_the_clear);
  const int plain = Serve(in_the_clear.ForNodes(kNodes), &votes);
  EXPECT_OK(VoteOf(1, ChannelOf(in_the_clear.ToCoordinator(), plain)));
  ExpectRefused(As("node/1", plain));
  servers_.back()->Shutdown();
}

TEST_F(TransportTest, ToolsMayDoWhatTheirRoleMay) {
  EXPECT_OK(List(As("viewer", tools_port_)));
  EXPECT_OK(List(As("trainer", tools_port_)));
  EXPECT_OK(Drain(As("admin", tools_port_)));
  for (const char* role : {"viewer", "trainer", "node/1"}) {
    EXPECT_THAT(Drain(As(role, tools_port_)),
                StatusIs(absl::StatusCode::kPermissionDenied,
                         HasSubstr(absl::StrCat("Drain: want a certificate of admin, got one of ", role))));
  }
  EXPECT_THAT(List(As("node/1", tools_port_)), StatusIs(absl::StatusCode::kPermissionDenied));
}

TEST_F(TransportTest, CallsOnConnectionsThatNobodyCouldEndAreCancelled) {
  const auto connections = std::make_shared<PeerConnections>(PeerConnections::Options{});
  const int port = Serve(transport_.ForTools(), &inspection_, connections);
  EXPECT_THAT(List(As("viewer", port)), StatusIs(absl::StatusCode::kCancelled));
}

// Before its connection is closed.
TEST_F(TransportTest, WhoIsDeniedIsRefusedOnAnOpenConnectionToo) {
  const std::string deny_file = folder_.path() + "/deny";
  std::ofstream(deny_file) << "";
  const auto own = Transport::Create(
      {.files = Install("0", authority_.Issue({InWorld("node/0")})), .deny_file = deny_file}, absl::Now());
  ASSERT_OK(own);
  const auto open = As("viewer", Serve(own->ForTools(), &inspection_));
  EXPECT_OK(List(open));
  std::ofstream(deny_file) << InWorld("viewer") << "\n";
  AwaitTrue([&] { return absl::IsUnauthenticated(List(open)); });
}

TEST_F(TransportTest, RenewedCertificatesServeNewConnectionsAndOpenOnesGoOn) {
  const auto open = As("node/1", nodes_port_);
  ASSERT_OK(VoteOf(1, open));
  const auto is_shown = [&](int node) {
    // The identity in the server's certificate.
    std::vector<std::string> shown;
    const tls::Files files = Install("observer", authority_.Issue({InWorld("node/1")}));
    const auto channel = ChannelOf(tls::MakeChannelCredentials(files,
                                                               [&](const std::vector<std::string>& uris) {
                                                                 shown = uris;
                                                                 return absl::OkStatus();
                                                               }),
                                   nodes_port_);
    EXPECT_OK(VoteOf(1, channel));
    return shown == std::vector<std::string>{InWorld(absl::StrCat("node/", node))};
  };
  ASSERT_TRUE(is_shown(0));
  Install("0", authority_.Issue({InWorld("node/7")}));
  AwaitTrue([&] { return is_shown(7); });
  EXPECT_OK(VoteOf(1, open));
}

// A connection made after the check uses that certificate at once.
TEST_F(TransportTest, ARenewedCertificateIsAnotherOne) {
  ASSERT_OK_AND_ASSIGN(
      const Transport one,
      Transport::Create({.files = Install("1", authority_.Issue({InWorld("node/1")})), .node = 1}, absl::Now()));
  EXPECT_OK(VoteOf(1, ChannelOf(one.ToCoordinator(), nodes_port_)));
  ASSERT_OK_AND_ASSIGN(const tls::Certificate first, one.OwnCertificate());
  ASSERT_OK_AND_ASSIGN(const tls::Certificate again, one.OwnCertificate());
  EXPECT_EQ(again.fingerprint, first.fingerprint);
  EXPECT_EQ(first.fingerprint.size(), 32);
  Install("1", authority_.Issue({InWorld("node/2")}));
  ASSERT_OK_AND_ASSIGN(const tls::Certificate renewed, one.OwnCertificate());
  EXPECT_NE(renewed.fingerprint, first.fingerprint);
  EXPECT_OK(VoteOf(2, ChannelOf(one.ToCoordinator(), nodes_port_)));
}

TEST_F(TransportTest, ConnectionsOfNodesAndToolsEndWithTheirCertificatesAndInTheClearNoneDoes) {
  EXPECT_NE(transport_.MakePeerConnections(), nullptr);
  EXPECT_EQ(Transport().MakePeerConnections(), nullptr);
}

TEST_F(TransportTest, AnAuthorityIsReplacedInTwoSteps) {
  const TestAuthority next;
  const auto open = As("node/1", nodes_port_);
  ASSERT_OK(VoteOf(1, open));
  const auto answers = [&](const TestAuthority& authority) {
    const tls::Files files = test::Install(absl::StrCat(folder_.path(), "/rotated"),
                                           authority.Issue({InWorld("node/1")}), authority_.cert() + next.cert());
    return VoteOf(1, ChannelOf(files, nodes_port_)).ok();
  };
  EXPECT_FALSE(answers(next));
  const TestAuthority::Issued own = authority_.Issue({InWorld("node/0")});
  test::Install(folder_.path() + "/0", own, authority_.cert() + next.cert());
  AwaitTrue([&] { return answers(next); });
  EXPECT_TRUE(answers(authority_));
  test::Install(folder_.path() + "/0", next.Issue({InWorld("node/0")}), next.cert());
  AwaitTrue([&] { return !answers(authority_); });
  EXPECT_TRUE(answers(next));
  EXPECT_OK(VoteOf(1, open));
}

TEST_F(TransportTest, AFileThatIsGoneLeavesTheLastOne) {
  const TestAuthority next;
  const std::string ca = folder_.path() + "/0/ca.pem";
  unlink((folder_.path() + "/0/cert.pem").c_str());
  std::ofstream(ca + ".next") << authority_.cert() << next.cert();
  ASSERT_EQ(rename((ca + ".next").c_str(), ca.c_str()), 0);
  // This shows that the server has checked since.
  const tls::Files files = test::Install(folder_.path() + "/other", next.Issue({InWorld("node/1")}), authority_.cert());
  AwaitTrue([&] { return VoteOf(1, ChannelOf(files, nodes_port_)).ok(); });
  EXPECT_OK(VoteOf(1, As("node/1", nodes_port_)));
}

TEST_F(TransportTest, AKeyWithoutItsCertificateFailsHandshakesUntilBothFit) {
  const auto open = As("node/1", nodes_port_);
  ASSERT_OK(VoteOf(1, open));
  const TestAuthority::Issued one = authority_.Issue({InWorld("node/0")});
  const TestAuthority::Issued two = authority_.Issue({InWorld("node/0")});
  const auto is_served = [&] { return VoteOf(1, As("node/1", nodes_port_)).ok(); };
  Install("0", {.cert = one.cert, .key = two.key});
  AwaitTrue([&] { return !is_served(); });
  EXPECT_OK(VoteOf(1, open));
  Install("0", two);
  AwaitTrue(is_served);
}

TEST_F(TransportTest, ACertificateOfAnotherNodeIsRefusedAtTheStart) {
  const tls::Files files = Install("2", authority_.Issue({InWorld("node/2")}));
  EXPECT_THAT(Transport::Create({.files = files, .node = 1}, absl::Now()).status(),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       testing::AllOf(HasSubstr("--tls-cert"),
                                      HasSubstr("want the certificate of node/1, got the certificate of node/2"),
                                      HasSubstr("--node"))));
  const tls::Files admin = Install("3", authority_.Issue({InWorld("admin")}));
  EXPECT_FALSE(Transport::Create({.files = admin, .node = 1}, absl::Now()).ok());
  const tls::Files other = Install("4", authority_.Issue({"spiffe://corp/ps-1"}));
  EXPECT_THAT(Transport::Create({.files = other, .node = 1}, absl::Now()).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("ROLE=PATTERN")));
  EXPECT_OK(Transport::Create({.files = other, .roles = {{tls::Role::kNode, "spiffe://corp/ps-{N}"}}, .node = 1},
                              absl::Now()));
}

}  // namespace
}  // namespace paramshard::server
