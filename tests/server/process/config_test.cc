#include "server/process/config.h"

#include <unistd.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"

namespace paramshard::server {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Action = ParsedArguments::Action;

absl::StatusOr<ParsedArguments> Parse(const std::vector<std::string>& flags, const Environment& environment = {}) {
  std::vector<const char*> argv = {"paramshardd"};
  for (const std::string& flag : flags) argv.push_back(flag.c_str());
  return ParseArguments(static_cast<int>(argv.size()), argv.data(), environment);
}

DaemonConfig ParseConfig(const std::vector<std::string>& flags, const Environment& environment = {}) {
  const absl::StatusOr<ParsedArguments> arguments = Parse(flags, environment);
  EXPECT_OK(arguments);
  return arguments.ok() ? arguments->config : DaemonConfig();
}

TEST(ParseArgumentsTest, NothingGivenLeavesDefaults) {
  ASSERT_OK_AND_ASSIGN(const ParsedArguments arguments, Parse({}));
  EXPECT_EQ(arguments.action, Action::kServe);
  const DaemonConfig& config = arguments.config;
  EXPECT_THAT(config.devices, ElementsAre("cpu:0"));
  EXPECT_EQ(config.socket_dir, absl::StrCat("/tmp/paramshard-", getuid()));
  EXPECT_FALSE(config.listen.has_value());
  EXPECT_EQ(config.node, 0);
  EXPECT_EQ(config.nodes, 1);
  EXPECT_THAT(config.cluster_address, IsEmpty());
  EXPECT_EQ(config.step_timeout, absl::Seconds(60));
  EXPECT_EQ(config.join_timeout, absl::Seconds(60));
  EXPECT_EQ(config.doubt_timeout, absl::Minutes(5));
  EXPECT_EQ(config.drain_timeout, absl::Seconds(10));
  EXPECT_THAT(config.allow_users, IsEmpty());
  EXPECT_EQ(config.memory_limit_bytes, 0);
  EXPECT_EQ(config.save_dir, "");
  EXPECT_EQ(config.state_dir, "");
  EXPECT_EQ(config.restore, "");
  EXPECT_EQ(config.log_format, "text");
  EXPECT_EQ(config.log_level, "info");
}

TEST(ParseArgumentsTest, SocketsAreInTheRuntimeDirectoryWhereThereIsOne) {
  EXPECT_EQ(ParseConfig({}, {{"XDG_RUNTIME_DIR", "/run/user/7"}}).socket_dir, "/run/user/7/paramshard");
  EXPECT_EQ(ParseConfig({}, {{"XDG_RUNTIME_DIR", ""}}).socket_dir, absl::StrCat("/tmp/paramshard-", getuid()));
}

TEST(ParseArgumentsTest, EveryFlagAndVariableSetsItsMember) {
  struct Case {
    std::string flag;
    std::string variable;
    std::string value;
    std::string printed;
  };
  const Case cases[] = {
      {"device", "PARAMSHARD_DEVICE", "cpu:3,cpu:1", "cpu:3,cpu:1"},
      {"socket-dir", "PARAMSHARD_SOCKET_DIR", "/run/a", "/run/a"},
      {"listen", "PARAMSHARD_LISTEN", "[::1]:0", "[::1]:0"},
      {"nodes", "PARAMSHARD_NODES", "1", "1"},
      {"node", "PARAMSHARD_NODE", "0", "0"},
      {"world", "PARAMSHARD_WORLD", "a", "a"},
      {"cluster-address", "PARAMSHARD_CLUSTER_ADDRESS", "localhost:7000", "localhost:7000"},
      {"insecure", "PARAMSHARD_INSECURE", "on", "on"},
      {"data-address", "PARAMSHARD_DATA_ADDRESS", "10.0.0.3", "10.0.0.3"},
      {"trusted-data-network", "PARAMSHARD_TRUSTED_DATA_NETWORK", "on", "on"},
      {"step-timeout", "PARAMSHARD_STEP_TIMEOUT", "500ms", "500ms"},
      {"join-timeout", "PARAMSHARD_JOIN_TIMEOUT", "2m", "2m"},
      {"min-replicas", "PARAMSHARD_MIN_REPLICAS", "1", "1"},
      {"allow-minority", "PARAMSHARD_ALLOW_MINORITY", "on", "on"},
      {"replica-grace", "PARAMSHARD_REPLICA_GRACE", "3s", "3s"},
      {"state-dir", "PARAMSHARD_STATE_DIR", "/var/lib/ps//state/", "/var/lib/ps/state"},
      {"doubt-timeout", "PARAMSHARD_DOUBT_TIMEOUT", "90s", "1m30s"},
      {"drain-timeout", "PARAMSHARD_DRAIN_TIMEOUT", "3s", "3s"},
      {"allow-user", "PARAMSHARD_ALLOW_USER", "12, root", "12,root"},
      {"memory-limit", "PARAMSHARD_MEMORY_LIMIT", "512MiB", "536870912"},
      {"save-dir", "PARAMSHARD_SAVE_DIR", "/var/saves", "/var/saves"},
      {"save-keep", "PARAMSHARD_SAVE_KEEP", "5", "5"},
      {"save-keep-every", "PARAMSHARD_SAVE_KEEP_EVERY", "1000", "1000"},
      {"save-on-drain", "PARAMSHARD_SAVE_ON_DRAIN", "off", "off"},
      {"save-timeout", "PARAMSHARD_SAVE_TIMEOUT", "90s", "1m30s"},
      {"local-engine", "PARAMSHARD_LOCAL_ENGINE", "mesh", "mesh"},
      {"metrics-listen", "PARAMSHARD_METRICS_LISTEN", "[::]:9464", "[::]:9464"},
      {"nccl-library", "PARAMSHARD_NCCL_LIBRARY", "/opt/libnccl.so.2", "/opt/libnccl.so.2"},
      {"nccl-psk-file", "PARAMSHARD_NCCL_PSK_FILE", "/etc/ps/psk", "/etc/ps/psk"},
      {"log-format", "PARAMSHARD_LOG_FORMAT", "json", "json"},
      {"log-level", "PARAMSHARD_LOG_LEVEL", "debug", "debug"},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.flag);
    ASSERT_OK_AND_ASSIGN(const ParsedArguments by_flag, Parse({absl::StrCat("--", c.flag, "=", c.value)}));
    EXPECT_THAT(ConfigText(by_flag), HasSubstr(absl::StrCat(c.flag, " = ", c.printed, "  # flag\n")));
    ASSERT_OK_AND_ASSIGN(const ParsedArguments by_two_words, Parse({absl::StrCat("--", c.flag), c.value}));
    EXPECT_EQ(ConfigText(by_two_words), ConfigText(by_flag));
    ASSERT_OK_AND_ASSIGN(const ParsedArguments by_variable, Parse({}, {{c.variable, c.value}}));
    EXPECT_THAT(ConfigText(by_variable), HasSubstr(absl::StrCat(c.flag, " = ", c.printed, "  # environment\n")));
    EXPECT_THAT(by_variable.unknown_variables, IsEmpty());
  }
}

