// Reader and Snapshot, beside a daemon that the test plays.
#include "client/reader.h"

#include <errno.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/internal/reader_session.h"
#include "gmock/gmock.h"
#include "kernels/formats/bfloat16.h"
#include "kernels/formats/codec.h"
#include "kernels/formats/format.h"
#include "tests/client/session/fake_publication.h"
#include "tests/support/daemon_process.h"
#include "tests/support/every_format.h"
#include "tests/support/status_matchers.h"

namespace paramshard {
namespace {

using internal::ReaderSession;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::HasSubstr;
using wire::Gate;

constexpr absl::Duration kLong = absl::Seconds(60);
constexpr absl::Duration kShort = absl::Milliseconds(50);
constexpr absl::Duration kForAnAnswer = absl::Seconds(1);  // of a daemon that is there

std::vector<float> RandomValues(int64_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0f, 0.1f);
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

// A matrix "m.w", whose every element is the number of its commit, and a vector "m.bias".
ModelSpec CountingModel(Format format = Format::kFP32) {
  ModelSpec spec{.name = "m",
                 .units = {{.name = "u",
                            .parameters = {{.name = "m.w", .shape = {64, 32}, .encoding = {.format = format}},
                                           {.name = "m.bias", .shape = {64}}}}}};
  spec.small_parameter_bytes = 512;
  return spec;
}

// Returns data of another size for each commit, up to the largest.
std::string DataOf(int64_t commit) {
  return std::string(commit * 97 % (kMaxReaderDataBytes + 1), static_cast<char>('a' + commit % 26));
}

void PublishCommit(const FakePublication& model, int64_t commit, char history = 'a') {
  if (model.page().gate().state != Gate::State::kWriting) model.BeginWriting();
  model.Encode(0, 0, std::vector<float>(64 * 32, static_cast<float>(commit)));
  model.Encode(0, 1, std::vector<float>(64, static_cast<float>(-commit)));
  wire::PublishedVersion version = VersionAt(commit, history);
  version.SetReaderData(DataOf(commit));
  model.Publish(version);
}

absl::StatusOr<std::vector<float>> ReadAll(const Snapshot& snapshot, absl::string_view name) {
  ASSIGN_OR_RETURN(const ReadParameter* const parameter, snapshot.Find(name));
  std::vector<float> values(parameter->rows * parameter->columns);
  RETURN_IF_ERROR(snapshot.Read(name, absl::MakeSpan(values)));
  return values;
}

class ReaderTest : public testing::Test {
 protected:
  // A daemon with the model at commit 50.
  void SetUp() override {
    PublishCommit(model_, 50);
    StartDaemon();
  }

  void StartDaemon() {
    daemon_.reset();
    daemon_.emplace(directory_.path());
    daemon_->SetModel(&model_);
  }

  std::unique_ptr<Reader> MakeReader(Reader::Options options = {}) {
    options.model = "m";
    options.socket_dir = directory_.path();
    absl::StatusOr<std::unique_ptr<Reader>> reader = Reader::Create(options);
    EXPECT_OK(reader);
    return *std::move(reader);
  }

