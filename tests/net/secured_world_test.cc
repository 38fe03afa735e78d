// Worlds of real daemons whose connections need certificates, and tools that come over the network.
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "common/shared_memory/file_descriptor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/faults/training.h"
#include "tests/support/child_process.h"
#include "tests/support/daemon_process.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/test_authority.h"

namespace paramshard::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int kNodes = 2;
constexpr absl::Duration kTimeout = absl::Seconds(60);

std::string InWorld(absl::string_view rest) { return absl::StrCat(kWorldUri, "/", rest); }

std::vector<std::string> FlagsOf(const tls::Files& files) {
  return {"--tls-cert=" + files.cert, "--tls-key=" + files.key, "--tls-ca=" + files.ca};
}

std::string ReadText(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

class SecuredWorldTest : public testing::Test {
 protected:
  tls::Files Install(const std::string& name, const TestAuthority::Issued& issued) const {
    return test::Install(absl::StrCat(folder_.path(), "/", name), issued, authority_.cert());
  }
  // 0.0.0.0 is reached by everybody, and so off loopback.
  std::vector<std::string> WorldFlags(int node) const {
    return {absl::StrCat("--node=", node),
            absl::StrCat("--nodes=", kNodes),
            absl::StrCat("--cluster-address=0.0.0.0:", port_),
            "--data-address=127.0.0.1",
            "--keeper=off",
            "--log-level=info",
            absl::StrCat("--listen=0.0.0.0:", listen_[node])};
  }
  void Spawn(int node, std::vector<std::string> flags) {
    const std::vector<std::string> world = WorldFlags(node);
    flags.insert(flags.end(), world.begin(), world.end());
    if (node == 0) flags.insert(flags.end(), more_flags_.begin(), more_flags_.end());
    const int log = open(LogPath(node).c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    daemons_[node].emplace(DaemonProcess::Spawn(PARAMSHARDD, sockets_[node].path(), flags, {.standard_error = log}));
    close(log);
  }
  std::string LogPath(int node) const { return absl::StrCat(folder_.path(), "/log", node); }
  void StartSecured() {
    for (int node = 0; node < kNodes; ++node) {
      const std::string role = absl::StrCat("node/", node);
      Spawn(node, FlagsOf(Install(absl::StrCat(node), authority_.Issue({InWorld(role)}))));
    }
    for (int node = 0; node < kNodes; ++node) ASSERT_OK(daemons_[node]->AwaitReady()) << ReadText(LogPath(node));
  }

  // Both ranks share one model; returns its hash at each node.
  std::vector<std::string> Train() {
    std::vector<ChildProcess> trainers;
    for (int rank = 0; rank < kNodes; ++rank) {
      trainers.push_back(ChildProcess::Run([this, rank](Board&) {
        return test::Train({.socket_dir = sockets_[rank].path(), .model = "m", .rank = rank, .shard_size = kNodes});
      }));
    }
    for (ChildProcess& trainer : trainers) EXPECT_OK(trainer.Await(kTimeout));
    std::vector<std::string> hashes;
    for (int node = 0; node < kNodes; ++node) {
      const auto verified =
          OutputOf(absl::StrCat(PARAMSHARDCTL, " --socket-dir=", sockets_[node].path(), " -o json verify m"));
      EXPECT_OK(verified.status());
      hashes.push_back(verified.ok() ? nlohmann::json::parse(*verified)["summary"]["stateHash"] : "");
    }
    return hashes;
  }
  // paramshardctl with a certificate of that role.
  absl::StatusOr<std::string> Remote(const std::string& role, const std::string& words) const {
    const tls::Files files = Install(role, authority_.Issue({InWorld(role)}));
    return OutputOf(absl::StrCat("{ ", PARAMSHARDCTL, " ", absl::StrJoin(FlagsOf(files), " "), " --timeout=5s ", words,
                                 "; } 2>&1"));
  }
  std::string Listen(int node) const { return absl::StrCat("127.0.0.1:", listen_[node]); }

  // A connection that says nothing, and reads for as long as kTimeout.
  static wire::FileDescriptor ConnectSilently(int port) {
    wire::FileDescriptor connection(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const timeval timeout = absl::ToTimeval(kTimeout);
    setsockopt(connection.get(), SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout));
    EXPECT_EQ(connect(connection.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
    return connection;
  }

  // Runs the command until it prints the text.
  static void AwaitOutput(const std::string& command, const std::string& text) {
    const absl::Time end = absl::Now() + kTimeout;
    absl::StatusOr<std::string> output = OutputOf(command);
    while (absl::Now() < end && !(output.ok() && absl::StrContains(*output, text))) output = OutputOf(command);
    EXPECT_THAT(output, IsOkAndHolds(HasSubstr(text)));
  }

  std::vector<std::string> more_flags_;  // of node 0
  const TestAuthority authority_;
  const TemporaryDirectory folder_;
  const int port_ = FreePort();
  const int listen_[kNodes] = {FreePort(), FreePort()};
  TemporaryDirectory sockets_[kNodes];
  std::optional<DaemonProcess> daemons_[kNodes];
};

TEST_F(SecuredWorldTest, TrainsToTheBytesOfOneInTheClear) {
  ASSERT_NO_FATAL_FAILURE(StartSecured());
  const std::vector<std::string> secured = Train();
  for (int node = 0; node < kNodes; ++node) Spawn(node, {"--insecure=on"});
  for (int node = 0; node < kNodes; ++node) ASSERT_OK(daemons_[node]->AwaitReady()) << ReadText(LogPath(node));
  EXPECT_EQ(Train(), secured);
  EXPECT_NE(secured[0], "");
  EXPECT_THAT(ReadText(LogPath(0)), HasSubstr("address is used without authentication"));
  const std::string ctl = absl::StrCat(PARAMSHARDCTL, " --socket-dir=", sockets_[0].path());
  EXPECT_THAT(OutputOf(ctl + " version"), IsOkAndHolds(HasSubstr(absl::StrCat("--listen 0.0.0.0:", listen_[0]))));
  EXPECT_THAT(OutputOf(ctl + " metrics"), IsOkAndHolds(HasSubstr("paramshard_insecure_addresses 2")));
}

TEST_F(SecuredWorldTest, ToolsOnOtherMachinesAskAllDaemonsAtOnce) {
  ASSERT_NO_FATAL_FAILURE(StartSecured());
  Train();
  const std::string addresses = absl::StrCat("--address=", Listen(0), ",", Listen(1));
  ASSERT_OK_AND_ASSIGN(const std::string json, Remote("viewer", absl::StrCat(addresses, " -o json models")));
  const nlohmann::json answers = nlohmann::json::parse(json);
  ASSERT_EQ(answers.size(), 2);
  for (int node = 0; node < kNodes; ++node) {
    EXPECT_EQ(answers[node]["address"], Listen(node));
    EXPECT_EQ(answers[node]["answer"]["models"][0]["name"], "m");
  }
  ASSERT_OK_AND_ASSIGN(const std::string table, Remote("viewer", absl::StrCat(addresses, " models")));
  EXPECT_THAT(table, AllOf(HasSubstr(absl::StrCat("== ", Listen(0), "\n")), HasSubstr(absl::StrCat("== ", Listen(1)))));
}

TEST_F(SecuredWorldTest, ToolsDoWhatTheirCertificatesMay) {
  ASSERT_NO_FATAL_FAILURE(StartSecured());
  Train();
  const std::string one = absl::StrCat("--address=", Listen(1));
  EXPECT_THAT(Remote("viewer", absl::StrCat(one, " delete m || true")),
              IsOkAndHolds(HasSubstr("want a certificate of admin, got one of viewer")));
  EXPECT_THAT(Remote("admin", absl::StrCat(one, " import m /etc/passwd || true")),
              IsOkAndHolds(HasSubstr("ImportFile: want a process on the daemon's machine, got admin")));
  EXPECT_OK(Remote("admin", absl::StrCat(one, " sessions")));
  EXPECT_OK(Remote("admin", absl::StrCat(one, " drain")));
  EXPECT_OK(daemons_[1]->AwaitExit(kTimeout));
}

TEST_F(SecuredWorldTest, AToolWithoutTheRightCertificateHearsWhy) {
  ASSERT_NO_FATAL_FAILURE(StartSecured());
  EXPECT_THAT(OutputOf(absl::StrCat(PARAMSHARDCTL, " --address=", Listen(0), " models 2>&1 || true")),
              IsOkAndHolds(AllOf(HasSubstr("TLS certificate: a PEM file is required"), HasSubstr("on its machine"))));
  const tls::Files foreign = Install("foreign", authority_.Issue({"spiffe://example.test/paramshard/w2/admin"}));
  EXPECT_THAT(OutputOf(absl::StrCat(PARAMSHARDCTL, " ", absl::StrJoin(FlagsOf(foreign), " "),
                                    " --timeout=5s --address=", Listen(0), " models 2>&1 || true")),
              IsOkAndHolds(HasSubstr("want a member of spiffe://example.test/paramshard/w2")));
  const TestAuthority other;
  const tls::Files stranger =
      test::Install(folder_.path() + "/stranger", other.Issue({InWorld("admin")}), other.cert());
  EXPECT_THAT(OutputOf(absl::StrCat(PARAMSHARDCTL, " ", absl::StrJoin(FlagsOf(stranger), " "),
                                    " --timeout=5s --address=", Listen(0), " models 2>&1 || true")),
              IsOkAndHolds(HasSubstr(absl::StrCat("is not signed by an authority in ", stranger.ca))));
}

TEST_F(SecuredWorldTest, AToolHearsWhyNobodyAnswers) {
  EXPECT_THAT(Remote("viewer", absl::StrCat("--address=", Listen(0), " models || true")),
              IsOkAndHolds(AllOf(HasSubstr("no connection within"), HasSubstr("Connection refused"))));
  EXPECT_THAT(Remote("viewer", "--address=10.0.0.1 models; test $? = 2"),
              IsOkAndHolds(HasSubstr("want HOST:PORT of a daemon")));
  Spawn(0, {"--insecure=on"});
  Spawn(1, {"--insecure=on"});
  for (auto& daemon : daemons_) ASSERT_OK(daemon->AwaitReady());
  EXPECT_THAT(
      Remote("viewer", absl::StrCat("--address=", Listen(0), " models || true")),
      IsOkAndHolds(AllOf(HasSubstr("the other end does not use TLS"), Not(HasSubstr("ssl_transport_security")))));
}

TEST_F(SecuredWorldTest, ANodeThatIsDeniedIsLostAndStaysOut) {
  const std::string deny_file = folder_.path() + "/deny";
  std::ofstream(deny_file) << "";
  more_flags_ = {"--tls-deny-file=" + deny_file};
  ASSERT_NO_FATAL_FAILURE(StartSecured());
  Train();
  const std::string metrics = absl::StrCat(PARAMSHARDCTL, " --socket-dir=", sockets_[0].path(), " metrics");
  EXPECT_THAT(OutputOf(metrics), IsOkAndHolds(HasSubstr("world_nodes{state=\"absent\"} 0")));
  std::ofstream(deny_file) << InWorld("node/1") << "\n" << InWorld("viewer") << "\n";
  AwaitOutput(metrics, "world_nodes{state=\"absent\"} 1");
  EXPECT_THAT(OutputOf(absl::StrCat(PARAMSHARDCTL, " --socket-dir=", sockets_[0].path(), " version")),
              IsOkAndHolds(HasSubstr("node 1 (for ")));
  AwaitOutput(absl::StrCat("cat ", LogPath(0)), "certificate rejected");
  AwaitOutput(absl::StrCat("cat ", LogPath(0)), "node left node=1");
  EXPECT_THAT(ReadText(LogPath(0)), HasSubstr("node joined node=1"));
  EXPECT_THAT(ReadText(LogPath(0)), Not(HasSubstr("peer=unknown")));
  EXPECT_THAT(ReadText(LogPath(0)),
              AllOf(HasSubstr("connection closed"), HasSubstr("/node/1 is rejected by --tls-deny-file")));
  const std::string one = absl::StrCat("--address=", Listen(0));
  EXPECT_THAT(Remote("viewer", absl::StrCat(one, " models || true")), IsOkAndHolds(HasSubstr("no connection")));
  EXPECT_OK(Remote("admin", absl::StrCat(one, " models")));
  // Let in again.
  std::ofstream(deny_file) << "";
  AwaitOutput(metrics, "world_nodes{state=\"absent\"} 0");
}

TEST_F(SecuredWorldTest, WhoConnectsAndSaysNothingIsCutOff) {
  ASSERT_NO_FATAL_FAILURE(StartSecured());
  for (const wire::FileDescriptor& silent : {ConnectSilently(port_), ConnectSilently(listen_[1])}) {
    char first = 0;
    EXPECT_EQ(read(silent.get(), &first, 1), 0);
  }
}

// Node 1 trains with certificates that last for seconds.
class ShortCertificatesTest : public SecuredWorldTest {
 protected:
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(StartSecured());
    for (int rank = 0; rank < kNodes; ++rank) {
      trainers_.push_back(ChildProcess::Run([this, rank](Board& board) {
        return test::Train({.socket_dir = sockets_[rank].path(),
                            .model = "m",
                            .rank = rank,
                            .shard_size = kNodes,
                            .commits = 1'000'000'000,
                            .mistakes = false,
                            .at =
                                [&](Point point, int64_t commit) {
                                  if (point == Point::kCommitted) Reach(board, 0, static_cast<uint32_t>(commit));
                                },
                            .resume = false});
      }));
    }
    AwaitSteps();
  }
  void AwaitSteps() {
    for (ChildProcess& trainer : trainers_) {
      ASSERT_TRUE(trainer.AwaitNumber(0, trainer.board().numbers[0] + 3)) << trainer.Await(absl::ZeroDuration());
    }
  }
  // Gives node 1 a certificate with this lifetime.
  void Renew(absl::Duration lifetime) {
    Install("1", authority_.Issue({InWorld("node/1")}, {.to = absl::Now() + lifetime}));
    AwaitOutput(absl::StrCat("grep -c 'renewed certificate in use' ", LogPath(1)), absl::StrCat(++renewals_, "\n"));
  }
  std::string Metrics(int node) const {
    return absl::StrCat(PARAMSHARDCTL, " --socket-dir=", sockets_[node].path(), " metrics");
  }

  std::vector<ChildProcess> trainers_;
  int renewals_ = 0;
};

TEST_F(ShortCertificatesTest, OneEpochGoesOnOverRenewals) {
  constexpr absl::Duration kLifetime = absl::Seconds(12);
  Renew(kLifetime);
  // By then no connection uses the first certificate any more: node 0 checks once a second.
  const absl::Time end_of_first = absl::Now() + kLifetime + absl::Seconds(3);
  while (absl::Now() < end_of_first) {
    ASSERT_NO_FATAL_FAILURE(AwaitSteps());
    Renew(kLifetime);
  }
  ASSERT_NO_FATAL_FAILURE(AwaitSteps());
  EXPECT_GE(renewals_, 3);
  for (int node = 0; node < kNodes; ++node) {
    ASSERT_OK_AND_ASSIGN(const std::string metrics, OutputOf(Metrics(node)));
    EXPECT_THAT(metrics, HasSubstr("paramshard_epochs_started_total 1\n"));
    EXPECT_THAT(metrics, HasSubstr("paramshard_epochs_ended_total{reason=\"UNAVAILABLE\"} 0\n"));
  }
}

TEST_F(ShortCertificatesTest, WhoDoesNotRenewIsEndedAndNamedAndComesBackWithANewOne) {
  Renew(absl::Seconds(5));
  // Or that its rank 0 is, whichever it hears first.
  EXPECT_THAT(trainers_[1].Await(kTimeout), StatusIs(absl::StatusCode::kUnavailable, HasSubstr("node 0")));
  EXPECT_THAT(trainers_[0].Await(kTimeout), StatusIs(absl::StatusCode::kUnavailable, HasSubstr("node 1")));
  EXPECT_THAT(ReadText(LogPath(0)),
              AllOf(HasSubstr("connection closed"), HasSubstr("/node/1 has expired"), HasSubstr("renew it")));
  AwaitOutput(absl::StrCat("cat ", LogPath(1)), "failed to load renewed certificate");
  EXPECT_THAT(ReadText(LogPath(1)), AllOf(HasSubstr("TLS certificate"), HasSubstr("a certificate that is valid at")));
  AwaitOutput(Metrics(0), "world_nodes{state=\"absent\"} 1");
  Install("1", authority_.Issue({InWorld("node/1")}));
  AwaitOutput(Metrics(0), "world_nodes{state=\"absent\"} 0");
}

// A program on another machine.
class RemoteClientTest : public SecuredWorldTest {
 protected:
  absl::StatusOr<Client> Connect(const tls::Files& files, int node = 0) const {
    return Client::Connect({.address = Listen(node),
                            .tls_cert = files.cert,
                            .tls_key = files.key,
                            .tls_ca = files.ca,
                            .connect_timeout = absl::Seconds(20)});
  }
  absl::StatusOr<Client> ConnectAs(const std::string& role) const {
    return Connect(Install(role, authority_.Issue({InWorld(role)})));
  }
};

TEST_F(RemoteClientTest, DoesWhatItsCertificateMay) {
  ASSERT_NO_FATAL_FAILURE(StartSecured());
  Train();
  ASSERT_OK_AND_ASSIGN(Client viewer, ConnectAs("viewer"));
  ASSERT_OK_AND_ASSIGN(const std::vector<ModelSummary> models, viewer.Models());
  ASSERT_EQ(models.size(), 1);
  EXPECT_EQ(models[0].name, "m");
  EXPECT_OK(viewer.GetMemory().status());
  EXPECT_THAT(viewer.DeleteModel("m"),
              StatusIs(absl::StatusCode::kPermissionDenied, HasSubstr("want a certificate of admin")));

  ASSERT_OK_AND_ASSIGN(Client trainer, ConnectAs("trainer"));
  int64_t values = 0;
  EXPECT_OK(trainer.Export("m", {}, [&](const ExportedExtent& extent) {
    values += static_cast<int64_t>(extent.values.size());
    return absl::OkStatus();
  }));
  EXPECT_GT(values, 0);

  ASSERT_OK_AND_ASSIGN(Client admin, ConnectAs("admin"));
  EXPECT_OK(admin.DeleteModel("m"));
  EXPECT_THAT(admin.DeleteModel("m"), StatusIs(absl::StatusCode::kNotFound));
}

TEST_F(RemoteClientTest, SharesNoMemory) {
  ASSERT_NO_FATAL_FAILURE(StartSecured());
  ASSERT_OK_AND_ASSIGN(Client admin, ConnectAs("admin"));
  const auto refused = StatusIs(absl::StatusCode::kFailedPrecondition,
                                AllOf(HasSubstr("want a daemon on this machine"), HasSubstr("socket_dir")));
  EXPECT_THAT(admin.OpenModel(SmallModel("m")).status(), refused);
  EXPECT_THAT(admin.CreateModel(SmallModel("m")), refused);
}

TEST_F(RemoteClientTest, GoesOnWithANewCertificateWhenTheOldOneEnds) {
  ASSERT_NO_FATAL_FAILURE(StartSecured());
  const tls::Files files =
      Install("viewer", authority_.Issue({InWorld("viewer")}, {.to = absl::Now() + absl::Seconds(10)}));
  ASSERT_OK_AND_ASSIGN(Client viewer, Connect(files));
  EXPECT_OK(viewer.Models().status());
  Install("viewer", authority_.Issue({InWorld("viewer")}));
  AwaitOutput(absl::StrCat("cat ", LogPath(0)), "has expired: renew it");
  const absl::Time end = absl::Now() + kTimeout;
  while (!viewer.Models().ok() && absl::Now() < end) {
  }
  EXPECT_OK(viewer.Models().status());
}

TEST_F(RemoteClientTest, OptionsThatDoNotGoTogetherAreNamed) {
  EXPECT_THAT(Client::Connect({.socket_dir = "/a", .address = "h:1"}).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("want address or socket_dir, got both")));
  EXPECT_THAT(Client::Connect({.tls_cert = "/c"}).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("address, of a daemon on another machine")));
  EXPECT_THAT(Client::Connect({.address = "h:1", .tls_roles = {"root=a"}}).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("node=PATTERN")));
  EXPECT_THAT(Client::Connect({.address = "h:1"}).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("got no tls_cert")));
}