const std::vector<std::string> kCertificates = {"--tls-cert=/c.pem", "--tls-key=/k.pem", "--tls-ca=/a.pem"};

std::vector<std::string> With(const std::vector<std::string>& flags, std::vector<std::string> more) {
  more.insert(more.begin(), flags.begin(), flags.end());
  return more;
}

TEST(ParseArgumentsTest, CertificatesComeTogether) {
  const DaemonConfig config =
      ParseConfig(With(kCertificates, {"--tls-role=node=spiffe://corp/ps-{N},admin=a*", "--tls-deny-file=/d"}));
  EXPECT_EQ(config.tls_cert, "/c.pem");
  EXPECT_EQ(config.tls_key, "/k.pem");
  EXPECT_EQ(config.tls_ca, "/a.pem");
  EXPECT_EQ(config.tls_deny_file, "/d");
  EXPECT_THAT(config.tls_roles, ElementsAre("node=spiffe://corp/ps-{N}", "admin=a*"));
  for (const std::string& one : kCertificates) {
    EXPECT_THAT(Parse({one}).status(), StatusIs(absl::StatusCode::kInvalidArgument,
                                                HasSubstr("want all of --tls-cert, --tls-key and --tls-ca, or none")));
  }
}

TEST(ParseArgumentsTest, AddressesOffLoopbackNeedCertificatesOrSaySo) {
  EXPECT_OK(Parse(With(kCertificates, {"--listen=0.0.0.0:80"})));
  EXPECT_OK(Parse({"--listen=0.0.0.0:80", "--insecure=on"}));
  const std::vector<std::string> world = {"--node=1", "--nodes=2", "--cluster-address=10.0.0.1:80"};
  EXPECT_THAT(Parse(With(world, kCertificates)).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("--data-address: this machine's address")));
  const std::vector<std::string> secured = With(With(world, kCertificates), {"--data-address=10.0.0.2"});
  EXPECT_THAT(Parse(secured).status(),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("--trusted-data-network: on is required with --data-address 10.0.0.2")));
  EXPECT_OK(Parse(With(secured, {"--trusted-data-network=on"})));
  EXPECT_OK(Parse(With(With(world, kCertificates), {"--data-address=127.0.0.1"})));
}