  const test::TemporaryDirectory directory_;
  FakePublication model_ = FakePublication(CountingModel(), 2);
  std::optional<FakeReaderDaemon> daemon_;
};

// --- Values

struct ValuesCase {
  Format format;
  int ranks;
};

class ReaderValuesTest : public testing::TestWithParam<ValuesCase> {
 protected:
  // Parameters that are cut, owned, small and of a stack; of odd sizes, too.
  static ModelSpec Spec(Format format) {
    ModelSpec spec{.name = "m", .units = {{.name = "a"}, {.name = "b"}}};
    const auto add = [&](int unit, absl::string_view name, std::vector<int64_t> shape, Placement placement) {
      spec.units[unit].parameters.push_back({.name = std::string(name),
                                             .shape = std::move(shape),
                                             .encoding = {.format = format},
                                             .placement = placement});
    };
    add(0, "cut", {300, 40}, Placement::kCut);
    add(0, "small", {3, 5}, Placement::kCut);
    add(1, "owned", {7, 32, 33}, Placement::kOwned);
    add(1, "one row", {1, 513}, Placement::kCut);
    add(1, "scalar", {}, Placement::kCut);
    spec.small_parameter_bytes = 200;
    return spec;
  }
};

// Returns the row-wise plane of the whole matrix, decoded.
std::vector<float> DecodedWhole(const ReadParameter& parameter, const std::vector<float>& values) {
  const Encoding& encoding = parameter.encoding;
  std::vector<uint8_t> data(DataBytes(encoding, parameter.rows, parameter.columns)),
      scales(ScaleBytes(encoding, Plane::kRowWise, parameter.rows, parameter.columns)),
      amax(AmaxBytes(encoding.format));
  EncodePlanes(encoding, values.data(), parameter.rows, parameter.columns, {data.data(), scales.data(), amax.data()},
               {}, {.amax = Amax(values.data(), static_cast<int64_t>(values.size())), .scale = kDelayedScale});
  std::vector<float> decoded(values.size());
  DecodePlane(encoding, Plane::kRowWise, {data.data(), scales.data(), amax.data()}, parameter.rows, parameter.columns,
              decoded.data());
  return decoded;
}

TEST_P(ReaderValuesTest, AreTheEncodedOnesOfTheWholeMatrix) {
  FakePublication model(Spec(GetParam().format), GetParam().ranks);
  std::vector<std::vector<float>> values;
  const std::vector<UnitSpec>& units = model.layout().spec().units;
  for (int unit = 0; unit < static_cast<int>(units.size()); ++unit) {
    for (int i = 0; i < static_cast<int>(units[unit].parameters.size()); ++i) {
      const ParameterSpec& spec = units[unit].parameters[i];
      values.push_back(RandomValues(spec.rows() * spec.columns(), 100 * unit + i));
      model.Encode(unit, i, values.back());
    }
  }
  model.Publish(VersionAt(3));
  const test::TemporaryDirectory directory;
  FakeReaderDaemon daemon(directory.path());
  daemon.SetModel(&model);
  ASSERT_OK_AND_ASSIGN(const auto reader, Reader::Create({.model = "m", .socket_dir = directory.path()}));
  ASSERT_OK_AND_ASSIGN(const Snapshot snapshot, reader->Acquire());
  EXPECT_EQ(snapshot.version(),
            (ModelVersion{.history_id = std::string(32, 'a'), .commit_number = 3, .applied_commits = 3}));
  ASSERT_EQ(snapshot.parameters().size(), values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    const ReadParameter& parameter = snapshot.parameters()[i];
    SCOPED_TRACE(parameter.name);
    const std::vector<float> expected = DecodedWhole(parameter, values[i]);
    std::vector<float> got(expected.size());
    ASSERT_OK(snapshot.Read(parameter.name, absl::MakeSpan(got)));
    EXPECT_EQ(got, expected);
    std::vector<uint16_t> rounded(expected.size()), expected_rounded(expected.size());
    std::transform(expected.begin(), expected.end(), expected_rounded.begin(), EncodeBFloat16);
    ASSERT_OK(snapshot.ReadBFloat16(parameter.name, absl::MakeSpan(rounded)));
    EXPECT_EQ(rounded, expected_rounded);
    ASSERT_OK_AND_ASSIGN(const std::vector<PlaneRows> planes, snapshot.Map(parameter.name));
    int64_t next_row = 0;
    for (const PlaneRows& rows : planes) {
      EXPECT_EQ(rows.first_row, next_row);
      EXPECT_EQ(rows.matrix.gpu, -1);
      next_row += rows.matrix.rows;
    }
    EXPECT_EQ(next_row, parameter.rows);
  }
}

std::vector<ValuesCase> EveryValuesCase() {
  std::vector<ValuesCase> cases;
  for (const Format format : EveryFormat()) {
    for (const int ranks : {1, 2, 3, 5}) cases.push_back({format, ranks});
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(All, ReaderValuesTest, testing::ValuesIn(EveryValuesCase()), [](const auto& info) {
  return absl::StrCat(FormatName(info.param.format), "_", info.param.ranks);
});

TEST_F(ReaderTest, ParametersAreDescribed) {
  const auto reader = MakeReader();
  ASSERT_OK_AND_ASSIGN(const Snapshot snapshot, reader->Acquire());
  EXPECT_THAT(snapshot.parameters(),
              ElementsAre(Field(&ReadParameter::name, "m.w"), Field(&ReadParameter::name, "m.bias")));
  ASSERT_OK_AND_ASSIGN(const ReadParameter* const bias, snapshot.Find("m.bias"));
  EXPECT_THAT(bias->shape, ElementsAre(64));
  EXPECT_EQ(bias->rows, 1);
  EXPECT_EQ(bias->columns, 64);
  EXPECT_EQ(bias->encoding.format, Format::kFP32);
}

TEST_F(ReaderTest, ASnapshotHasTheDataOfItsVersion) {
  const auto reader = MakeReader();
  ASSERT_OK_AND_ASSIGN(const Snapshot first, reader->Acquire());
  EXPECT_EQ(first.data(), DataOf(50));
  PublishCommit(model_, 51);
  ASSERT_OK_AND_ASSIGN(const Snapshot second, reader->Acquire());
  EXPECT_EQ(second.data(), DataOf(51));
  EXPECT_EQ(first.data(), DataOf(50)) << "it is a copy";
  model_.Publish(VersionAt(52));
  ASSERT_OK_AND_ASSIGN(const Snapshot without, reader->Acquire());
  EXPECT_EQ(without.data(), "");
}

TEST_F(ReaderTest, AnUnknownNameGivesSimilarOnes) {
  const auto reader = MakeReader();
  ASSERT_OK_AND_ASSIGN(const Snapshot snapshot, reader->Acquire());
  EXPECT_THAT(snapshot.Find("m.bais"),
              StatusIs(absl::StatusCode::kNotFound, "parameter m.bais: not found in model m; similar: m.bias"));
  EXPECT_THAT(snapshot.Map("model.m.w"), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(snapshot.Find("head"), StatusIs(absl::StatusCode::kNotFound, "parameter head: not found in model m"));
}

TEST_F(ReaderTest, AnotherNumberOfValuesIsRefused) {
  const auto reader = MakeReader();
  ASSERT_OK_AND_ASSIGN(const Snapshot snapshot, reader->Acquire());
  std::vector<float> values(10);
  EXPECT_THAT(snapshot.Read("m.w", absl::MakeSpan(values)),
              StatusIs(absl::StatusCode::kInvalidArgument, "read m.w: want 64 x 32 values, got 10"));
}

// --- Leases

TEST_F(ReaderTest, ASnapshotHoldsTheWriterUntilItIsReleased) {
  const auto reader = MakeReader();
  const uint64_t generation = model_.page().gate().generation;
  {
    ASSERT_OK_AND_ASSIGN(Snapshot snapshot, reader->Acquire());
    EXPECT_TRUE(model_.lease().Holds(generation));
    snapshot.Release();
    EXPECT_FALSE(model_.lease().Holds(generation));
    EXPECT_THAT(snapshot.Check(),
                StatusIs(absl::StatusCode::kFailedPrecondition, "snapshot of m at commit 50: released"));
    EXPECT_THAT(ReadAll(snapshot, "m.w"), StatusIs(absl::StatusCode::kFailedPrecondition));
    snapshot.Release();
  }
  ASSERT_OK_AND_ASSIGN(std::optional<Snapshot> snapshot, reader->Acquire());
  EXPECT_TRUE(model_.lease().Holds(generation));
  snapshot.reset();
  EXPECT_FALSE(model_.lease().Holds(generation));
  EXPECT_EQ(model_.lease().released(), 2);
}

TEST_F(ReaderTest, AForcedWriterEndsSnapshots) {
  const auto reader = MakeReader();
  ASSERT_OK_AND_ASSIGN(const Snapshot snapshot, reader->Acquire());
  model_.Ask();
  EXPECT_OK(snapshot.Check());
  EXPECT_THAT(ReadAll(snapshot, "m.w"), IsOkAndHolds(std::vector<float>(64 * 32, 50.0f)));
  EXPECT_THAT(reader->Acquire({.timeout = kShort}).status(),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       AllOf(HasSubstr("acquire m: timed out after 50ms: "), HasSubstr("being written"))));
  model_.BeginWriting();
  EXPECT_THAT(snapshot.Check(), StatusIs(absl::StatusCode::kAborted,
                                         "snapshot of m at commit 50: ended, the model is being written now (commit 51 "
                                         "is applied); acquire another one"));
  EXPECT_THAT(ReadAll(snapshot, "m.w"), StatusIs(absl::StatusCode::kAborted));
  PublishCommit(model_, 51);
  EXPECT_THAT(snapshot.Check(),
              StatusIs(absl::StatusCode::kAborted,
                       "snapshot of m at commit 50: ended, the model is at commit 51 now; acquire another one"));
  ASSERT_OK_AND_ASSIGN(const Snapshot next, reader->Acquire());
  EXPECT_EQ(next.version().commit_number, 51);
  EXPECT_THAT(ReadAll(next, "m.bias"), IsOkAndHolds(std::vector<float>(64, -51.0f)));
}

TEST_F(ReaderTest, AnEndSaysWhatTheModelIsNow) {
  const auto reader = MakeReader();
  ASSERT_OK_AND_ASSIGN(const Snapshot snapshot, reader->Acquire());
  PublishCommit(model_, 50);
  EXPECT_THAT(snapshot.Check(), StatusIs(absl::StatusCode::kAborted, HasSubstr("ended, its planes have been written")));
  PublishCommit(model_, 3, 'b');
  EXPECT_THAT(snapshot.Check(),
              StatusIs(absl::StatusCode::kAborted, HasSubstr("the model is at commit 3 of another history now")));
  model_.End("it was deleted");
  EXPECT_THAT(snapshot.Check(), StatusIs(absl::StatusCode::kAborted, HasSubstr("(it was deleted)")));
}

TEST_F(ReaderTest, SnapshotsOfAGenerationShareTheLease) {
  const auto reader = MakeReader();
  const uint64_t generation = model_.page().gate().generation;
  ASSERT_OK_AND_ASSIGN(std::optional<Snapshot> first, reader->Acquire());
  ASSERT_OK_AND_ASSIGN(std::optional<Snapshot> second, reader->Acquire());
  first.reset();
  EXPECT_TRUE(model_.lease().Holds(generation));
  EXPECT_OK(second->Check());
  second.reset();
  EXPECT_FALSE(model_.lease().Holds(generation));
  EXPECT_EQ(daemon_->opened(), 1);
}

TEST_F(ReaderTest, AnEndedSnapshotReleasesNoLaterLease) {
  const auto reader = MakeReader();
  ASSERT_OK_AND_ASSIGN(std::optional<Snapshot> first, reader->Acquire());
  PublishCommit(model_, 51);
  ASSERT_OK_AND_ASSIGN(std::optional<Snapshot> second, reader->Acquire());
  first.reset();
  EXPECT_TRUE(model_.lease().Holds(model_.page().gate().generation));
  EXPECT_OK(second->Check());
  // Moving one over another ends it.
  ASSERT_OK_AND_ASSIGN(first, reader->Acquire());
  *second = *std::move(first);
  EXPECT_TRUE(model_.lease().Holds(model_.page().gate().generation));
  second.reset();
  EXPECT_FALSE(model_.lease().Holds(model_.page().gate().generation));
}

TEST_F(ReaderTest, ASnapshotOutlivesItsReader) {
  std::optional<Snapshot> snapshot;
  {
    const auto reader = MakeReader();
    ASSERT_OK_AND_ASSIGN(snapshot, reader->Acquire());
  }
  EXPECT_OK(snapshot->Check());
  EXPECT_THAT(ReadAll(*snapshot, "m.w"), IsOkAndHolds(std::vector<float>(64 * 32, 50.0f)));
}

TEST_F(ReaderTest, ThreadsShareOneConnection) {
  const auto reader = MakeReader();
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int round = 0; round < 50; ++round) {
        const absl::StatusOr<Snapshot> snapshot = reader->Acquire();
        ASSERT_OK(snapshot);
        EXPECT_THAT(ReadAll(*snapshot, "m.bias"), IsOkAndHolds(std::vector<float>(64, -50.0f)));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(daemon_->opened(), 1);
  EXPECT_FALSE(model_.lease().Holds(model_.page().gate().generation));
}

// --- Waiting

TEST_F(ReaderTest, AcquireWaitsForACommit) {
  const auto reader = MakeReader();
  ASSERT_OK(reader->WaitNewer({}, kLong));
  EXPECT_THAT(reader->Acquire({.min_commit = 51, .timeout = kShort}).status(),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       "acquire m: timed out after 50ms: want commit 51 or later, got 50"));
  EXPECT_EQ(model_.lease().released(), 0);
  std::thread writer([&] {
    PublishCommit(model_, 51);
    PublishCommit(model_, 52);
  });
  const absl::StatusOr<Snapshot> snapshot = reader->Acquire({.min_commit = 52, .timeout = kLong});
  writer.join();
  ASSERT_OK(snapshot);
  EXPECT_EQ(snapshot->version().commit_number, 52);
}

TEST_F(ReaderTest, WaitNewerReturnsAtAnyOtherHistory) {
  const auto reader = MakeReader();
  ASSERT_OK_AND_ASSIGN(const ModelVersion first, reader->WaitNewer({}, kLong));
  EXPECT_EQ(first.commit_number, 50);
  EXPECT_THAT(reader->WaitNewer(first, kShort),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       "wait for m: timed out after 50ms: want a version newer than commit 50"));
  PublishCommit(model_, 50);
  EXPECT_THAT(reader->WaitNewer(first, kShort), StatusIs(absl::StatusCode::kDeadlineExceeded));
  std::thread writer([&] { PublishCommit(model_, 7, 'b'); });
  const absl::StatusOr<ModelVersion> other = reader->WaitNewer(first, kLong);
  writer.join();
  ASSERT_OK(other);
  EXPECT_EQ(other->commit_number, 7);
  PublishCommit(model_, 8, 'b');
  ASSERT_OK_AND_ASSIGN(const ModelVersion newer, reader->WaitNewer(*other, kLong));
  EXPECT_EQ(newer, (ModelVersion{.history_id = std::string(32, 'b'), .commit_number = 8, .applied_commits = 8}));
  EXPECT_EQ(model_.lease().released(), 0);
}

TEST_F(ReaderTest, AcquireWaitsForTheModel) {
  daemon_->SetModel(nullptr);
  const auto reader = MakeReader();
  EXPECT_THAT(reader->Acquire({.timeout = kForAnAnswer}).status(),
              StatusIs(absl::StatusCode::kDeadlineExceeded, "acquire m: timed out after 1s: model m: not found"));
  std::thread creator([&] {
    EXPECT_TRUE(daemon_->AwaitAsked(2));
    daemon_->SetModel(&model_);
  });
  EXPECT_OK(reader->Acquire({.timeout = kLong}));
  creator.join();
}

TEST_F(ReaderTest, AcquireWaitsForADaemon) {
  const std::string path = absl::StrCat(directory_.path(), "/later");
  ASSERT_OK_AND_ASSIGN(const auto reader, Reader::Create({.model = "m", .socket_dir = path}));
  EXPECT_THAT(reader->Acquire({.timeout = kShort}).status(),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       AllOf(HasSubstr("acquire m: timed out after 50ms: connect: cannot reach a daemon at"),
                             HasSubstr(path), HasSubstr("start paramshardd"))));
  std::optional<FakeReaderDaemon> late;
  std::thread starter([&] {
    ASSERT_EQ(mkdir(path.c_str(), 0700), 0);
    late.emplace(path);
    late->SetModel(&model_);
  });
  EXPECT_OK(reader->Acquire({.timeout = kLong}));
  starter.join();
}

TEST_F(ReaderTest, ErrorsThatStayAreReturnedAtOnce) {
  const auto reader = MakeReader();
  for (const auto code : {grpc::StatusCode::FAILED_PRECONDITION, grpc::StatusCode::RESOURCE_EXHAUSTED,
                          grpc::StatusCode::PERMISSION_DENIED}) {
    daemon_->SetAnswer({code, "the daemon says so"});
    EXPECT_THAT(reader->Acquire({.timeout = kLong}).status(),
                StatusIs(static_cast<absl::StatusCode>(code), "the daemon says so"));
  }
  daemon_->SetAnswer({grpc::StatusCode::UNIMPLEMENTED, ""});
  EXPECT_THAT(
      reader->Acquire({.timeout = kLong}).status(),
      StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("serves no readers: it is of an older version")));
}

