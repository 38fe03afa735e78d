#include "server/models/left_readers.h"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <csignal>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "common/shared_memory/publication_page.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/keeper/fake_kept_store.h"
#include "tests/support/child_process.h"
#include "tests/support/status_matchers.h"

namespace paramshard::server {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

constexpr absl::Duration kLong = absl::Hours(1);

test::ChildProcess Sleeper() {
  return test::ChildProcess::Run([](test::Board&) {
    pause();
    return absl::OkStatus();
  });
}

// A reader's mapping of its lease page, as a client has it.
class Mapping {
 public:
  explicit Mapping(int file) : data_(mmap(nullptr, wire::LeasePage::kBytes, PROT_READ, MAP_SHARED, file, 0)) {}
  ~Mapping() { munmap(data_, wire::LeasePage::kBytes); }

 private:
  void* const data_;
};

class LeftReadersTest : public testing::Test {
 protected:
  LeftReaders::Options Options(absl::Duration grace, bool ends = false) {
    return {.log = log_,
            .kept = &kept_,
            .ends = ends,
            .is_trainer = [this](pid_t pid) { return pid == trainer_; },
            .metrics = &metrics_,
            .grace = grace};
  }
  // Opens a reader of a new publication, in a process of the test's user.
  std::shared_ptr<Publication> Open(const std::string& model, pid_t pid, LeftReaders* left = nullptr,
                                    uid_t uid = geteuid()) {
    auto process = std::make_shared<const wire::FileDescriptor>(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
    const Publication::ReaderInfo info{
        .name = "eval", .pid = pid, .uid = uid, .mapped_bytes = 4096, .process = std::move(process)};
    std::shared_ptr<Publication> publication = *Publication::Create({});
    reader_ = *publication->AddReader(info);
    if (left != nullptr) left->Remember(model, info, reader_);
    return publication;
  }
  // A model with a reader, which is deleted.
  void Delete(const std::string& model, LeftReaders& left, pid_t pid = getpid(), uid_t uid = geteuid()) {
    const std::shared_ptr<Publication> publication = Open(model, pid, nullptr, uid);
    publication->End("deleted");
    left.Watch(model, publication);
  }
  // The mapping of the reader that was opened last.
  std::unique_ptr<Mapping> Map() { return std::make_unique<Mapping>(LockedFileOf(reader_->lease_page().fd())->get()); }
  KeptStore::Descriptors All() { return *kept_.TakeAll(); }

  const std::shared_ptr<ThrottledLog> log_ = std::make_shared<ThrottledLog>();
  MetricRegistry metrics_;
  FakeKeptStore kept_;
  pid_t trainer_ = 0;
  std::shared_ptr<Publication::Reader> reader_;
};

TEST_F(LeftReadersTest, AreListedUntilTheyLetGo) {
  LeftReaders left(Options(kLong));
  EXPECT_THAT(left.List(), IsEmpty());
  Delete("m", left);
  ASSERT_THAT(left.List(), SizeIs(1));
  EXPECT_EQ(left.List()[0].model, "m");
  EXPECT_EQ(left.List()[0].report.name, "eval");
  EXPECT_EQ(left.List()[0].report.mapped_bytes, 4096);
  reader_.reset();
  EXPECT_THAT(left.List(), IsEmpty());
}

TEST_F(LeftReadersTest, AModelWithoutReadersIsNotWatched) {
  LeftReaders left(Options(kLong));
  ASSERT_OK_AND_ASSIGN(const std::shared_ptr<Publication> publication, Publication::Create({}));
  publication->End("deleted");
  left.Watch("m", publication);
  Open("n", getpid());
  EXPECT_THAT(left.List(), IsEmpty());
}

TEST_F(LeftReadersTest, AreNamedAfterTheGrace) {
  testing::internal::CaptureStderr();
  {
    LeftReaders left(Options(absl::ZeroDuration()));
    Delete("first", left);
    const std::shared_ptr<Publication::Reader> first = std::exchange(reader_, nullptr);
    left.AwaitIdle();
    Delete("second", left);
    left.AwaitIdle();
    Delete("third", left);
    EXPECT_THAT(left.List(), SizeIs(2)) << "the reader of the second has left";
    left.AwaitIdle();
  }
  const std::string lines = testing::internal::GetCapturedStderr();
  for (const char* model : {"first", "second", "third"}) {
    EXPECT_THAT(lines, HasSubstr(absl::StrCat("reader still holds memory of a deleted model model=", model,
                                              " reader=eval pid=", getpid(), " bytes=4096")));
  }
}

TEST_F(LeftReadersTest, OneThatHasLetGoIsNotNamed) {
  testing::internal::CaptureStderr();
  {
    LeftReaders left(Options(absl::Milliseconds(50), /*ends=*/true));
    Delete("m", left);
    reader_.reset();
    left.AwaitIdle();
  }
  {
    LeftReaders left(Options(kLong, /*ends=*/true));
    Delete("n", left);
  }
  EXPECT_THAT(testing::internal::GetCapturedStderr(), Not(HasSubstr("deleted model"))) << "the end does not wait";
}

TEST_F(LeftReadersTest, OneThatLetsGoDuringTheBookkeepingIsNotEnded) {
  test::ChildProcess child = Sleeper(), trainer = Sleeper();
  std::shared_ptr<Publication::Reader> prompt;
  absl::Notification asked, deleted;
  int questions = 0;  // used by the thread
  LeftReaders::Options options = Options(absl::ZeroDuration(), /*ends=*/true);
  options.is_trainer = [&](pid_t) {
    if (++questions == 1) {
      asked.Notify();
      deleted.WaitForNotification();
      return true;
    }
    prompt.reset();
    return false;
  };
  LeftReaders left(options);
  Delete("first", left, trainer.pid());
  const std::shared_ptr<Publication::Reader> first = std::exchange(reader_, nullptr);
  asked.WaitForNotification();
  // The thread takes both at once, and remembers the one before it looks for the other.
  Open("second", getpid(), &left);
  const std::shared_ptr<Publication::Reader> second = std::exchange(reader_, nullptr);
  Delete("m", left, child.pid());
  prompt = std::exchange(reader_, nullptr);
  deleted.Notify();
  left.AwaitIdle();
  EXPECT_EQ(prompt, nullptr);
  EXPECT_EQ(metrics_.count(Metric::kReadersEnded, 0), 0);
  EXPECT_EQ(kill(child.pid(), 0), 0);
}

TEST_F(LeftReadersTest, AProcessOfTheUserIsKilled) {
  test::ChildProcess child = Sleeper();
  LeftReaders left(Options(absl::ZeroDuration(), /*ends=*/true));
  Delete("m", left, child.pid());
  EXPECT_THAT(child.Await(), StatusIs(absl::StatusCode::kUnknown, HasSubstr("9")));
  left.AwaitIdle();
  EXPECT_EQ(metrics_.count(Metric::kReadersEnded, 0), 1);
}

TEST_F(LeftReadersTest, ProcessesThatMustLiveAreNamedOnly) {
  test::ChildProcess trainer = Sleeper(), another = Sleeper();
  trainer_ = trainer.pid();
  testing::internal::CaptureStderr();
  {
    LeftReaders left(Options(absl::ZeroDuration(), /*ends=*/true));
    Delete("m", left, trainer.pid());
    left.AwaitIdle();
    Delete("m", left, another.pid(), geteuid() + 1);
    left.AwaitIdle();
    Delete("m", left, getpid());
    left.AwaitIdle();
  }
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              AllOf(HasSubstr("not_killed=\"it trains, or has trained\""),
                    HasSubstr(absl::StrCat("not_killed=\"it does not run as user ", geteuid())),
                    HasSubstr("not_killed=\"it is the daemon\""), Not(HasSubstr("killed a reader"))));
  EXPECT_EQ(kill(trainer.pid(), 0), 0);
  EXPECT_EQ(kill(another.pid(), 0), 0);
}

TEST_F(LeftReadersTest, TheNextServerKnowsThoseThatMapTheirPages) {
  test::ChildProcess child = Sleeper();
  std::unique_ptr<Mapping> mapping;
  {
    LeftReaders left(Options(kLong));
    Open("m", child.pid(), &left);
    mapping = Map();
    left.AwaitIdle();
  }
  reader_.reset();  // with the server
  KeptStore::Descriptors all = All();
  EXPECT_THAT(all, SizeIs(2));
  LeftReaders left(Options(kLong, /*ends=*/true));
  left.TakeOver(all);
  EXPECT_THAT(all, IsEmpty());
  ASSERT_THAT(left.List(), SizeIs(1));
  EXPECT_TRUE(left.List()[0].is_of_earlier_server);
  EXPECT_EQ(left.List()[0].model, "m");
  EXPECT_EQ(left.List()[0].report.pid, child.pid());
  mapping.reset();
  EXPECT_THAT(left.List(), IsEmpty());
}

TEST_F(LeftReadersTest, AReaderOfAnEarlierServerIsKilledAndForgotten) {
  test::ChildProcess child = Sleeper();
  std::unique_ptr<Mapping> mapping;
  {
    LeftReaders left(Options(kLong));
    Open("m", child.pid(), &left);
    mapping = Map();
    left.AwaitIdle();
  }
  reader_.reset();
  {
    KeptStore::Descriptors all = All();
    LeftReaders left(Options(absl::ZeroDuration(), /*ends=*/true));
    left.TakeOver(all);
    EXPECT_THAT(child.Await(), StatusIs(absl::StatusCode::kUnknown, HasSubstr("9")));
    left.AwaitIdle();
  }
  EXPECT_THAT(All(), SizeIs(2)) << "the page is still mapped";
  mapping.reset();
  KeptStore::Descriptors all = All();
  LeftReaders left(Options(absl::ZeroDuration(), /*ends=*/true));
  left.TakeOver(all);
  left.AwaitIdle();
  EXPECT_THAT(All(), IsEmpty());
}

TEST_F(LeftReadersTest, TrainersAreNotEndedByTheNextServer) {
  test::ChildProcess before = Sleeper(), after = Sleeper(), again = Sleeper();
  std::vector<std::unique_ptr<Mapping>> mappings;
  std::vector<std::shared_ptr<Publication::Reader>> readers;
  {
    LeftReaders left(Options(kLong));
    trainer_ = before.pid();
    for (const pid_t pid : {before.pid(), after.pid(), again.pid()}) {
      Open("m", pid, &left);
      mappings.push_back(Map());
      readers.push_back(reader_);
      left.AwaitIdle();
    }
    trainer_ = 0;
    left.NoteTrainer(after.pid());
    left.AwaitIdle();
  }
  EXPECT_THAT(All(), SizeIs(4)) << "three pages, and the process of the one that has not trained";
  testing::internal::CaptureStderr();
  {
    KeptStore::Descriptors all = All();
    LeftReaders left(Options(absl::Milliseconds(200), /*ends=*/true));
    left.TakeOver(all);
    left.NoteTrainer(again.pid());
    left.AwaitIdle();
  }
  const std::string lines = testing::internal::GetCapturedStderr();
  for (const pid_t pid : {before.pid(), after.pid(), again.pid()}) {
    EXPECT_THAT(lines, HasSubstr(absl::StrCat("reader still holds memory of a server that has ended model=m "
                                              "reader=eval pid=",
                                              pid, " bytes=4096 not_killed=\"it trains, or has trained\"")));
    EXPECT_EQ(kill(pid, 0), 0);
  }
}

TEST_F(LeftReadersTest, TheKeeperForgetsReadersThatHaveLeft) {
  LeftReaders left(Options(kLong));
  Open("m", getpid(), &left);
  left.AwaitIdle();
  EXPECT_THAT(All(), SizeIs(2));
  Open("m", getpid(), &left);
  left.AwaitIdle();
  EXPECT_THAT(All(), SizeIs(2));
}

TEST_F(LeftReadersTest, NamesThatNoServerWritesStay) {
  const wire::FileDescriptor file(memfd_create("x", MFD_CLOEXEC));
  const std::string nul(1, '\0'), prefix = absl::StrCat(nul, "reader", nul);
  std::vector<std::string> names;
  for (const char* words : {"", "x", "0", "-1", "1"}) names.push_back(absl::StrCat(prefix, words, nul, "page"));
  names.push_back(absl::StrCat(prefix, "3", nul, "page", nul, "12", nul, "x", nul, "1", nul, "m", nul, "r"));
  for (const std::string& name : names) ASSERT_OK(kept_.Keep(name, file.get()));
  KeptStore::Descriptors all = All();
  EXPECT_THAT(TakeReaders(all), IsEmpty());
  EXPECT_THAT(all, SizeIs(names.size()));
}

TEST_F(LeftReadersTest, LongNamesOfModelsAreKept) {
  const std::string model(512, 'm');
  const ReaderReport report{
      .name = std::string(200, 'r'), .pid = 1 << 30, .uid = 1U << 31, .mapped_bytes = 1LL << 62, .held = {}};
  ASSERT_OK_AND_ASSIGN(const std::shared_ptr<Publication> publication, Publication::Create({}));
  ASSERT_OK_AND_ASSIGN(reader_, publication->AddReader({}));
  ASSERT_OK(KeepReader(kept_, 1LL << 62, model, report, reader_->lease_page().fd()));
  KeptStore::Descriptors all = All();
  const std::vector<KeptReader> taken = TakeReaders(all);
  ASSERT_THAT(taken, SizeIs(1));
  EXPECT_EQ(taken[0].model, model);
  EXPECT_EQ(taken[0].report.mapped_bytes, report.mapped_bytes);
  EXPECT_TRUE(report.name.starts_with(taken[0].report.name));
}

}  // namespace
}  // namespace paramshard::server