TEST(ParseArgumentsTest, ARestoreGoesWithAFolderOfCheckpoints) {
  EXPECT_EQ(ParseConfig({"--save-dir=/saves", "--restore=latest"}).restore, "latest");
  EXPECT_EQ(ParseConfig({"--save-dir=/saves"}, {{"PARAMSHARD_RESTORE", "12000"}}).restore, "12000");
}

// The daemons of a world compare the paths as texts.
TEST(ParseArgumentsTest, AFolderOfCheckpointsHasOneText) {
  for (const char* const text : {"/saves/run", "/saves/run/", "//saves///run//", "/saves/./run/.", "/./saves/run"}) {
    EXPECT_EQ(ParseConfig({absl::StrCat("--save-dir=", text)}).save_dir, "/saves/run") << text;
  }
  EXPECT_EQ(ParseConfig({"--save-dir=//"}).save_dir, "/");
  EXPECT_EQ(ParseConfig({"--save-dir=/link/../saves/"}).save_dir, "/link/../saves");
  EXPECT_EQ(ParseConfig({"--save-dir=/saves/.run"}).save_dir, "/saves/.run");
}

TEST(ParseArgumentsTest, FlagGoesBeforeEnvironmentBeforeDefault) {
  const Environment environment = {{"PARAMSHARD_LOG_LEVEL", "debug"}, {"PARAMSHARD_DEVICE", "cpu:7,cpu:8"}};
  EXPECT_EQ(ParseConfig({}, environment).log_level, "debug");
  EXPECT_EQ(ParseConfig({"--log-level=error"}, environment).log_level, "error");
  EXPECT_THAT(ParseConfig({"--device=cpu:0"}, environment).devices, ElementsAre("cpu:0"));
  EXPECT_EQ(ParseConfig({}, {{"PARAMSHARD_LOG_LEVEL", ""}}).log_level, "info");
}

TEST(ParseArgumentsTest, WrongVariableThatAFlagOverridesIsNotRead) {
  EXPECT_EQ(ParseConfig({"--nodes=1"}, {{"PARAMSHARD_NODES", "many"}}).nodes, 1);
}