TEST_F(ReaderTest, ADrainingDaemonIsAskedAgain) {
  daemon_->SetAnswer({grpc::StatusCode::UNAVAILABLE, "the daemon drains"});
  const auto reader = MakeReader();
  EXPECT_THAT(reader->Acquire({.timeout = kForAnAnswer}).status(),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("the daemon drains")));
  daemon_->SetAnswer(grpc::Status::OK);
  EXPECT_OK(reader->Acquire({.timeout = kLong}));
}

TEST_F(ReaderTest, WaitsAreInterrupted) {
  std::atomic<int> asked = 0;
  const auto reader = MakeReader(
      {.interrupted = [&]() -> absl::Status { return ++asked < 3 ? absl::OkStatus() : absl::CancelledError("stop"); }});
  EXPECT_THAT(reader->Acquire({.min_commit = 51, .timeout = kLong}).status(),
              StatusIs(absl::StatusCode::kCancelled, "stop"));
  daemon_.reset();
  EXPECT_THAT(reader->Acquire({.timeout = kLong}).status(), StatusIs(absl::StatusCode::kCancelled, "stop"));
}

// --- The end of daemons and models

TEST_F(ReaderTest, ADaemonThatDiesLeavesMappingsAndComesBack) {
  const auto reader = MakeReader();
  ASSERT_OK_AND_ASSIGN(const Snapshot snapshot, reader->Acquire());
  ASSERT_OK_AND_ASSIGN(const std::vector<PlaneRows> mapped, snapshot.Map("m.w"));
  daemon_.reset();
  EXPECT_THAT(snapshot.Check(),
              StatusIs(absl::StatusCode::kUnavailable,
                       AllOf(HasSubstr("snapshot of m at commit 50: the daemon (pid "), HasSubstr("has died"))));
  EXPECT_THAT(ReadAll(snapshot, "m.w"), StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_THAT(reader->Acquire({.timeout = kShort}).status(),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("cannot reach a daemon at")));
  std::thread starter([&] { StartDaemon(); });
  const absl::StatusOr<Snapshot> next = reader->Acquire({.timeout = kLong});
  starter.join();
  ASSERT_OK(next);
  EXPECT_OK(next->Check());
  EXPECT_THAT(snapshot.Check(), StatusIs(absl::StatusCode::kUnavailable));
  std::vector<float> values(mapped[0].matrix.rows * mapped[0].matrix.columns);
  ASSERT_OK(mapped[0].matrix.Decode(values.data()));
  EXPECT_EQ(values[0], 50.0f);
}