// Errors of a daemon that does not start.
class RefusedStartTest : public SecuredWorldTest {
 protected:
  std::string Refusal(int node, std::vector<std::string> flags) {
    flags.emplace_back("--join-timeout=3s");
    Spawn(node, std::move(flags));
    const absl::StatusOr<int> code = daemons_[node]->AwaitExit(kTimeout);
    EXPECT_OK(code.status());
    EXPECT_NE(*code, 0);
    return ReadText(LogPath(node));
  }
};

TEST_F(RefusedStartTest, AnotherNodesCertificateIsNamed) {
  EXPECT_THAT(
      Refusal(1, FlagsOf(Install("0", authority_.Issue({InWorld("node/0")})))),
      AllOf(HasSubstr("--tls-cert"), HasSubstr("want the certificate of node/1, got the certificate of node/0")));
}

TEST_F(RefusedStartTest, ACertificateThatHasEndedIsNamed) {
  const TestAuthority::Validity past = {.from = absl::Now() - absl::Hours(3), .to = absl::Now() - absl::Hours(2)};
  EXPECT_THAT(Refusal(0, FlagsOf(Install("0", authority_.Issue({InWorld("node/0")}, past)))),
              AllOf(HasSubstr("TLS certificate"), HasSubstr("a certificate that is valid at")));
}