TEST(ParseArgumentsTest, ListsMayBeRepeatedAndScalarsTakeTheLast) {
  EXPECT_THAT(ParseConfig({"--device=cpu:4,cpu:0", "--device", "cpu:2"}).devices,
              ElementsAre("cpu:4", "cpu:0", "cpu:2"));
  EXPECT_EQ(ParseConfig({"--log-level=debug", "--log-level=error"}).log_level, "error");
}

TEST(ParseArgumentsTest, SeveralNodesTakeAnAddress) {
  const DaemonConfig config = ParseConfig({"--node=1", "--nodes=2", "--cluster-address=127.0.0.1:7000"});
  EXPECT_EQ(config.node, 1);
  EXPECT_EQ(config.nodes, 2);
  EXPECT_EQ(config.cluster_address, "127.0.0.1:7000");
}

TEST(ParseArgumentsTest, SavesAreEveryNumberOfCommitsOrEveryTime) {
  const DaemonConfig by_commits = ParseConfig({"--save-dir=/s", "--save-every=500"});
  EXPECT_EQ(by_commits.save_every_commits, 500);
  EXPECT_EQ(by_commits.save_every_time, absl::ZeroDuration());
  const DaemonConfig by_time = ParseConfig({"--save-dir=/s", "--save-every=500", "--save-every=10m"});
  EXPECT_EQ(by_time.save_every_commits, 0);
  EXPECT_EQ(by_time.save_every_time, absl::Minutes(10));
  ASSERT_OK_AND_ASSIGN(const ParsedArguments arguments, Parse({"--save-dir=/s", "--save-every=10m"}));
  EXPECT_THAT(ConfigText(arguments), HasSubstr("save-every = 10m  # flag\n"));
}