TEST_F(ReaderTest, AWaitOutlivesItsDaemon) {
  const auto reader = MakeReader();
  ASSERT_OK(reader->Acquire());
  std::thread starter([&] {
    PublishCommit(model_, 51);
    StartDaemon();
    PublishCommit(model_, 52);
  });
  const absl::StatusOr<Snapshot> snapshot = reader->Acquire({.min_commit = 52, .timeout = kLong});
  starter.join();
  ASSERT_OK(snapshot);
  EXPECT_EQ(snapshot->version().commit_number, 52);
}

TEST_F(ReaderTest, ADeletedModelMayBeCreatedAgain) {
  const auto reader = MakeReader();
  ASSERT_OK(reader->Acquire());
  FakePublication again(CountingModel(Format::kBF16), 3);
  PublishCommit(again, 1, 'b');
  daemon_->SetModel(nullptr);
  model_.End("it was deleted");
  EXPECT_THAT(reader->Acquire({.timeout = kForAnAnswer}).status(),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("model m: not found")));
  daemon_->SetModel(&again);
  ASSERT_OK_AND_ASSIGN(const Snapshot snapshot, reader->Acquire({.timeout = kLong}));
  EXPECT_EQ(snapshot.version().commit_number, 1);
  EXPECT_EQ(snapshot.parameters()[0].encoding.format, Format::kBF16);
  EXPECT_THAT(ReadAll(snapshot, "m.w"), IsOkAndHolds(std::vector<float>(64 * 32, 1.0f)));
}

