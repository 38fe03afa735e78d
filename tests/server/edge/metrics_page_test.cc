// The metrics of a real daemon, by all ways.
#include "server/edge/metrics_page.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/base/version.h"
#include "tests/server/edge/daemon_client.h"
#include "tests/server/edge/test_session.h"
#include "tests/server/state/test_spec.h"
#include "tests/server/training/command.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_authority.h"

namespace paramshard::server {
namespace {

using ::testing::Contains;
using ::testing::Ge;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Key;
using ::testing::Not;
using ::testing::Pair;
using ::testing::StartsWith;

using Stub = v1::AdminService::Stub;

// Values by series, as the page names them.
using Series = std::map<std::string, double>;

Series SeriesOf(const std::string& page) {
  Series series;
  for (const absl::string_view line : absl::StrSplit(page, '\n', absl::SkipEmpty())) {
    if (absl::StartsWith(line, "#")) continue;
    const size_t space = line.rfind(' ');
    double value = 0;
    EXPECT_TRUE(absl::SimpleAtod(line.substr(space + 1), &value)) << line;
    EXPECT_TRUE(series.emplace(line.substr(0, space), value).second) << line;
  }
  return series;
}

// Returns the answer of the server at IP:PORT to a request.
std::string AnswerOf(const std::string& address, const std::string& request) {
  const size_t colon = address.rfind(':');
  sockaddr_in name{};
  int port = 0;
  EXPECT_TRUE(absl::SimpleAtoi(address.substr(colon + 1), &port)) << address;
  name.sin_family = AF_INET;
  name.sin_port = htons(static_cast<uint16_t>(port));
  EXPECT_EQ(inet_pton(AF_INET, address.substr(0, colon).c_str(), &name.sin_addr), 1) << address;
  const wire::FileDescriptor connection(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_EQ(connect(connection.get(), reinterpret_cast<sockaddr*>(&name), sizeof(name)), 0);
  EXPECT_EQ(send(connection.get(), request.data(), request.size(), MSG_NOSIGNAL), static_cast<ssize_t>(request.size()));
  std::string answer;
  char bytes[4096];
  for (ssize_t size = 0; (size = recv(connection.get(), bytes, sizeof(bytes), 0)) > 0;) answer.append(bytes, size);
  return answer;
}

class MetricsPageTest : public DaemonTestBase {
 protected:
  std::string Page() {
    const auto response = client_->Call(client_->admin(), &Stub::GetMetrics, v1::GetMetricsRequest());
    EXPECT_OK(response);
    return response.value_or(v1::GetMetricsResponse()).text();
  }
  Series All() { return SeriesOf(Page()); }
  void Create(const std::string& model) {
    EXPECT_OK(client_->CreateModel(MakeSpec(model, {MakeUnit("u", {MakeParameter("w", {4, 4})})})));
  }
};

TEST_F(MetricsPageTest, ADaemonSaysWhatItIs) {
  const Series series = All();
  EXPECT_THAT(
      series,
      Contains(
          Pair(absl::StrCat("paramshard_build_info{version=\"", kVersion, "\",build_type=\"", kBuildType, "\"}"), 1)));
  EXPECT_THAT(series, Contains(Pair("paramshard_world_nodes{state=\"present\"}", 1)));
  EXPECT_THAT(series, Contains(Pair("paramshard_world_nodes{state=\"absent\"}", 0)));
  EXPECT_THAT(series, Contains(Pair("paramshard_device_healthy{device=\"cpu:0\"}", 1)));
  EXPECT_THAT(series, Contains(Pair("paramshard_device_healthy{device=\"cpu:1\"}", 1)));
  EXPECT_THAT(series, Contains(Pair("paramshard_rank_wait_seconds_total{rank=\"1\"}", 0)));
  EXPECT_THAT(series, Contains(Pair("process_open_fds", Ge(3))));
  // Nobody has said how often this process was started, and it has no certificate.
  EXPECT_THAT(series, Not(Contains(Key("paramshard_server_restarts_total"))));
  EXPECT_THAT(series, Not(Contains(Key("paramshard_tls_not_after_timestamp_seconds"))));
}

TEST_F(MetricsPageTest, ModelsAndTheirTrainersAreShown) {
  Create("m");
  Series series = All();
  EXPECT_THAT(series, Contains(Pair("paramshard_sessions{model=\"m\"}", 0)));
  EXPECT_THAT(series, Contains(Pair("paramshard_commit_number{model=\"m\"}", 0)));
  EXPECT_THAT(series, Not(Contains(Key("paramshard_last_commit_timestamp_seconds{model=\"m\"}"))));
  EXPECT_THAT(series, Contains(Pair("paramshard_memory_bytes{device=\"cpu:0\",class=\"master\"}", Ge(8 * 4))));
  double memory = 0;
  for (const auto& [name, value] : series) memory += absl::StartsWith(name, "paramshard_memory_bytes") ? value : 0;
  ASSERT_OK_AND_ASSIGN(const auto counted, client_->Call(client_->admin(), &Stub::GetMemory, v1::GetMemoryRequest()));
  EXPECT_EQ(memory, static_cast<double>(counted.total_bytes()));

  TestSession first(socket_dir()), second(socket_dir());
  first.Attach(MakeAttach("m", 0));
  second.Attach(MakeAttach("m", 1));
  ASSERT_TRUE(first.AwaitStarted());
  ASSERT_TRUE(second.AwaitStarted());
  series = All();
  EXPECT_THAT(series, Contains(Pair("paramshard_sessions{model=\"m\"}", 2)));
  EXPECT_THAT(series, Contains(Pair("paramshard_epochs_started_total", 1)));
}

TEST_F(MetricsPageTest, ModelsBeyondTheFirstAreOneSeries) {
  for (size_t i = 0; i < MetricsPage::kMostModels + 3; ++i) {
    Create(absl::StrCat("model", i));
    All();
  }
  // A model that is gone makes no room: others would have as many labels as they like.
  ASSERT_OK([&] {
    v1::DeleteModelRequest request;
    request.set_model("model0");
    return client_->Call(client_->trainer(), &v1::TrainerService::Stub::DeleteModel, request).status();
  }());
  Create("a");
  const Series series = All();
  size_t models = 0;
  for (const auto& [name, value] : series) models += absl::StartsWith(name, "paramshard_sessions{") ? 1 : 0;
  EXPECT_EQ(models, MetricsPage::kMostModels) << "all of the first but one, and the others";
  EXPECT_THAT(series, Contains(Key("paramshard_sessions{model=\"model15\"}")));
  EXPECT_THAT(series, Contains(Key("paramshard_sessions{model=\"other\"}")));
  EXPECT_THAT(series, Not(Contains(Key("paramshard_sessions{model=\"a\"}"))));
}

TEST_F(MetricsPageTest, CallsThatFailAreCountedByTheirCode) {
  v1::ListShardsRequest request;
  request.set_model("nope");
  EXPECT_FALSE(client_->Call(client_->admin(), &Stub::ListShards, request).ok());
  v1::ListModelsResponse response;
  const auto context = DaemonClient::ContextWith("a wrong token");
  EXPECT_FALSE(client_->admin().ListModels(context.get(), v1::ListModelsRequest(), &response).ok());
  const Series series = All();
  EXPECT_THAT(series, Contains(Pair("paramshard_rpc_failures_total{code=\"NOT_FOUND\"}", 1)));
  EXPECT_THAT(series, Contains(Pair("paramshard_rpc_failures_total{code=\"UNAUTHENTICATED\"}", 1)));
  EXPECT_THAT(series, Contains(Pair("paramshard_rpc_failures_total{code=\"INTERNAL\"}", 0)));
}

TEST_F(MetricsPageTest, AMirrorSaysWhatItReceivesAndHowLongItTakes) {
  StartDaemon([](DaemonConfig& config) {
    config.listen = "127.0.0.1:0";
    config.insecure = true;
  });
  Create("m");
  const test::TemporaryDirectory beside;
  DaemonConfig config = Config();
  config.socket_dir = beside.path();
  config.mirror = daemon_->tcp_address();
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<Daemon> mirror, Daemon::Start(config));
  const std::string active = "paramshard_mirror_active_timestamp_seconds{model=\"m\"}";
  EXPECT_THAT(All(), Not(Contains(Key(active))));
  client_ = std::make_unique<DaemonClient>(beside.path());
  const absl::Time deadline = absl::Now() + absl::Minutes(1);
  Series series;
  while (!series.contains(active) && absl::Now() < deadline) series = All();
  EXPECT_THAT(series, Contains(Pair(active, Ge(1.7e9))));
  EXPECT_THAT(series, Contains(Pair("paramshard_mirror_received_bytes_total", Ge(4 * 4))));
  for (const char* const phase : {"wait", "transfer", "activate"}) {
    const std::string name = absl::StrCat("paramshard_mirror_version_seconds_count{phase=\"", phase, "\"}");
    EXPECT_THAT(series, Contains(Pair(name, 1)));
  }
  client_.reset();
}

TEST_F(MetricsPageTest, SessionsThatAreEndedAreFailures) {
  Create("m");
  TestSession session(socket_dir());
  session.Attach(MakeAttach("nope", 0));
  EXPECT_FALSE(session.Finish().ok());
  EXPECT_THAT(All(), Contains(Pair("paramshard_rpc_failures_total{code=\"NOT_FOUND\"}", 1)));
}

TEST_F(MetricsPageTest, SavesAreCountedAndTimed) {
  const test::TemporaryDirectory saves;
  StartDaemon([&](DaemonConfig& config) { config.save_dir = saves.path(); });
  Create("m");
  EXPECT_THAT(All(), Not(Contains(Key("paramshard_last_save_timestamp_seconds{model=\"m\"}"))));
  v1::SaveModelRequest request;
  request.set_model("m");
  request.set_wait(true);
  for (int i = 0; i < 2; ++i) ASSERT_OK(client_->Call(client_->admin(), &Stub::SaveModel, request));
  const Series series = All();
  EXPECT_THAT(series, Contains(Pair("paramshard_saves_total{result=\"published\"}", 1)));
  EXPECT_THAT(series, Contains(Pair("paramshard_saves_total{result=\"already_saved\"}", 1)));
  EXPECT_THAT(series, Contains(Pair("paramshard_save_seconds_count", 1)));
  EXPECT_THAT(series, Contains(Pair("paramshard_last_save_timestamp_seconds{model=\"m\"}", Ge(1.7e9))));
  client_.reset();
  daemon_.reset();
}

TEST_F(MetricsPageTest, TheEndOfTheCertificateIsThatOfTheFile) {
  const test::TestAuthority authority;
  const test::TemporaryDirectory folder;
  const std::string uri = absl::StrCat(test::kWorldUri, "/node/0");
  const absl::Time end = absl::FromUnixSeconds(absl::ToUnixSeconds(absl::Now()) + 3600);
  const auto install = [&](absl::Time until) {
    return test::Install(folder.path(), authority.Issue({uri}, {.to = until}), authority.cert());
  };
  const tls::Files files = install(end);
  StartDaemon([&](DaemonConfig& config) {
    config.tls_cert = files.cert;
    config.tls_key = files.key;
    config.tls_ca = files.ca;
  });
  const std::string name = "paramshard_tls_not_after_timestamp_seconds";
  EXPECT_THAT(All(), Contains(Pair(name, static_cast<double>(absl::ToUnixSeconds(end)))));
  install(end + absl::Hours(1));
  EXPECT_THAT(All(), Contains(Pair(name, static_cast<double>(absl::ToUnixSeconds(end) + 3600))));
  unlink(files.cert.c_str());
  EXPECT_THAT(All(), Not(Contains(Key(name))));
}

TEST_F(MetricsPageTest, RestartsAreThoseThatTheKeeperSays) {
  client_.reset();
  daemon_.reset();
  ASSERT_OK_AND_ASSIGN(daemon_, Daemon::Start(Config(), OpenDevices, {}, {.restarts = 3}));
  client_ = std::make_unique<DaemonClient>(socket_dir());
  EXPECT_THAT(All(), Contains(Pair("paramshard_server_restarts_total", 3)));
}

class MetricsListenTest : public MetricsPageTest {
 protected:
  MetricsListenTest() {
    StartDaemon([](DaemonConfig& config) { config.metrics_listen = "127.0.0.1:0"; });
  }
};

TEST_F(MetricsListenTest, ThePageIsServedOverHttp) {
  Create("m");
  const std::string answer = AnswerOf(daemon_->metrics_address(), "GET /metrics HTTP/1.1\r\n\r\n");
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n"));
  Series over_http = SeriesOf(answer.substr(answer.find("\r\n\r\n") + 4));
  Series by_call = All();
  EXPECT_THAT(over_http, Contains(Pair("paramshard_sessions{model=\"m\"}", 0)));
  for (const auto& [name, value] : by_call) EXPECT_THAT(over_http, Contains(Key(name)));
  EXPECT_EQ(over_http.size(), by_call.size());
}

TEST_F(MetricsListenTest, NothingElseIsServedThere) {
  EXPECT_THAT(AnswerOf(daemon_->metrics_address(), "GET / HTTP/1.1\r\n\r\n"), StartsWith("HTTP/1.1 404 "));
  EXPECT_THAT(AnswerOf(daemon_->metrics_address(), "POST /metrics HTTP/1.1\r\n\r\n"), StartsWith("HTTP/1.1 405 "));
}

TEST_F(MetricsListenTest, AnAddressThatCannotBeHadEndsTheStartNamingTheFlag) {
  const std::string taken = daemon_->metrics_address();
  const test::TemporaryDirectory other;
  DaemonConfig config = Config();
  config.socket_dir = other.path();
  config.metrics_listen = taken;
  EXPECT_THAT(Daemon::Start(config).status(),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr(absl::StrCat("--metrics-listen: listen on ", taken))));
  config.metrics_listen = "203.0.113.7:80";
  EXPECT_THAT(Daemon::Start(config).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("--metrics-listen: want an address of this machine, got 203.0.113.7:80")));
}

TEST_F(MetricsPageTest, NothingListensUnlessItIsAskedTo) { EXPECT_THAT(daemon_->metrics_address(), IsEmpty()); }

TEST_F(MetricsPageTest, PrometheusFindsNothingToSay) {
  if (std::system("command -v promtool >/dev/null") != 0) GTEST_SKIP() << "promtool is not here (Debian: prometheus)";
  const test::TemporaryDirectory folder, saves;
  StartDaemon([&](DaemonConfig& config) { config.save_dir = saves.path(); });
  Create("m");
  const std::string file = folder.path() + "/page";
  std::ofstream(file) << Page();
  EXPECT_EQ(std::system(absl::StrCat("promtool check metrics <", file, " >&2").c_str()), 0);
  client_.reset();
  daemon_.reset();
}

}  // namespace
}  // namespace paramshard::server