TEST(ParseArgumentsTest, WrongInputIsRefusedNamingFlagAndExpectation) {
  struct Case {
    std::vector<std::string> flags;
    std::string message;
  };
  const Case cases[] = {
      {{"--device=gpu:0"}, "--device: device: want cpu:I or cuda:I with I >= 0, got gpu:0"},
      {{"--device=cpu:-1"}, "--device: device: want cpu:I or cuda:I with I >= 0"},
      {{"--device=cpu:0,"}, "--device: device: want cpu:I or cuda:I with I >= 0"},
      {{"--device=cpu:1,cpu:0", "--device=cpu:1"}, "--device: want distinct devices, got cpu:1 twice"},
      {{"--device=cpu:1,cpu:01"}, "want distinct devices, got cpu:1 twice"},
      {{"--socket-dir=" + std::string(200, 'd')}, "--socket-dir: want a path of at most"},
      {{"--listen=0.0.0.0:80"}, "--listen: --tls-cert, --tls-key and --tls-ca are required"},
      {{"--nodes=2", "--cluster-address=10.0.0.1:80"},
       "--cluster-address: --tls-cert, --tls-key and --tls-ca are required"},
      {{"--tls-role=root=a"}, "--tls-role: want node=PATTERN"},
      {{"--tls-role=admin=a"}, "--tls-role: --tls-cert, --tls-key and --tls-ca are required"},
      {{"--tls-deny-file=/d"}, "--tls-deny-file: --tls-cert, --tls-key and --tls-ca are required"},
      {{"--insecure=maybe"}, "--insecure: want on|off"},
      {{"--data-address=eth0"}, "--data-address: want an IP address such as 10.0.0.3"},
      {{"--metrics-listen=9464"}, "--metrics-listen: "},
      {{"--metrics-listen=127.0.0.1:65536"}, "--metrics-listen: port: want an integer from 0"},
      {{"--metrics-listen=localhost:80"}, "--metrics-listen: want an IP address such as 10.0.0.3, got \"localhost\""},
      {{"--cluster-address=localhost:0"}, "--cluster-address: port: want an integer from 1"},
      {{"--node=1"}, "--node: want a number below --nodes (1), got 1"},
      {{"--node=-1"}, "--node: want an integer from 0 up"},
      {{"--min-replicas=2"}, "--min-replicas: want at most --nodes (1), got 2"},
      {{"--nodes=4", "--cluster-address=localhost:7000", "--min-replicas=2"},
       "--min-replicas: want more than half of --nodes (4), got 2"},
      {{"--nodes=0"}, "--nodes: want an integer from 1 up"},
      {{"--nodes=2"}, "--cluster-address: the address of node 0 is required"},
      {{"--step-timeout=10"}, "--step-timeout: want a positive duration of at most 24h"},
      {{"--step-timeout=24h1s"}, "--step-timeout: want a positive duration of at most 24h"},
      {{"--drain-timeout=inf"}, "--drain-timeout: want a positive duration of at most 24h"},
      {{"--allow-user=no-such-user-here"}, "--allow-user: want a user's number or name"},
      {{"--memory-limit=lots"}, "--memory-limit: want a number of bytes"},
      {{"--save-dir=saves"}, "--save-dir: want an absolute path, got \"saves\""},
      {{"--save-every=2"}, "--save-every: --save-dir, the folder of checkpoints, is required"},
      {{"--save-dir=/s", "--save-every=0"}, "--save-every: want an integer from 1 up"},
      {{"--save-dir=/s", "--save-every=-1s"}, "--save-every: want a positive duration of at most 24h"},
      {{"--save-keep=0"}, "--save-keep: want an integer from 1 up"},
      {{"--save-keep-every=-1"}, "--save-keep-every: want an integer from 0 up"},
      {{"--save-on-drain=yes"}, "--save-on-drain: want on|off, got \"yes\""},
      {{"--save-dir=/saves", "--restore=newest"}, "--restore: want latest or the number of a step, got \"newest\""},
      {{"--save-dir=/saves", "--restore=-1"}, "--restore: want latest or the number of a step"},
      {{"--restore=latest"}, "--save-dir: the folder of checkpoints is required with --restore"},
      {{"--log-format=xml"}, "--log-format: want text|json, got \"xml\""},
      {{"--log-level=loud"}, "--log-level: want debug|info|warning|error, got \"loud\""},
      {{"--log-level"}, "--log-level: a value is required"},
      {{"--log-level="}, "--log-level: a value is required"},
      {{"--log-level=", "--device=cpu:0"}, "--log-level: a value is required"},
      {{"--device", "--log-level=info"}, "--device: a value is required"},
      {{"--help=yes"}, "--help: takes no value, got yes"},
      {{"--divice=cpu:0"}, "--divice: unknown flag; the nearest is --device"},
      {{"--sokcet-dir=/tmp"}, "--sokcet-dir: unknown flag; the nearest is --socket-dir"},
      {{"--printconfig"}, "the nearest is --print-config"},
      {{"--"}, "--: unknown flag"},
      {{"cpu:0"}, "argument cpu:0: want a flag --name=value"},
      {{"-h"}, "argument -h: want a flag --name=value"},
  };
  for (const Case& c : cases) {
    EXPECT_THAT(Parse(c.flags), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(c.message)));
  }
}

TEST(ParseArgumentsTest, GpusAreDevicesToo) {
  EXPECT_THAT(ParseConfig({"--device=cuda:1,cuda:0"}).devices, ElementsAre("cuda:1", "cuda:0"));
}

TEST(ParseArgumentsTest, WrongVariableIsNamed) {
  EXPECT_THAT(
      Parse({}, {{"PARAMSHARD_STEP_TIMEOUT", "soon"}}),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("PARAMSHARD_STEP_TIMEOUT: want a positive duration")));
}

TEST(ParseArgumentsTest, UnknownVariablesAreListed) {
  ASSERT_OK_AND_ASSIGN(const ParsedArguments arguments, Parse({}, {{"PARAMSHARD_STEP_TIMOUT", "1s"},
                                                                   {"PATH", "/bin"},
                                                                   {"PARAMSHARD_NODE", "0"},
                                                                   {"PARAMSHARD_TEST_DEVICES", "cuda"}}));
  EXPECT_THAT(arguments.unknown_variables, ElementsAre("PARAMSHARD_STEP_TIMOUT"));
}