// --- Forked children

// Returns the texts of calls that a forked child is not refused.
std::string CallsThatAreNotRefused(Reader& reader, Snapshot& snapshot) {
  std::string answers;
  const std::vector<absl::Status> refused = {reader.Acquire().status(), reader.WaitNewer({}, kLong).status(),
                                             snapshot.Check(), snapshot.Map("m.w").status(),
                                             ReadAll(snapshot, "m.w").status()};
  for (const absl::Status& status : refused) {
    if (absl::IsFailedPrecondition(status) && absl::StrContains(status.message(), "in a forked child")) continue;
    absl::StrAppend(&answers, status.ToString(), "\n");
  }
  return answers;
}

TEST_F(ReaderTest, AForkedChildIsRefusedAndEndsNothing) {
  auto reader = MakeReader();
  ASSERT_OK_AND_ASSIGN(std::optional<Snapshot> snapshot, reader->Acquire());
  const pid_t child = fork();
  if (child == 0) {
    const std::string answers = CallsThatAreNotRefused(*reader, *snapshot);
    snapshot.reset();
    reader.reset();
    // A reader of the child's own would need gRPC.
    absl::StatusOr<std::unique_ptr<Reader>> own = Reader::Create({.model = "m", .socket_dir = directory_.path()});
    const bool is_refused = own.ok() && absl::IsFailedPrecondition((*own)->Acquire().status());
    if (!answers.empty()) write(STDERR_FILENO, answers.data(), answers.size());
    _exit(answers.empty() && is_refused ? 0 : 1);
  }
  EXPECT_THAT(test::AwaitChild(child, kLong), IsOkAndHolds(0));
  EXPECT_OK(snapshot->Check());
  EXPECT_TRUE(model_.lease().Holds(model_.page().gate().generation));
  EXPECT_THAT(ReadAll(*snapshot, "m.w"), IsOkAndHolds(std::vector<float>(64 * 32, 50.0f)));
  EXPECT_OK(reader->Acquire());
}