TEST_F(RefusedStartTest, AnAddressThatNobodyCanListenOnIsNamedBeforeTheWorldIsJoined) {
  std::vector<std::string> flags = FlagsOf(Install("1", authority_.Issue({InWorld("node/1")})));
  flags.insert(flags.end(), {"--trusted-data-network=on", "--node=1", "--nodes=2", "--data-address=127.0.0.1",
                             absl::StrCat("--cluster-address=127.0.0.1:", port_), "--listen=192.0.2.7:7778"});
  const int log = open(LogPath(1).c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  DaemonProcess daemon = DaemonProcess::Spawn(PARAMSHARDD, sockets_[1].path(), flags, {.standard_error = log});
  close(log);
  EXPECT_THAT(daemon.AwaitExit(kTimeout), IsOkAndHolds(2));
  EXPECT_THAT(ReadText(LogPath(1)), HasSubstr("--listen: want an address of this machine, got 192.0.2.7:7778"));
}

TEST_F(RefusedStartTest, AnotherNumberOfNodesIsNamed) {
  Spawn(0, {"--insecure=on"});
  const int log = open(LogPath(1).c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  DaemonProcess daemon = DaemonProcess::Spawn(
      PARAMSHARDD, sockets_[1].path(),
      {"--node=1", "--nodes=3", absl::StrCat("--cluster-address=127.0.0.1:", port_), "--keeper=off"},
      {.standard_error = log});
  close(log);
  EXPECT_THAT(daemon.AwaitExit(kTimeout), IsOkAndHolds(3));
  const std::string why = "join node 1: want --nodes 2 as at node 0, got 3";
  EXPECT_THAT(ReadText(LogPath(1)), HasSubstr(why));
  AwaitOutput(absl::StrCat("cat ", LogPath(0)), "node rejected node=1 peer=ipv4:127.0.0.1:");
  EXPECT_THAT(ReadText(LogPath(0)), HasSubstr(why));
}

// A key is checked even if nothing uses it.
TEST_F(RefusedStartTest, AKeyForNcclThatOthersCanReadIsNamed) {
  std::vector<std::string> flags = FlagsOf(Install("0", authority_.Issue({InWorld("node/0")})));
  const std::string key = folder_.path() + "/psk";
  std::ofstream(key) << std::string(32, 'k');
  ASSERT_EQ(chmod(key.c_str(), 0644), 0);
  flags.push_back("--nccl-psk-file=" + key);
  EXPECT_THAT(Refusal(0, flags), HasSubstr(absl::StrCat("--nccl-psk-file ", key, ": want a key that its owner alone")));
}

TEST_F(RefusedStartTest, AnAddressOfAnotherMachineIsNamed) {
  std::vector<std::string> flags = FlagsOf(Install("1", authority_.Issue({InWorld("node/1")})));
  flags.insert(flags.end(), {"--trusted-data-network=on", "--node=1", "--nodes=2", "--data-address=192.0.2.7",
                             absl::StrCat("--cluster-address=0.0.0.0:", port_), "--keeper=off"});
  const int log = open(LogPath(1).c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  DaemonProcess daemon = DaemonProcess::Spawn(PARAMSHARDD, sockets_[1].path(), flags, {.standard_error = log});
  close(log);
  EXPECT_OK(daemon.AwaitExit(kTimeout).status());
  EXPECT_THAT(ReadText(LogPath(1)), HasSubstr("--data-address: want an address of this machine, got 192.0.2.7"));
}

// TLS tells the other end only that it was rejected.
TEST_F(RefusedStartTest, ANodeOfAnotherAuthorityDoesNotJoin) {
  Spawn(0, FlagsOf(Install("0", authority_.Issue({InWorld("node/0")}))));
  const TestAuthority other;
  const tls::Files files = test::Install(folder_.path() + "/1", other.Issue({InWorld("node/1")}), other.cert());
  EXPECT_THAT(Refusal(1, FlagsOf(files)), HasSubstr(absl::StrCat("is not signed by an authority in ", files.ca)));
}

TEST_F(RefusedStartTest, ANodeOfAnotherWorldDoesNotJoin) {
  Spawn(0, FlagsOf(Install("0", authority_.Issue({InWorld("node/0")}))));
  EXPECT_THAT(Refusal(1, FlagsOf(Install("1", authority_.Issue({"spiffe://example.test/paramshard/w2/node/1"})))),
              HasSubstr("certificate rejected"));
}

TEST_F(RefusedStartTest, ANodeInTheClearDoesNotJoin) {
  Spawn(0, FlagsOf(Install("0", authority_.Issue({InWorld("node/0")}))));
  EXPECT_THAT(Refusal(1, {"--insecure=on"}), HasSubstr("the other end may use TLS"));
  EXPECT_THAT(ReadText(LogPath(0)), HasSubstr("library=grpc"));
}

}  // namespace
}  // namespace paramshard::test