TEST(ParseArgumentsTest, HelpAndVersionAreAnsweredWhateverTheSettings) {
  const Environment wrong = {{"PARAMSHARD_NODES", "many"}};
  EXPECT_EQ(Parse({"--help"}, wrong)->action, Action::kHelp);
  EXPECT_EQ(Parse({"--version", "--help"}, wrong)->action, Action::kVersion);
  EXPECT_EQ(Parse({"--help", "--version", "--help"}, wrong)->action, Action::kHelp);
  EXPECT_EQ(Parse({"--device=gpu:0", "--version"}, wrong)->action, Action::kVersion);
  EXPECT_FALSE(Parse({"--print-config"}, wrong).ok());
  EXPECT_EQ(Parse({"--print-config"})->action, Action::kPrintConfig);
}

TEST(HelpTextTest, NamesEveryFlag) {
  EXPECT_THAT(HelpText(), AllOf(HasSubstr("--device=cpu:I|cuda:I,..."), HasSubstr("--allow-user=USER,..."),
                                HasSubstr("--log-level=LEVEL"), HasSubstr("--print-config")));
}

TEST(ConfigTextTest, HasEverySettingWithItsSource) {
  ASSERT_OK_AND_ASSIGN(const ParsedArguments arguments,
                       Parse({"--node=0"}, {{"PARAMSHARD_LISTEN", "localhost:0"}, {"XDG_RUNTIME_DIR", "/run/user/7"}}));
  EXPECT_EQ(ConfigText(arguments),
            "device = cpu:0  # default\n"
            "socket-dir = /run/user/7/paramshard  # default\n"
            "listen = localhost:0  # environment\n"
            "node = 0  # flag\n"
            "nodes = 1  # default\n"
            "world =   # default\n"
            "cluster-address =   # default\n"
            "tls-cert =   # default\n"
            "tls-key =   # default\n"
            "tls-ca =   # default\n"
            "tls-role =   # default\n"
            "tls-deny-file =   # default\n"
            "insecure = off  # default\n"
            "data-address =   # default\n"
            "trusted-data-network = off  # default\n"
            "step-timeout = 1m  # default\n"
            "reader-hold = 250ms  # default\n"
            "mirror =   # default\n"
            "mirror-activate = auto  # default\n"
            "mirror-image-memory =   # default\n"
            "join-timeout = 1m  # default\n"
            "min-replicas =   # default\n"
            "allow-minority = off  # default\n"
            "replica-grace = 10s  # default\n"
            "state-dir =   # default\n"
            "doubt-timeout = 5m  # default\n"
            "drain-timeout = 10s  # default\n"
            "allow-user =   # default\n"
            "trust-gpu-readers = off  # default\n"
            "end-stuck-readers = off  # default\n"
            "memory-limit = 0  # default\n"
            "save-dir =   # default\n"
            "save-every =   # default\n"
            "save-keep = 3  # default\n"
            "save-keep-every = 0  # default\n"
            "save-on-drain = on  # default\n"
            "save-timeout = 10m  # default\n"
            "restore =   # default\n"
            "restore-timeout = 8m  # default\n"
            "local-engine = direct  # default\n"
            "nccl-library =   # default\n"
            "nccl-psk-file =   # default\n"
            "metrics-listen =   # default\n"
            "keeper = on  # default\n"
            "log-format = text  # default\n"
            "log-level = info  # default\n");
}

TEST(ProcessEnvironmentTest, HoldsTheVariablesOfTheProcess) {
  setenv("PARAMSHARD_CONFIG_TEST", "a=b", 1);
  EXPECT_EQ(ProcessEnvironment()["PARAMSHARD_CONFIG_TEST"], "a=b");
}

}  // namespace
}  // namespace paramshard::server