// --- What a daemon of another version, or a broken one, may send

class ReaderSessionTest : public testing::Test {
 protected:
  ReaderSessionTest() { PublishCommit(model_, 50); }

  // The daemon's end of the companion connection is closed at once.
  ReaderSession::Parts Parts() {
    int sockets[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets), 0);
    daemon_end_ = wire::FileDescriptor(sockets[0]);
    wire::FileDescriptor pidfd(static_cast<int>(syscall(SYS_pidfd_open, getpid(), 0)));
    return {.companion = internal::Companion(wire::FileDescriptor(sockets[1]), std::move(pidfd), "token", getpid()),
            .memory = model_.Memory(),
            .opened = model_.Answer()};
  }

  void ExpectRefused(ReaderSession::Parts parts, absl::StatusCode code, absl::string_view text) {
    EXPECT_THAT(ReaderSession::Create(std::move(parts)).status(), StatusIs(code, HasSubstr(text)));
  }

  FakePublication model_ = FakePublication(CountingModel(), 2);
  wire::FileDescriptor daemon_end_;
};

TEST_F(ReaderSessionTest, MemoryOfOtherSizesIsRefused) {
  using Change = std::function<internal::ReaderMemory::Part&(internal::ReaderMemory&)>;
  const std::pair<const char*, Change> parts[] = {
      {"publication page", [](auto& memory) -> auto& {return memory.publication;
}
}  // namespace
, {"lease page", [](auto& memory) -> auto& {return memory.lease;
}  // namespace paramshard
}
, {
  "planes of rank 1", [](auto& memory) -> auto& { return memory.planes[1]; }
}
}
;
for (const auto& [name, part] : parts) {
  for (const int64_t bytes : {int64_t{0}, int64_t{-1}, INT64_MAX, int64_t{4096}}) {
    ReaderSession::Parts stated = Parts();
    part(stated.memory).bytes = bytes;
    ExpectRefused(std::move(stated), absl::StatusCode::kInternal, absl::StrCat("reader memory: ", name, ": want "));
  }
  // A file that is shorter than it is said to be.
  ReaderSession::Parts shorter = Parts();
  part(shorter.memory).fd = SharedMemory(8).Duplicate();
  ExpectRefused(std::move(shorter), absl::StatusCode::kFailedPrecondition, ", got 8");
  ReaderSession::Parts open = Parts();
  internal::ReaderMemory::Part& changed = part(open.memory);
  changed.fd = wire::FileDescriptor(memfd_create("test", MFD_CLOEXEC));
  ASSERT_EQ(ftruncate(changed.fd.get(), changed.bytes), 0);
  ExpectRefused(std::move(open), absl::StatusCode::kFailedPrecondition, "not sealed against shrinking");
}
}

