#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/ctl/npy.h"
#include "common/safetensors/safetensors_file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/client/ctl/fake_daemon.h"
#include "tests/client/ctl/run_ctl.h"
#include "tests/common/checkpoint/saved_model.h"
#include "tests/common/safetensors_files.h"
#include "tests/support/temporary_directory.h"

namespace paramshard::ctl {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;
using ::testing::UnorderedElementsAre;

nlohmann::json JsonOutput(const FakeDaemon& daemon, std::vector<std::string> arguments) {
  arguments.insert(arguments.end(), {"-o", "json"});
  return nlohmann::json::parse(Output(daemon, arguments));
}

v1::Shard NewShard(const std::string& parameter, int rank) {
  v1::Shard shard;
  shard.set_parameter(parameter);
  shard.set_rank(rank);
  shard.set_format(v1::FORMAT_MXFP8);
  shard.set_plane_bytes(int64_t{3} << 30);
  return shard;
}

v1::VerifyModelResponse NewVerified(const std::string& parameter, bool match) {
  v1::VerifyModelResponse response;
  response.mutable_extent()->set_parameter(parameter);
  response.mutable_extent()->set_planes_match(match);
  response.mutable_extent()->set_master_hash("0123456789abcdef0123456789abcdef");
  return response;
}

v1::VerifyModelResponse NewSummary(int64_t extents, int64_t mismatches) {
  v1::VerifyModelResponse response;
  response.mutable_summary()->set_version(7);
  response.mutable_summary()->set_commit_number(8);
  response.mutable_summary()->set_extent_count(extents);
  response.mutable_summary()->set_mismatch_count(mismatches);
  response.mutable_summary()->set_state_hash("fedcba9876543210fedcba9876543210");
  return response;
}

TEST(CtlTest, ModelsAreATableOrJson) {
  FakeDaemon daemon;
  v1::ModelSummary& model = *daemon.service().answers.models.add_models();
  model.set_name("tiny");
  model.set_element_count(int64_t{1} << 40);
  model.set_world_size(2);
  EXPECT_THAT(Output(daemon, {"models"}), AllOf(StartsWith("MODEL"), HasSubstr("\ntiny "), HasSubstr("1099511627776")));
  const nlohmann::json json = JsonOutput(daemon, {"models"});
  EXPECT_EQ(json["models"][0]["name"], "tiny");
  EXPECT_EQ(json["models"][0]["elementCount"], "1099511627776");
  EXPECT_EQ(json["models"][0]["running"], false);
}

TEST(CtlTest, ALogLevelIsShownOrSet) {
  FakeDaemon daemon;
  daemon.service().answers.version.set_log_level(v1::LOG_LEVEL_INFO);
  daemon.service().answers.log_level.set_previous(v1::LOG_LEVEL_WARNING);
  EXPECT_EQ(Output(daemon, {"log-level"}), "info\n");
  EXPECT_EQ(daemon.service().requests.log_level.level(), v1::LOG_LEVEL_UNSPECIFIED);
  EXPECT_EQ(Output(daemon, {"log-level", "debug"}), "was warning\n");
  EXPECT_EQ(daemon.service().requests.log_level.level(), v1::LOG_LEVEL_DEBUG);
  EXPECT_EQ(JsonOutput(daemon, {"log-level", "error"})["previous"], "LOG_LEVEL_WARNING");
  EXPECT_EQ(daemon.service().requests.log_level.level(), v1::LOG_LEVEL_ERROR);
}

TEST(CtlTest, WhichNodeIsRightIsSaidByItsNumber) {
  FakeDaemon daemon;
  v1::HealModelResponse& answer = daemon.service().answers.heal;
  answer.set_ordered(true);
  const auto add = [&](v1::HealFate fate, const std::string& history, int64_t commit_number) {
    v1::HealNode& node = *answer.add_nodes();
    node.set_node(answer.nodes_size() - 1);
    node.set_fate(fate);
    node.set_history_id(history);
    node.set_commit_number(commit_number);
    return &node;
  };
  add(v1::HEAL_FATE_GIVEN, "aa", 7);
  add(v1::HEAL_FATE_GIVEN_UP, "bb", 12);
  add(v1::HEAL_FATE_NONE, "", 0)->set_why_none("gone");
  EXPECT_EQ(Output(daemon, {"heal", "m", "--from=0"}),
            "the next epoch begins with the state that is right, on all nodes\n"
            "NODE  HISTORY  COMMIT  STATE\n"
            "   0  aa            7  is right\n"
            "   1  bb           12  is given up\n"
            "   2  -             -  none: gone\n");
  EXPECT_EQ(daemon.service().requests.heal.model(), "m");
  EXPECT_TRUE(daemon.service().requests.heal.has_from_node());
  EXPECT_EQ(daemon.service().requests.heal.from_node(), 0);
  answer.set_ordered(false);
  EXPECT_THAT(Output(daemon, {"heal", "m", "--from=2"}),
              StartsWith("nothing to do: all known nodes have the same state\n"));
}

TEST(CtlTest, ModelsSayFromWhichNodeTheNextEpochHeals) {
  FakeDaemon daemon;
  v1::ModelSummary& model = *daemon.service().answers.models.add_models();
  model.set_name("tiny");
  model.set_heal_from_node(0);
  model.set_last_end("over");
  EXPECT_THAT(Output(daemon, {"models"}), HasSubstr("the next epoch begins with the state of node 0; over"));
}

TEST(CtlTest, ModelsSayWhyNoEpochStarts) {
  FakeDaemon daemon;
  v1::ModelSummary& model = *daemon.service().answers.models.add_models();
  model.set_name("tiny");
  model.set_why_no_epoch("waits: node 1 (ranks 2..3) is absent");
  model.set_last_end("over");
  EXPECT_THAT(Output(daemon, {"models"}), HasSubstr("waits: node 1 (ranks 2..3) is absent; over"));
}

TEST(CtlTest, ModelsTellARefusalOnce) {
  FakeDaemon daemon;
  v1::ModelSummary& model = *daemon.service().answers.models.add_models();
  model.set_name("tiny");
  model.set_why_no_epoch("waits: 0 of 2; the last start was refused: start epoch of tiny: want one spec");
  model.set_last_end("FAILED_PRECONDITION: start epoch of tiny: want one spec");
  EXPECT_THAT(Output(daemon, {"models"}),
              EndsWith("waits: 0 of 2; the last start was refused: start epoch of tiny: want one spec\n"));
}

TEST(CtlTest, ModelsShowThoseThatOnlyOtherNodesHave) {
  FakeDaemon daemon;
  v1::AwaitedModel& model = *daemon.service().answers.models.add_awaited_models();
  model.set_name("elsewhere");
  model.set_why_no_epoch("waits: 1 of 3");
  const std::string output = Output(daemon, {"models"});
  EXPECT_THAT(output, HasSubstr("elsewhere  "));
  EXPECT_THAT(output, EndsWith("  waits: 1 of 3\n"));
}

// Two ranks of node 1, one of which waits; gathers overlap.
v1::GetTraceResponse NewTrace() {
  v1::GetTraceResponse trace;
  trace.set_node(1);
  trace.set_now_ns(9'000'000);
  v1::ModelTrace& model = *trace.add_models();
  model.set_model("tiny");
  model.set_epoch(3);
  model.add_units("layer0");
  const auto add = [&](v1::TraceSpanKind kind, int rank, int64_t begin_ns) {
    v1::TraceSpan& span = *model.add_spans();
    span.set_kind(kind);
    span.set_rank(rank);
    span.set_begin_ns(begin_ns);
    span.set_command(7);
    span.set_commit_number(12);
    return &span;
  };
  v1::TraceSpan* gather = add(v1::TRACE_SPAN_KIND_GATHER, 2, 1'000'000);
  gather->set_unit(0);
  gather->set_bytes(4096);
  gather->set_end_ns(3'000'000);
  gather = add(v1::TRACE_SPAN_KIND_GATHER, 2, 2'000'000);
  gather->set_unit(9);
  gather->set_end_ns(4'000'000);
  add(v1::TRACE_SPAN_KIND_GATHER, 3, 2'000'000)->set_end_ns(2'500'000);
  v1::TraceSpan* const hold = add(v1::TRACE_SPAN_KIND_HOLD, 2, 4'000'000);
  hold->set_end_ns(4'500'000);
  hold->add_readers("eval (pid 12)");
  hold->add_readers("and 2 more");
  add(v1::TRACE_SPAN_KIND_WAIT, 2, 5'000'000)->set_waits_for(3);
  return trace;
}

TEST(CtlTest, ATraceIsOneDocumentOfEventsThatNest) {
  FakeDaemon daemon;
  daemon.service().answers.trace = NewTrace();
  const nlohmann::json json = nlohmann::json::parse(Output(daemon, {"trace", "--steps=5", "--model", "tiny"}));
  EXPECT_EQ(daemon.service().requests.trace.steps(), 5);
  EXPECT_EQ(daemon.service().requests.trace.model(), "tiny");
  EXPECT_FALSE(daemon.service().requests.trace.only_clock());
  EXPECT_GE(json["metadata"]["daemons"][0]["clock_uncertainty_us"], 0);
  std::map<int, double> ends;  // by thread
  std::map<std::string, nlohmann::json> spans;
  for (const nlohmann::json& event : json["traceEvents"]) {
    EXPECT_EQ(event["pid"], 1);
    if (event["ph"] == "M") continue;
    ASSERT_EQ(event["ph"], "X");
    EXPECT_GE(event["ts"], ends[event["tid"]]) << "events of a thread overlap";
    ends[event["tid"]] = event["ts"].get<double>() + event["dur"].get<double>();
    spans[absl::StrCat(event["name"].get<std::string>(), " of ", event["args"]["rank"].get<int>())] = event;
  }
  ASSERT_EQ(spans.size(), 5u);
  EXPECT_EQ(spans["hold of 2"]["args"]["readers"], "eval (pid 12), and 2 more");
  EXPECT_EQ(spans["hold of 2"]["tid"], spans["wait of 2"]["tid"]);
  const nlohmann::json& gather = spans["gather layer0 of 2"];
  EXPECT_EQ(gather["ts"], 0);
  EXPECT_EQ(gather["dur"], 2000);
  EXPECT_EQ(gather["args"]["bytes"], 4096);
  EXPECT_EQ(gather["args"]["commit"], 12);
  EXPECT_EQ(spans["gather unit 9 of 2"]["ts"], 1000) << "a unit that the daemon has not named";
  const nlohmann::json& wait = spans["wait of 2"];
  EXPECT_EQ(wait["args"]["waits_for"], "rank 3");
  EXPECT_EQ(wait["args"]["unfinished"], true);
  EXPECT_EQ(wait["dur"], 4000) << "until the answer";
}

TEST(CtlTest, ATraceMayBeAFile) {
  FakeDaemon daemon;
  daemon.service().answers.trace = NewTrace();
  const test::TemporaryDirectory directory;
  const std::string path = directory.path() + "/trace.json";
  EXPECT_EQ(Output(daemon, {"trace", "--out", path}), absl::StrCat("wrote ", path, "\n"));
  EXPECT_EQ(daemon.service().requests.trace.steps(), 3);
  EXPECT_EQ(nlohmann::json::parse(std::ifstream(path))["traceEvents"].size(), 10u);
  const Result result = RunArguments({"trace", "--out", directory.path(), "--socket-dir", daemon.directory()});
  EXPECT_EQ(result.exit_code, kFailed);
  EXPECT_THAT(result.err, HasSubstr("--out: failed to write"));
}

std::string ReadText(const std::string& path) {
  std::ifstream file(path);
  EXPECT_TRUE(file.is_open()) << path;
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(CtlTest, ABundleHasTheAnswersAndNoToken) {
  FakeDaemon daemon;
  daemon.service().answers.version.set_version("9.8.7");
  daemon.service().answers.trace = NewTrace();
  const test::TemporaryDirectory directory;
  const std::string out = directory.path() + "/bundle";
  EXPECT_EQ(Output(daemon, {"bundle", "--out", out}), absl::StrCat("wrote ", out, "\n"));
  EXPECT_EQ(nlohmann::json::parse(ReadText(out + "/daemon/version.json"))["version"], "9.8.7");
  EXPECT_EQ(nlohmann::json::parse(ReadText(out + "/daemon/trace.json"))["traceEvents"].size(), 10u);
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(out + "/daemon")) {
    files.push_back(entry.path().filename().string());
    EXPECT_THAT(ReadText(entry.path().string()), Not(HasSubstr(daemon.service().token()))) << entry.path();
  }
  EXPECT_THAT(files, UnorderedElementsAre("version.json", "models.json", "sessions.json", "readers.json",
                                          "mirrors.json", "memory.json", "saves.json", "metrics.json", "trace.json"));
  EXPECT_EQ(std::filesystem::status(out).permissions(), std::filesystem::perms::owner_all);
  const Result again = RunArguments({"bundle", "--out", out, "--socket-dir", daemon.directory()});
  EXPECT_EQ(again.exit_code, kFailed);
  EXPECT_THAT(again.err, HasSubstr("is not empty"));
}

TEST(CtlTest, AFolderThatABundleRefusesStaysAsItIs) {
  const test::TemporaryDirectory directory;
  const std::string full = directory.path() + "/full";
  std::filesystem::create_directory(full);
  std::ofstream(full + "/file") << "mine";
  constexpr auto kMode = std::filesystem::perms(0755);
  std::filesystem::permissions(full, kMode);
  const Result result = RunArguments({"bundle", "--out", full, "--socket-dir", directory.path()});
  EXPECT_EQ(result.exit_code, kFailed);
  EXPECT_THAT(result.err, HasSubstr("is not empty"));
  EXPECT_EQ(std::filesystem::status(full).permissions(), kMode);

  if (geteuid() != 0) return;  // only root can make a folder somebody else's
  const std::string other = directory.path() + "/other";
  std::filesystem::create_directory(other);
  std::filesystem::permissions(other, kMode);
  ASSERT_EQ(chown(other.c_str(), 65533, 65533), 0);
  EXPECT_THAT(RunArguments({"bundle", "--out", other, "--socket-dir", directory.path()}).err,
              HasSubstr("belongs to another user"));
  EXPECT_EQ(std::filesystem::status(other).permissions(), kMode);
}

TEST(CtlTest, WhatABundleLacksIsNamed) {
  FakeDaemon daemon;
  daemon.service().answers.error = grpc::Status(grpc::StatusCode::UNIMPLEMENTED, "no such call");
  const test::TemporaryDirectory directory;
  const Result result = RunArguments({"bundle", "--out", directory.path() + "/b", "--socket-dir", daemon.directory()});
  EXPECT_EQ(result.exit_code, kFailed);
  for (const char* name : {"version", "models", "sessions", "readers", "memory", "saves", "metrics", "trace"}) {
    const std::string line = absl::StrCat("daemon: ", name, ": UNIMPLEMENTED: no such call\n");
    EXPECT_THAT(result.err, HasSubstr("missing " + line));
    EXPECT_THAT(ReadText(directory.path() + "/b/missing.txt"), HasSubstr(line));
  }
}

TEST(CtlTest, ABundleGivesUpADaemonThatHangs) {
  FakeDaemon daemon;
  daemon.service().answers.error = grpc::Status(grpc::StatusCode::DEADLINE_EXCEEDED, "Deadline Exceeded");
  const test::TemporaryDirectory directory;
  const std::string err =
      RunArguments({"bundle", "--out", directory.path() + "/b", "--socket-dir", daemon.directory()}).err;
  EXPECT_THAT(err, HasSubstr("daemon: version: DEADLINE_EXCEEDED: Deadline Exceeded\n"));
  for (const char* name : {"models", "sessions", "readers", "memory", "saves", "metrics", "trace"}) {
    EXPECT_THAT(err, HasSubstr(absl::StrCat("daemon: ", name, ": DEADLINE_EXCEEDED: skipped")));
  }
}

TEST(CtlTest, EachDaemonOfABundleHasAFolder) {
  const test::TemporaryDirectory directory;
  const std::string out = directory.path() + "/b";
  const std::string addresses = absl::StrCat("a+b:1,a_b:1,a+b:1,", std::string(300, 'h'), ":1");
  EXPECT_EQ(RunArguments({"--address", addresses, "bundle", "--out", out}).exit_code, kFailed);
  std::vector<std::string> folders;
  for (const auto& entry : std::filesystem::directory_iterator(out)) {
    if (entry.is_directory()) folders.push_back(entry.path().filename().string());
  }
  EXPECT_THAT(folders, UnorderedElementsAre("daemon-a_b_1", "daemon-a_b_1-2", "daemon-a_b_1-3",
                                            "daemon-" + std::string(193, 'h')));
}

TEST(CtlTest, EmptyListsSaySo) {
  FakeDaemon daemon;
  EXPECT_EQ(Output(daemon, {"models"}), "no models\n");
  EXPECT_EQ(Output(daemon, {"shards", "tiny"}), "no shards\n");
  EXPECT_EQ(Output(daemon, {"sessions"}), "no sessions\n");
  EXPECT_THAT(Output(daemon, {"memory"}), StartsWith("no memory in use by models\n"));
  EXPECT_EQ(JsonOutput(daemon, {"models"}), nlohmann::json::parse(R"({"models": [], "awaitedModels": []})"));
}

TEST(CtlTest, ShardsOfAllPagesAreOneList) {
  FakeDaemon daemon;
  std::vector<v1::ListShardsResponse>& pages = daemon.service().answers.pages;
  pages.resize(3);
  for (int i = 0; i < 3; ++i) {
    *pages[i].add_shards() = NewShard(absl::StrCat("w", i), i);
    if (i < 2) pages[i].set_next_page_token(absl::StrCat("page-", i + 1));
  }
  EXPECT_THAT(
      Output(daemon, {"shards", "tiny", "--page-size", "17"}),
      AllOf(HasSubstr("\nw0 "), HasSubstr("\nw1 "), HasSubstr("\nw2 "), HasSubstr("MXFP8"), HasSubstr("3.0 GiB")));
  ASSERT_EQ(daemon.service().requests.shards.size(), 3u);
  for (const v1::ListShardsRequest& request : daemon.service().requests.shards) {
    EXPECT_EQ(request.model(), "tiny");
    EXPECT_EQ(request.page_size(), 17);
  }
  const nlohmann::json json = JsonOutput(daemon, {"shards", "tiny"});
  EXPECT_EQ(json["shards"].size(), 3u);
  EXPECT_EQ(json["shards"][2]["planeBytes"], "3221225472");
  EXPECT_EQ(json["shards"][2]["format"], "FORMAT_MXFP8");
  EXPECT_EQ(json["nextPageToken"], "");
}

TEST(CtlTest, PageTokenThatComesAgainIsAnError) {
  FakeDaemon daemon;
  daemon.service().answers.pages.resize(2);
  for (v1::ListShardsResponse& page : daemon.service().answers.pages) page.set_next_page_token("page-1");
  const Result result = RunArguments({"shards", "tiny", "--socket-dir", daemon.directory()});
  EXPECT_EQ(result.exit_code, kFailed);
  EXPECT_THAT(result.err, HasSubstr("paramshardctl: shards tiny: INTERNAL: the daemon sent the same page token"));
}

TEST(CtlTest, DescribeAsksForTheParameter) {
  FakeDaemon daemon;
  v1::DescribeParameterResponse& parameter = daemon.service().answers.parameter;
  parameter.set_parameter("blocks.0.w1");
  parameter.add_shape(64);
  parameter.add_shape(512);
  parameter.set_format(v1::FORMAT_FP8_BLOCK_128X128);
  parameter.add_extents()->set_scale_min(0.25);
  EXPECT_THAT(
      Output(daemon, {"describe", "tiny", "blocks.0.w1"}),
      AllOf(testing::ContainsRegex("shape +\\[64, 512\\]\n"), HasSubstr("FP8_BLOCK_128X128"), HasSubstr("0.25")));
  EXPECT_EQ(daemon.service().requests.describe.model(), "tiny");
  EXPECT_EQ(daemon.service().requests.describe.parameter(), "blocks.0.w1");
  const nlohmann::json json = JsonOutput(daemon, {"describe", "tiny", "blocks.0.w1"});
  EXPECT_EQ(json["extents"][0]["scaleMin"], 0.25);
  EXPECT_FALSE(json["extents"][0].contains("scaleMax"));
}

TEST(CtlTest, StatsAsksForAsManyParametersAsTheLimit) {
  FakeDaemon daemon;
  daemon.service().answers.stats.add_parameters()->set_parameter("blocks.0.w1");
  daemon.service().answers.stats.set_parameter_count(9);
  EXPECT_THAT(Output(daemon, {"stats", "tiny", "--limit=5"}),
              AllOf(HasSubstr("blocks.0.w1"), HasSubstr("1 of 9 parameters\n")));
  EXPECT_EQ(daemon.service().requests.stats.model(), "tiny");
  EXPECT_EQ(daemon.service().requests.stats.limit(), 5);
  const nlohmann::json json = JsonOutput(daemon, {"stats", "tiny"});
  EXPECT_EQ(json["parameters"][0]["parameter"], "blocks.0.w1");
  EXPECT_EQ(daemon.service().requests.stats.limit(), 20);
}

TEST(CtlTest, SessionsMemoryAndVersionAreShown) {
  FakeDaemon daemon;
  FakeAnswers& answers = daemon.service().answers;
  answers.sessions.add_sessions()->set_waits_for("rank 1: Push blocks.3");
  answers.memory.add_uses()->set_memory_class("exp_avg");
  answers.memory.set_resident_bytes(2048);
  answers.version.set_version("0.1.0");
  answers.version.set_pid(4321);
  EXPECT_THAT(Output(daemon, {"sessions"}), HasSubstr("rank 1: Push blocks.3"));
  EXPECT_THAT(Output(daemon, {"memory"}), AllOf(HasSubstr("exp_avg"), HasSubstr("resident 2.0 KiB")));
  EXPECT_THAT(Output(daemon, {"version"}), AllOf(HasSubstr("0.1.0"), HasSubstr("4321")));
  EXPECT_EQ(JsonOutput(daemon, {"sessions"})["sessions"][0]["waitsFor"], "rank 1: Push blocks.3");
  EXPECT_EQ(JsonOutput(daemon, {"memory"})["residentBytes"], "2048");
  EXPECT_EQ(JsonOutput(daemon, {"version"})["pid"], "4321");
}

TEST(CtlTest, ReadersAreShown) {
  FakeDaemon daemon;
  EXPECT_EQ(Output(daemon, {"readers"}), "no readers\n");
  v1::ReaderSummary& reader = *daemon.service().answers.readers.add_readers();
  reader.set_model("m");
  reader.set_reader(3);
  reader.set_name("evaluation");
  reader.set_ended_snapshots(2);
  reader.mutable_held()->set_nanos(250'000'000);
  reader.set_mapped_bytes(3 << 20);
  EXPECT_THAT(Output(daemon, {"readers"}),
              AllOf(HasSubstr("evaluation"), HasSubstr("250"), HasSubstr("3.0 MiB"), Not(HasSubstr("deleted"))));
  reader.set_model_deleted(true);
  EXPECT_THAT(Output(daemon, {"readers"}), HasSubstr("m (deleted)"));
  EXPECT_EQ(JsonOutput(daemon, {"readers"})["readers"][0]["endedSnapshots"], "2");
}

TEST(CtlTest, MirrorsAreShownAndActivated) {
  FakeDaemon daemon;
  EXPECT_EQ(Output(daemon, {"mirror", "list"}), "no mirrors\n");
  v1::MirrorReport& mirror = *daemon.service().answers.mirrors.add_mirrors();
  mirror.set_mirror("rollout-3");
  mirror.set_model("m");
  mirror.mutable_active()->set_commit_number(41);
  mirror.set_plane_bytes(3 << 10);
  mirror.set_last_error("UNAVAILABLE: no answer");
  EXPECT_THAT(Output(daemon, {"mirror", "list"}),
              AllOf(HasSubstr("rollout-3"), HasSubstr("41"), HasSubstr("3.0 KiB"), HasSubstr("no answer")));
  EXPECT_EQ(JsonOutput(daemon, {"mirror", "list"})["mirrors"][0]["active"]["commitNumber"], "41");
  *daemon.service().answers.activation.mutable_mirror() = mirror;
  EXPECT_THAT(Output(daemon, {"mirror", "activate", "m", "42"}),
              AllOf(HasSubstr("rollout-3"), HasSubstr("active at commit 42")));
  EXPECT_EQ(daemon.service().requests.activate.model(), "m");
  EXPECT_EQ(daemon.service().requests.activate.commit_number(), 42);
  // Without a commit the newest one: nothing is staged.
  EXPECT_THAT(Output(daemon, {"mirror", "activate", "m"}), HasSubstr("active at commit 41"));
  daemon.service().answers.mirrors.mutable_mirrors(0)->mutable_staged()->set_commit_number(50);
  EXPECT_THAT(Output(daemon, {"mirror", "activate", "m"}), HasSubstr("active at commit 50"));
  EXPECT_EQ(daemon.service().requests.activate.commit_number(), 50);
}

TEST(CtlTest, MetricsAreShownAsTheyAreButForWhatATerminalWouldTakeForMore) {
  FakeDaemon daemon;
  daemon.service().answers.metrics.set_text("# HELP a_total Of it.\na_total{model=\"m\\\"\"} 1\n");
  EXPECT_EQ(Output(daemon, {"metrics"}), "# HELP a_total Of it.\na_total{model=\"m\\\"\"} 1\n");
  EXPECT_EQ(JsonOutput(daemon, {"metrics"})["text"], daemon.service().answers.metrics.text());
  daemon.service().answers.metrics.set_text("a_total{model=\"\x1b[2J\"} 1\n");
  EXPECT_THAT(Output(daemon, {"metrics"}), Not(HasSubstr("\x1b")));
}

TEST(CtlTest, DrainIsAskedOnce) {
  FakeDaemon daemon;
  EXPECT_EQ(Output(daemon, {"drain"}), "draining\n");
  EXPECT_EQ(daemon.service().requests.drains, 1);
}

TEST(CtlTest, DeleteNamesTheModel) {
  FakeDaemon daemon;
  EXPECT_EQ(Output(daemon, {"delete", "tiny"}), "deleted\n");
  EXPECT_EQ(daemon.service().requests.delete_model.model(), "tiny");
  EXPECT_EQ(JsonOutput(daemon, {"delete", "tiny"}), nlohmann::json::object());
}

TEST(CtlTest, RestartAwaitsTheNextServer) {
  FakeDaemon daemon;
  daemon.service().answers.version.set_version("0.1.0");
  daemon.service().answers.version.set_pid(4321);
  EXPECT_EQ(Output(daemon, {"restart"}), "version 0.1.0 serves as process 4322\n");
  const v1::RestartRequest& request = daemon.service().requests.restart;
  EXPECT_FALSE(request.has_program() || request.has_arguments() || request.lose_models());
}

TEST(CtlTest, RestartSendsAnAbsoluteProgramAndFlags) {
  FakeDaemon daemon;
  Output(daemon,
         {"restart", "--binary", "next/paramshardd", "--lose-models", "--", "--device=cpu:0,cpu:1", "--node=0"});
  const v1::RestartRequest& request = daemon.service().requests.restart;
  EXPECT_EQ(request.program(), (std::filesystem::current_path() / "next/paramshardd").string());
  EXPECT_THAT(request.arguments().values(), ElementsAre("--device=cpu:0,cpu:1", "--node=0"));
  EXPECT_TRUE(request.lose_models());
}

v1::Save NewSave(v1::SaveState state) {
  v1::Save save;
  save.set_model("tiny");
  save.set_number(3);
  save.set_step(12000);
  save.set_reason(v1::SAVE_REASON_CALL);
  save.set_state(state);
  return save;
}

TEST(CtlTest, ASaveSaysWhatHasBecomeOfIt) {
  FakeDaemon daemon;
  v1::Save& save = *daemon.service().answers.save.mutable_save();
  save = NewSave(v1::SAVE_STATE_COPYING);
  EXPECT_EQ(Output(daemon, {"save", "tiny"}), "save 3 of step 12000: copying\n");
  EXPECT_EQ(daemon.service().requests.save.model(), "tiny");
  EXPECT_FALSE(daemon.service().requests.save.wait());
  save = NewSave(v1::SAVE_STATE_PUBLISHED);
  save.set_path("/saves/tiny/step-1");
  save.set_size_bytes(2048);
  EXPECT_EQ(Output(daemon, {"save", "tiny", "--wait"}),
            "save 3 of step 12000: published /saves/tiny/step-1, 2.0 KiB\n");
  EXPECT_TRUE(daemon.service().requests.save.wait());
  EXPECT_EQ(JsonOutput(daemon, {"save", "tiny"})["save"]["state"], "SAVE_STATE_PUBLISHED");
}

TEST(CtlTest, AStateThatIsSavedAlreadyIsASuccess) {
  FakeDaemon daemon;
  v1::Save& save = *daemon.service().answers.save.mutable_save();
  save = NewSave(v1::SAVE_STATE_ALREADY_SAVED);
  save.set_path("/saves/tiny/step-1");
  save.set_size_bytes(2048);
  const Result result = RunArguments({"save", "tiny", "--wait", "--socket-dir", daemon.directory()});
  EXPECT_EQ(result.exit_code, kSucceeded);
  EXPECT_EQ(result.out, "save 3 of step 12000: already saved as /saves/tiny/step-1, 2.0 KiB\n");
}

TEST(CtlTest, ASaveThatCameToNothingIsAFailure) {
  FakeDaemon daemon;
  v1::Save& save = *daemon.service().answers.save.mutable_save();
  save = NewSave(v1::SAVE_STATE_ABANDONED);
  save.mutable_error()->set_text("the disk is full");
  const Result result = RunArguments({"save", "tiny", "--wait", "--socket-dir", daemon.directory()});
  EXPECT_EQ(result.exit_code, kFailed);
  EXPECT_EQ(result.out, "save 3 of step 12000: abandoned: the disk is full\n");
}

TEST(CtlTest, ImportSendsAnAbsolutePathAndTheMap) {
  FakeDaemon daemon;
  daemon.service().answers.import_file.set_parameter_count(2);
  daemon.service().answers.import_file.set_size_bytes(2048);
  daemon.service().answers.import_file.add_missing_parameters("b");
  const std::string map = daemon.directory() + "/map";
  std::ofstream(map) << "# names\nw: model.w\n-: step\n";
  EXPECT_EQ(Output(daemon, {"import", "tiny", "in.safetensors", "--partial", "--map", map}),
            "not in the file: b\n2 parameters imported, 2.0 KiB read\n");
  const v1::ImportFileRequest& request = daemon.service().requests.import_file;
  EXPECT_EQ(request.model(), "tiny");
  EXPECT_EQ(request.path(), (std::filesystem::current_path() / "in.safetensors").string());
  ASSERT_EQ(request.tensors_size(), 1);
  EXPECT_EQ(request.tensors(0).parameter(), "w");
  EXPECT_EQ(request.tensors(0).tensor(), "model.w");
  EXPECT_EQ(request.ignored_tensors(0), "step");
  EXPECT_TRUE(request.partial());
  std::ofstream(map) << "w: a\nw: b\n";
  const Result twice = RunArguments({"--socket-dir", daemon.directory(), "import", "tiny", "in", "--map", map});
  EXPECT_EQ(twice.exit_code, kFailed);
  EXPECT_THAT(twice.err, AllOf(StartsWith("paramshardctl: import tiny in: "), HasSubstr("map:2: duplicate parameter")));
}

TEST(CtlTest, ConvertReportsWhatItHasDone) {
  const FakeDaemon daemon;  // for its folder
  const std::string input = daemon.directory() + "/in.safetensors";
  const std::string output = daemon.directory() + "/out.safetensors";
  safetensors::WriteFile(
      input, {safetensors::FloatTensor("w", {2, 2}, {1, 2, 3, 4}), safetensors::FloatTensor("b", {2}, {1, 2})});
  const Result table = RunArguments({"convert", input, "--format=BF16", "-o", output});
  EXPECT_EQ(table.exit_code, kSucceeded) << table.err;
  EXPECT_THAT(table.out, AllOf(StartsWith("TENSOR"), HasSubstr("\nw "), HasSubstr("[2, 2]"),
                               HasSubstr("1 tensors converted, 1 copied unchanged: 24 B before, 16 B after\n")));
  EXPECT_THAT(table.progress, AllOf(HasSubstr("24 B of 24 B"), HasSubstr("\x1b[K")));
  const Result json = RunArguments({"convert", input, "--format=BF16", "-o", output, "--report=json"});
  const nlohmann::json document = nlohmann::json::parse(json.out);
  EXPECT_EQ(document["tensors"][0]["name"], "w");
  EXPECT_EQ(document["tensors"][0]["relativeError"], 0.0);
  EXPECT_EQ(document["summary"]["carriedCount"], 1);
  EXPECT_THAT(RunArguments({"convert", input, "--format=BF16", "-o", output, "--quiet"}).out, StartsWith("1 tensors"));
  const Result failed = RunArguments({"convert", output + "x", "--format=BF16", "-o", output});
  EXPECT_EQ(failed.exit_code, kFailed);
  EXPECT_THAT(failed.err, StartsWith("paramshardctl: convert " + output + "x: NOT_FOUND"));
}

TEST(CtlTest, FlagsOfConvertSayWhatItWrites) {
  const FakeDaemon daemon;  // for its folder
  const std::string input = daemon.directory() + "/in.safetensors";
  const std::string output = daemon.directory() + "/out.safetensors";
  safetensors::WriteFile(input, {safetensors::FloatTensor("w", {1, 2}, {1, 2})});
  std::ofstream(daemon.directory() + "/rules") << "w: BF16\n";
  const auto tensors = [&](const std::string& from, std::vector<std::string> flags) {
    flags.insert(flags.begin(), {"-o", "json", "convert", from, "-o", output});
    const Result result = RunArguments(flags);
    EXPECT_EQ(result.exit_code, kSucceeded) << result.err;
    EXPECT_TRUE(nlohmann::json::accept(result.out));
    std::vector<std::string> found;
    const auto file = safetensors::SafetensorsFile::Open(output);
    for (const auto& tensor : file->tensors()) {
      found.push_back(absl::StrCat(tensor.name, " ", safetensors::DtypeName(tensor.dtype)));
    }
    return found;
  };
  EXPECT_THAT(tensors(input, {"--rules=" + daemon.directory() + "/rules"}), ElementsAre("w BF16"));
  EXPECT_THAT(tensors(input, {"--format=MXFP8", "--planes=both"}),
              UnorderedElementsAre("w F8_E4M3", "w_scale U8", "w_column F8_E4M3", "w_column_scale U8"));
  EXPECT_THAT(tensors(input, {"--format=MXFP8", "--element=E5M2"}), UnorderedElementsAre("w F8_E5M2", "w_scale U8"));
  const std::string encoded = daemon.directory() + "/encoded.safetensors";
  std::filesystem::rename(output, encoded);
  EXPECT_THAT(tensors(encoded, {"--dequantize"}), ElementsAre("w F32"));
  EXPECT_THAT(tensors(encoded, {"--dequantize", "--dtype=F16"}), ElementsAre("w F16"));
}

TEST(CtlTest, FlagsOfCodecSayWhatItReadsAndWrites) {
  const FakeDaemon daemon;  // for its folder
  const std::string input = daemon.directory() + "/in.npy", planes = daemon.directory() + "/planes";
  const std::string output = daemon.directory() + "/out.npy";
  const std::vector<float> values = {1, 2, 3, 4, 5, 6};
  NpyArray array{"<f4", {2, 3}, std::vector<uint8_t>(values.size() * sizeof(float))};
  std::memcpy(array.bytes.data(), values.data(), array.bytes.size());
  ASSERT_TRUE(WriteNpy(input, array).ok());
  EXPECT_EQ(RunArguments({"codec", "encode", "--format=MXFP8", input, planes}).err, "");
  EXPECT_EQ(RunArguments({"codec", "decode", "--format=MXFP8", "--plane=column", planes, output}).err, "");
  EXPECT_EQ(ReadNpy(output)->bytes, array.bytes);
  EXPECT_EQ(RunArguments({"codec", "encode", "--format=NVFP4_2D", input, planes}).err, "");
  EXPECT_EQ(RunArguments({"codec", "decode", "--format=NVFP4_2D", "--columns=3", planes, output}).err, "");
  EXPECT_THAT(ReadNpy(output)->shape, ElementsAre(2, 3));
  EXPECT_EQ(RunArguments({"codec", "encode", "--format=FP8_TENSOR_DELAYED", "--scale=4", input, planes}).err, "");
  float scale_inv = 0;
  std::memcpy(&scale_inv, ReadNpy(planes + "/scale_inv.npy")->bytes.data(), sizeof(scale_inv));
  EXPECT_EQ(scale_inv, 0.25f);
}

// Writes a checkpoint of one parameter "w", step 12, serial 3.
std::string SaveTiny(const std::string& root) {
  return checkpoint::SavedModel(checkpoint::TinySpec(), 1).Write(root + "/tiny", {.history = 1});
}

TEST(CtlTest, CheckpointsAreListedByModelOrForAll) {
  const FakeDaemon daemon;  // for its folder
  const std::string folder = SaveTiny(daemon.directory());
  for (const std::string& path : {daemon.directory(), daemon.directory() + "/tiny"}) {
    const Result table = RunArguments({"checkpoint", "list", path});
    EXPECT_EQ(table.exit_code, kSucceeded) << table.err;
    EXPECT_THAT(table.out, AllOf(StartsWith("SERIAL  MODEL  STEP  HISTORY"), HasSubstr("     3  tiny     12  00000000"),
                                 HasSubstr("2023-11-14 22:13:20Z  step-000000000012-00000000  -\n")));
    const nlohmann::json json = nlohmann::json::parse(RunArguments({"-o", "json", "checkpoint", "list", path}).out);
    ASSERT_EQ(json["checkpoints"].size(), 1u);
    EXPECT_EQ(json["checkpoints"][0]["folder"], folder);
    EXPECT_EQ(json["checkpoints"][0]["step"], "12");
    EXPECT_EQ(json["checkpoints"][0]["savedAt"], "2023-11-14T22:13:20.123Z");
  }
  checkpoint::WriteText(folder + "/manifest.json", "{}");
  EXPECT_THAT(RunArguments({"checkpoint", "list", daemon.directory()}).out, HasSubstr("does not end with its hash"));
  EXPECT_THAT(RunArguments({"checkpoint", "list", folder}).out, "no checkpoints\n");
  EXPECT_EQ(RunArguments({"checkpoint", "list", folder + "/none"}).exit_code, kFailed);
}

TEST(CtlTest, ACheckpointIsDescribed) {
  const FakeDaemon daemon;  // for its folder
  const std::string folder = SaveTiny(daemon.directory());
  const Result table = RunArguments({"checkpoint", "describe", folder});
  EXPECT_EQ(table.exit_code, kSucceeded) << table.err;
  EXPECT_THAT(table.out, AllOf(StartsWith("model"), HasSubstr("1 ranks, shard size 1"), HasSubstr("goes on from"),
                               HasSubstr("\nexp_avg_sq/w  F32      3        2  24 B")));
  const nlohmann::json json = nlohmann::json::parse(RunArguments({"-o", "json", "checkpoint", "describe", folder}).out);
  EXPECT_EQ(json["tensors"][0]["key"], "master/w");
  EXPECT_EQ(json["tensors"][0]["rows"], "3");
  EXPECT_EQ(json["parent"]["step"], "2");
  EXPECT_EQ(json["files"].size(), 2u);
}

TEST(CtlTest, ADamagedCheckpointHasAnExitCodeOfItsOwn) {
  const FakeDaemon daemon;  // for its folder
  const std::string folder = SaveTiny(daemon.directory());
  const Result whole = RunArguments({"checkpoint", "verify", folder});
  EXPECT_EQ(whole.exit_code, kSucceeded) << whole.err;
  EXPECT_THAT(whole.out, HasSubstr("step 12, version 10: "));
  EXPECT_THAT(whole.out, HasSubstr(" read, no damage\n"));
  EXPECT_THAT(whole.progress, HasSubstr(" of "));
  const std::string file = folder + "/rank-00000-of-00001.safetensors";
  std::string bytes = checkpoint::ReadText(file);
  const size_t client_state = checkpoint::SavedModel::ClientState(0).size();
  bytes[bytes.size() - client_state - 1] ^= 1;
  checkpoint::WriteText(file, bytes);
  const Result damaged = RunArguments({"checkpoint", "verify", folder, "--quiet"});
  EXPECT_EQ(damaged.exit_code, kMismatch);
  EXPECT_EQ(damaged.progress, "");
  EXPECT_THAT(damaged.out,
              AllOf(StartsWith("FILE"), HasSubstr("rank-00000-of-00001.safetensors  exp_avg_sq/w          0"),
                    HasSubstr("damage in 1 place\n")));
  const Result as_json = RunArguments({"-o", "json", "checkpoint", "verify", folder});
  EXPECT_EQ(as_json.exit_code, kMismatch);
  const nlohmann::json json = nlohmann::json::parse(as_json.out);
  EXPECT_EQ(json["damages"][0]["tensor"], "exp_avg_sq/w");
  EXPECT_EQ(json["damages"][0]["rows"], "3");
}

TEST(CtlTest, WhatIsNoCheckpointIsAnError) {
  const FakeDaemon daemon;  // for its folder
  const Result none = RunArguments({"checkpoint", "verify", daemon.directory()});
  EXPECT_EQ(none.exit_code, kFailed);
  EXPECT_THAT(none.err, AllOf(StartsWith("paramshardctl: checkpoint verify "), HasSubstr("NOT_FOUND")));
  EXPECT_EQ(RunArguments({"checkpoint", "describe", daemon.directory()}).exit_code, kFailed);
}

v1::RestoreModelResponse NewProgress(int64_t done, int64_t all) {
  v1::RestoreModelResponse response;
  response.mutable_progress()->set_done_bytes(done);
  response.mutable_progress()->set_all_bytes(all);
  return response;
}

v1::RestoreModelResponse NewRestoreSummary() {
  v1::RestoreModelResponse response;
  v1::RestoreSummary& summary = *response.mutable_summary();
  summary.set_path("/saves/tiny/step-000000012000-0123abcd");
  summary.set_step(12000);
  summary.set_version(11998);
  summary.set_history_id("fedcba9876543210fedcba9876543210");
  summary.set_saved_world_size(8);
  summary.set_saved_shard_size(4);
  summary.set_size_bytes(int64_t{3} << 30);
  summary.mutable_elapsed()->set_seconds(2);
  return response;
}

TEST(CtlTest, RestoreShowsHowFarItIsAndWhatItBrought) {
  FakeDaemon daemon;
  daemon.service().answers.restore = {NewProgress(0, 2048), NewProgress(2048, 2048), NewRestoreSummary()};
  const Result result = RunArguments({"restore", "tiny", "--socket-dir", daemon.directory()});
  EXPECT_EQ(result.exit_code, kSucceeded) << result.err;
  EXPECT_EQ(result.out,
            "step 12000, version 11998, of /saves/tiny/step-000000012000-0123abcd, saved by 8 ranks in shard groups of "
            "4\n3.0 GiB in 2s, history fedcba9876543210fedcba9876543210\n");
  EXPECT_THAT(result.progress,
              AllOf(HasSubstr("0 B of 2.0 KiB"), HasSubstr("2.0 KiB of 2.0 KiB"), ::testing::EndsWith("\r\x1b[K")));
  EXPECT_EQ(daemon.service().requests.restore.model(), "tiny");
  EXPECT_EQ(daemon.service().requests.restore.source().checkpoint(), "latest");
  EXPECT_FALSE(daemon.service().requests.restore.source().convert_moments());
  const Result quiet = RunArguments({"restore", "tiny", "--quiet", "--socket-dir", daemon.directory()});
  EXPECT_EQ(quiet.progress, "");
  EXPECT_EQ(JsonOutput(daemon, {"restore", "tiny"})["step"], "12000");
}

TEST(CtlTest, RestoreNamesACheckpointOrMakesAPathAbsolute) {
  FakeDaemon daemon;
  daemon.service().answers.restore = {NewRestoreSummary()};
  const auto asked = [&](const std::string& text) {
    Output(daemon, {"restore", "tiny", text, "--convert-moments"});
    EXPECT_TRUE(daemon.service().requests.restore.source().convert_moments());
    return daemon.service().requests.restore.source().checkpoint();
  };
  for (const char* const text : {"latest", "12000", "step-000000012000-0123abcd", "/copies/good"}) {
    EXPECT_EQ(asked(text), text);
  }
  EXPECT_EQ(asked("copies/good"), (std::filesystem::current_path() / "copies/good").string());
}

TEST(CtlTest, RestoreThatTheDaemonRefusesSaysWhy) {
  FakeDaemon daemon;
  daemon.service().answers.error = grpc::Status(grpc::StatusCode::FAILED_PRECONDITION, "restore tiny: no trainer");
  const Result result = RunArguments({"restore", "tiny", "12", "--socket-dir", daemon.directory()});
  EXPECT_EQ(result.exit_code, kFailed);
  EXPECT_THAT(result.err, HasSubstr("paramshardctl: restore tiny 12: FAILED_PRECONDITION: restore tiny: no trainer"));
}

TEST(CtlTest, ModelsSayHowFarARestoreIs) {
  FakeDaemon daemon;
  v1::ModelSummary& model = *daemon.service().answers.models.add_models();
  model.set_name("tiny");
  model.set_last_end("all trainers have detached");
  model.mutable_restoring()->set_done_bytes(430);
  model.mutable_restoring()->set_all_bytes(1000);
  EXPECT_THAT(Output(daemon, {"models"}), HasSubstr("restoring, 43 %\n"));
  EXPECT_EQ(JsonOutput(daemon, {"models"})["models"][0]["restoring"]["doneBytes"], "430");
}

TEST(CtlTest, VerifyShowsExtentsThenTheSummary) {
  FakeDaemon daemon;
  daemon.service().answers.verification = {NewVerified("w1", true), NewVerified("w2", true), NewSummary(2, 0)};
  const Result result = RunArguments({"verify", "tiny", "--socket-dir", daemon.directory()});
  EXPECT_EQ(result.exit_code, kSucceeded) << result.err;
  EXPECT_THAT(result.out, AllOf(HasSubstr("\nw1 "), HasSubstr("\nw2 "), HasSubstr("  yes    0123456789ab  ")));
  EXPECT_THAT(result.out,
              HasSubstr("\nversion 7, commit 8: 2 extents, 0 mismatches, state fedcba9876543210fedcba9876543210\n"));
  EXPECT_THAT(result.progress, AllOf(HasSubstr("verified 2 extents"), ::testing::EndsWith("\r\x1b[K")));
  EXPECT_EQ(daemon.service().requests.verify.model(), "tiny");
}

TEST(CtlTest, VerifyThatFindsAMismatchHasAnExitCodeOfItsOwn) {
  FakeDaemon daemon;
  daemon.service().answers.verification = {NewVerified("w1", false), NewSummary(1, 1)};
  for (const char* format : {"table", "json"}) {
    const Result result = RunArguments({"verify", "tiny", "-o", format, "--socket-dir", daemon.directory()});
    EXPECT_EQ(result.exit_code, kMismatch);
    EXPECT_THAT(result.err, IsEmpty());
  }
  EXPECT_THAT(RunArguments({"verify", "tiny", "--socket-dir", daemon.directory()}).out,
              AllOf(HasSubstr("  no "), HasSubstr("1 extent, 1 mismatch, ")));
}

TEST(CtlTest, QuietVerifyShowsTheSummaryOnly) {
  FakeDaemon daemon;
  daemon.service().answers.verification = {NewVerified("w1", true), NewSummary(1, 0)};
  EXPECT_THAT(Output(daemon, {"verify", "tiny", "--quiet"}), StartsWith("version 7, commit 8: 1 extent, 0 mismatches"));
  EXPECT_FALSE(JsonOutput(daemon, {"verify", "tiny", "--quiet"}).contains("extents"));
}

TEST(CtlTest, VerifyAsJsonIsOneDocument) {
  FakeDaemon daemon;
  daemon.service().answers.verification = {NewVerified("w1", true), NewVerified("w2", true), NewSummary(2, 0)};
  const nlohmann::json json = JsonOutput(daemon, {"verify", "tiny"});
  EXPECT_EQ(json["extents"].size(), 2u);
  EXPECT_EQ(json["extents"][1]["planesMatch"], true);
  EXPECT_EQ(json["summary"]["stateHash"], "fedcba9876543210fedcba9876543210");
  EXPECT_EQ(json["summary"]["mismatchCount"], "0");
}

TEST(CtlTest, VerifyWithoutASummaryIsAnError) {
  FakeDaemon daemon;
  daemon.service().answers.verification = {NewVerified("w1", true)};
  const Result result = RunArguments({"verify", "tiny", "--socket-dir", daemon.directory()});
  EXPECT_EQ(result.exit_code, kFailed);
  EXPECT_THAT(result.out, IsEmpty());
  EXPECT_THAT(result.err, HasSubstr("without a summary"));
}

TEST(CtlTest, RefusalOfTheDaemonIsPassedOn) {
  FakeDaemon daemon;
  daemon.service().answers.error = grpc::Status(grpc::StatusCode::NOT_FOUND, "model nope: tiny expected, got nope");
  const std::vector<std::vector<std::string>> commands = {
      {"models"},        {"shards", "nope"}, {"describe", "nope", "w"},
      {"sessions"},      {"memory"},         {"verify", "nope"},
      {"drain"},         {"version"},        {"stats", "nope"},
      {"saves"},         {"save", "nope"},   {"restart"},
      {"delete", "nope"}};
  for (std::vector<std::string> command : commands) {
    command.insert(command.end(), {"--socket-dir", daemon.directory()});
    const Result result = RunArguments(command);
    EXPECT_EQ(result.exit_code, kFailed) << command[0];
    EXPECT_THAT(result.out, IsEmpty()) << command[0];
    EXPECT_THAT(result.err, HasSubstr("NOT_FOUND: model nope: tiny expected, got nope\n")) << command[0];
  }
  EXPECT_THAT(RunArguments({"describe", "nope", "w", "--socket-dir", daemon.directory()}).err,
              StartsWith("paramshardctl: describe nope w: NOT_FOUND: "));
}

TEST(CtlTest, RefusedUserIsToldTheReason) {
  FakeDaemon daemon(FakeCompanion::kRefuses);
  const Result result = RunArguments({"models", "--socket-dir", daemon.directory()});
  EXPECT_EQ(result.exit_code, kFailed);
  EXPECT_EQ(result.err, "paramshardctl: models: PERMISSION_DENIED: companion: user 0 expected, got 42\n");
}

TEST(CtlTest, DaemonThatDoesNotAnswerIsUnreachable) {
  FakeDaemon stopped;
  stopped.StopGrpc();
  FakeDaemon silent(FakeCompanion::kIsSilent);
  FakeDaemon gone(FakeCompanion::kHangsUp);
  for (const std::string& directory :
       {std::string("no-such-directory"), stopped.directory(), silent.directory(), gone.directory()}) {
    const Result result = RunArguments({"models", "--timeout", "200ms", "--socket-dir", directory});
    EXPECT_EQ(result.exit_code, kUnreachable) << result.err;
    EXPECT_THAT(result.err, StartsWith("paramshardctl: models: "));
    EXPECT_THAT(result.out, IsEmpty());
  }
  EXPECT_THAT(RunArguments({"models", "--socket-dir", "no-such-directory"}).err,
              HasSubstr("no-such-directory/handoff.sock"));
}

TEST(CtlTest, DaemonThatFailsInACallIsUnreachable) {
  FakeDaemon daemon;
  daemon.service().answers.error = grpc::Status(grpc::StatusCode::UNAVAILABLE, "the daemon drains");
  EXPECT_EQ(RunArguments({"models", "--socket-dir", daemon.directory()}).exit_code, kUnreachable);
}

TEST(CtlTest, NamesCannotWriteToTheTerminal) {
  FakeDaemon daemon;
  daemon.service().answers.models.add_models()->set_name("a\x1b[2Jb\n");
  EXPECT_THAT(Output(daemon, {"models"}), AllOf(HasSubstr("a\\x1b[2Jb\\x0a"), Not(HasSubstr("\x1b"))));
}

TEST(CtlTest, ErrorsCannotWriteToTheTerminal) {
  FakeDaemon daemon;
  daemon.service().answers.error = grpc::Status(grpc::StatusCode::NOT_FOUND,
                                                "model x: one of [a\x1b[2J\xc2\x9b"
                                                "1m] expected\nparamshardctl: fine");
  const Result result = RunArguments({"shards", "x\x1b]0;title\x07", "--socket-dir", daemon.directory()});
  EXPECT_EQ(result.err,
            "paramshardctl: shards x\\x1b]0;title\\x07: NOT_FOUND: model x: one of [a\\x1b[2J\\xc2\\x9b1m] "
            "expected\\x0aparamshardctl: fine\n");
}

TEST(CtlTest, TextsBesideTablesCannotWriteToTheTerminal) {
  FakeDaemon daemon;
  FakeAnswers& answers = daemon.service().answers;
  answers.import_file.add_missing_parameters("b\x1b[2J\n");
  v1::BrokenDevice& broken = *answers.version.add_broken_devices();
  broken.set_device("cuda:1\x1b");
  broken.set_reason("gone\xc2\x9b");
  answers.verification = {NewSummary(0, 0)};
  answers.verification[0].mutable_summary()->set_state_hash("\x1b[2J");
  EXPECT_THAT(Output(daemon, {"import", "tiny", "in"}), HasSubstr("not in the file: b\\x1b[2J\\x0a\n"));
  EXPECT_THAT(Output(daemon, {"version"}), HasSubstr("BROKEN cuda:1\\x1b: gone\\xc2\\x9b\n"));
  EXPECT_THAT(Output(daemon, {"verify", "tiny"}), HasSubstr("state \\x1b[2J\n"));
}

// A device without an end, and a pipe without a writer.
TEST(CtlTest, FilesWithoutAnEndAreRefused) {
  const FakeDaemon daemon;
  const std::string input = daemon.directory() + "/in.safetensors";
  safetensors::WriteFile(input, {safetensors::FloatTensor("w", {1}, {1})});
  const std::string pipe = daemon.directory() + "/pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  for (const std::string& endless : {std::string("/dev/zero"), pipe}) {
    const std::vector<std::string> commands[] = {
        {"convert", input, "--rules", endless, "-o", daemon.directory() + "/out.safetensors"},
        {"import", "tiny", "in", "--map", endless, "--socket-dir", daemon.directory()},
        {"codec", "encode", "--format=MXFP8", endless, daemon.directory() + "/planes"}};
    for (const std::vector<std::string>& command : commands) {
      const Result result = RunArguments(command);
      EXPECT_EQ(result.exit_code, kFailed) << command[0];
      EXPECT_THAT(result.err, HasSubstr("INVALID_ARGUMENT: " + endless + ": want a regular file")) << command[0];
    }
  }
}