TEST_F(ReaderSessionTest, OtherRanksAreRefused) {
  const auto expect_refused = [&](const std::function<void(ReaderSession::Parts&)>& change, absl::StatusCode code,
                                  absl::string_view text) {
    ReaderSession::Parts parts = Parts();
    change(parts);
    ExpectRefused(std::move(parts), code, text);
  };
  expect_refused([](auto& parts) { parts.memory.planes.pop_back(); }, absl::StatusCode::kInternal,
                 "want planes of 2 ranks, got 1");
  expect_refused([](auto& parts) { parts.opened.add_gpu_uuids("0123456789abcdef"); }, absl::StatusCode::kInternal,
                 "want GPUs of 2 ranks, got 3");
  expect_refused([](auto& parts) { parts.opened.set_copies(3); }, absl::StatusCode::kInternal,
                 "want 1 to 2 copies of planes, got 3");
  expect_refused([](auto& parts) { parts.opened.set_copies(2); }, absl::StatusCode::kInternal,
                 "reader memory: planes of rank 0: want ");
  expect_refused([](auto& parts) { parts.opened.set_shard_size(0); }, absl::StatusCode::kInternal, "shard group");
  expect_refused([](auto& parts) { parts.opened.set_layout_fingerprint(1); }, absl::StatusCode::kFailedPrecondition,
                 "of different versions");
  expect_refused([](auto& parts) { parts.opened.clear_spec(); }, absl::StatusCode::kFailedPrecondition,
                 "of different versions");
}

TEST_F(ReaderSessionTest, PlanesOfAGpuSayWhichOne) {
  ReaderSession::Parts parts = Parts();
  parts.opened.set_gpu_uuids(0, "0123456789abcdef");
  parts.opened.set_gpu_uuids(1, "fedcba9876543210");
  parts.map_planes = [](absl::string_view uuid, const wire::FileDescriptor& fd, int64_t bytes) {
    absl::StatusOr<internal::PlaneMemory> memory = internal::MapPlanes("", fd, bytes);
    if (memory.ok()) memory->gpu = uuid[0] == '0' ? 3 : 4;
    return memory;
  };
  ASSERT_OK_AND_ASSIGN(const auto session, ReaderSession::Create(std::move(parts)));
  const std::vector<PlaneRows> rows = session->RowsOf(0, 1);
  ASSERT_EQ(rows.size(), 2);
  EXPECT_EQ(rows[0].matrix.gpu, 3);
  EXPECT_EQ(rows[1].matrix.gpu, 4);
}

TEST_F(ReaderSessionTest, NumbersThatNoDaemonWritesAreRefused) {
  ASSERT_OK_AND_ASSIGN(const auto session, ReaderSession::Create(Parts()));
  for (const wire::PublishedVersion& version : {VersionAt(5, 'g'), VersionAt(5, '\0'), VersionAt(-1)}) {
    model_.Publish(version);
    EXPECT_THAT(session->VersionOf(model_.page().gate()),
                StatusIs(absl::StatusCode::kInternal, HasSubstr("publication page of m: want a history")));
  }
}

TEST_F(ReaderSessionTest, MoreDataThanThereIsRoomForIsRefused) {
  ASSERT_OK_AND_ASSIGN(const auto session, ReaderSession::Create(Parts()));
  for (const uint64_t bytes : {uint64_t{kMaxReaderDataBytes + 1}, UINT64_MAX}) {
    wire::PublishedVersion version = VersionAt(5);
    version.data_bytes = bytes;
    model_.Publish(version);
    EXPECT_THAT(session->VersionOf(model_.page().gate()),
                StatusIs(absl::StatusCode::kInternal, HasSubstr("want at most 4096 bytes of data")));
  }
}

TEST_F(ReaderSessionTest, TextsAreShownInAFormForMessages) {
  ASSERT_OK_AND_ASSIGN(const auto session, ReaderSession::Create(Parts()));
  model_.BeginWriting("\x1b[31m\xff");
  EXPECT_EQ(session->publication_text(), "\\x1b[31m\\xff");
  model_.BeginWriting(std::string(4000, 'x'));
  EXPECT_EQ(session->publication_text(), std::string(wire::kPublicationTextBytes - 1, 'x'));
}

// The messages of the companion socket, without the rest of the daemon.
TEST_F(ReaderSessionTest, MessagesOutOfOrderAreRefused) {
  const auto receive = [&](int64_t ranks, std::vector<int64_t> order) {
    ReaderSession::Parts parts = Parts();
    const int pages[] = {parts.memory.publication.fd.get(), parts.memory.lease.fd.get()};
    const wire::CompanionReader reader{.publication_bytes = 1, .lease_bytes = 1, .ranks = ranks};
    EXPECT_OK(wire::SendCompanionPacket(daemon_end_.get(), wire::CompanionBytes(reader), pages));
    for (const int64_t rank : order) {
      const wire::CompanionPlanes planes{.rank = rank, .bytes = 1};
      EXPECT_OK(wire::SendCompanionPacket(daemon_end_.get(), wire::CompanionBytes(planes),
                                          absl::MakeConstSpan(&pages[0], 1)));
    }
    return parts.companion.ReceiveReader(kShort).status();
  };
  EXPECT_OK(receive(2, {0, 1}));
  EXPECT_THAT(receive(2, {1, 0}), StatusIs(absl::StatusCode::kInternal, HasSubstr("rank 0, got rank 1")));
  EXPECT_THAT(receive(2, {0}), StatusIs(absl::StatusCode::kDeadlineExceeded));
  for (const int64_t ranks : {int64_t{0}, int64_t{-1}, INT64_MAX}) {
    EXPECT_THAT(receive(ranks, {0}),
                StatusIs(absl::StatusCode::kInternal, HasSubstr("want planes of 1 to 4096 ranks")));
  }
}

TEST(ReaderOptionsTest, WrongOnesAreRefused) {
  const auto refuses = [](const Reader::Options& options, absl::string_view text) {
    EXPECT_THAT(Reader::Create(options).status(), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(text)));
  };
  refuses({}, "create reader: model: want a name of 1 to 512 bytes");
  refuses({.model = "m", .name = std::string(65, 'x')}, "create reader: want a name of at most 64 bytes of UTF-8, got");
  refuses({.model = "m", .name = "\xff"}, "of UTF-8, got");
  refuses({.model = "m", .connect_timeout = absl::ZeroDuration()}, "create reader: want connect_timeout > 0, got 0");
  refuses({.model = "m", .socket_dir = std::string(200, 'x')}, "socket directory");
}

TEST_F(ReaderTest, ItsNameIsTheProgramsUnlessGiven) {
  ASSERT_OK(MakeReader()->Acquire());
  EXPECT_EQ(daemon_->reader_name(), program_invocation_short_name);
  ASSERT_OK(MakeReader({.name = "evaluation"})->Acquire());
  EXPECT_EQ(daemon_->reader_name(), "evaluation");
}

// --- Stress

// Writes commits as fast as it can. It waits for leases a little, or not at all.
class Writer {
 public:
  explicit Writer(const FakePublication* model) : model_(model), thread_([this] { Run(); }) {}
  ~Writer() {
    stop_ = true;
    thread_.join();
  }

 private:
  void AwaitLease(bool held) {
    const uint64_t generation = model_->page().gate().generation;
    for (uint32_t rounds = random_() % 8; rounds > 0 && model_->lease().Holds(generation) != held; --rounds) {
      std::this_thread::yield();
    }
  }

  void Run() {
    for (int64_t commit = 51; !stop_; ++commit) {
      AwaitLease(true);
      model_->Ask();
      AwaitLease(false);
      PublishCommit(*model_, commit);
    }
  }

  const FakePublication* const model_;
  std::minstd_rand random_{1};
  std::atomic<bool> stop_ = false;
  std::thread thread_;
};

// Copies a parameter in two halves. `between` is called after the first.
absl::StatusOr<std::vector<float>> CopyInHalves(const Snapshot& snapshot, const std::function<void()>& between) {
  ASSIGN_OR_RETURN(const std::vector<PlaneRows> planes, snapshot.Map("m.w"));
  std::vector<float> values(64 * 32);
  for (const PlaneRows& rows : planes) {
    RETURN_IF_ERROR(rows.matrix.Decode(values.data() + rows.first_row * 32));
    if (rows.first_row == 0) between();
  }
  RETURN_IF_ERROR(snapshot.Check());
  return values;
}

TEST_F(ReaderTest, NoTornReadIsAccepted) {
  constexpr int kSnapshots = 100'000;
  const auto reader = MakeReader();
  ASSERT_OK(reader->Acquire());
  const Writer writer(&model_);
  int64_t last = 0, versions = 0, ended = 0;
  for (int i = 0; i < kSnapshots; ++i) {
    ASSERT_OK_AND_ASSIGN(const Snapshot snapshot, reader->Acquire({.timeout = kLong}));
    const int64_t commit = snapshot.version().commit_number;
    ASSERT_GE(commit, last);
    ASSERT_EQ(snapshot.data(), DataOf(commit));
    versions += commit > last ? 1 : 0;
    last = commit;
    // A reader that gives the processor away in the middle of its copy is often late.
    const auto between = [&] {
      if (i % 4 == 0) std::this_thread::yield();
    };
    const absl::StatusOr<std::vector<float>> values =
        i % 2 == 0 ? CopyInHalves(snapshot, between) : ReadAll(snapshot, "m.w");
    if (values.ok()) {
      ASSERT_EQ(*values, std::vector<float>(64 * 32, static_cast<float>(commit)));
    } else {
      ASSERT_THAT(values, StatusIs(absl::StatusCode::kAborted));
      ++ended;
    }
  }
  RecordProperty("versions", static_cast<int>(versions));
  RecordProperty("ended", static_cast<int>(ended));
  EXPECT_GT(versions, 1);
  EXPECT_GT(ended, 0);
}

}  // namespace
}  // namespace paramshard