TEST(CtlTest, HugeFilesAreRefusedBeforeTheyAreRead) {
  const FakeDaemon daemon;
  const std::string huge = daemon.directory() + "/huge";
  std::ofstream(huge) << "\x93NUMPY";
  std::filesystem::resize_file(huge, uint64_t{1} << 40);
  const std::string input = daemon.directory() + "/in.safetensors";
  safetensors::WriteFile(input, {safetensors::FloatTensor("w", {1}, {1})});
  EXPECT_THAT(RunArguments({"convert", input, "--rules", huge, "-o", input + "x.safetensors"}).err,
              HasSubstr("huge: want at most 67108864 bytes, got 1099511627776"));
  EXPECT_THAT(RunArguments({"codec", "encode", "--format=MXFP8", huge, daemon.directory() + "/planes"}).err,
              HasSubstr("huge: npy: want an array of at most 17179869184 bytes, got a file of 1099511627776"));
}

TEST(CtlTest, TimeBeyondJsonIsAnError) {
  FakeDaemon daemon;
  daemon.service().answers.version.mutable_started_at()->set_seconds(int64_t{1} << 60);
  const Result result = RunArguments({"version", "-o", "json", "--socket-dir", daemon.directory()});
  EXPECT_EQ(result.exit_code, kFailed);
  EXPECT_THAT(result.err, HasSubstr("cannot be written as JSON"));
}

}  // namespace
}  // namespace paramshard::ctl
