// A daemon that meets journals of another version of their format, as one that goes back, or forward, does.

#include <unistd.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/base/check.h"
#include "kernels/base/status_macros.h"
#include "server/device/kept_memory.h"
#include "server/journal/journal_layout.h"
#include "tests/server/edge/daemon_client.h"
#include "tests/server/journal/journal_version.h"
#include "tests/server/keeper/fake_kept_store.h"
#include "tests/server/state/test_spec.h"
#include "tests/support/status_matchers.h"

namespace paramshard::server {
namespace {

class JournalVersionTest : public DaemonTestBase {
 protected:
  JournalVersionTest() { PARAMSHARD_CHECK(Start().ok()); }
  // The keeper's descriptors outlive the daemons.
  ~JournalVersionTest() override { Stop(); }

  void Stop() {
    client_.reset();
    daemon_.reset();
  }
  absl::Status Start() {
    Stop();
    auto daemon = Daemon::Start(Config(), OpenDevices, {}, {.restart = nullptr, .kept = &kept_});
    RETURN_IF_ERROR(daemon.status());
    daemon_ = *std::move(daemon);
    client_ = std::make_unique<DaemonClient>(socket_dir());
    return absl::OkStatus();
  }
  // Returns all kept memory, byte for byte.
  std::map<std::string, std::string> Kept() {
    const auto taken = kept_.TakeAll();
    PARAMSHARD_CHECK(taken.ok());
    std::map<std::string, std::string> kept;
    for (const auto& [name, fd] : *taken) {
      std::string bytes(lseek(fd.get(), 0, SEEK_END), '\0');
      PARAMSHARD_CHECK(pread(fd.get(), bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size()));
      kept[name] = std::move(bytes);
    }
    return kept;
  }
  // Sets the format version of all kept journals.
  void SetVersion(uint32_t version) {
    const auto taken = kept_.TakeAll();
    ASSERT_OK(taken);
    for (const auto& [name, fd] : *taken) {
      if (!absl::StrContains(name, kJournalPiece)) continue;
      ASSERT_TRUE(SetJournalVersion(fd.get(), version)) << name;
    }
  }

  FakeKeptStore kept_;
};

// The keeper starts the program before it then.
TEST_F(JournalVersionTest, TheStartFailsAndTheModelStaysAsItIs) {
  ASSERT_OK(client_->CreateModel(MakeSpec("m", {MakeUnit("w", {MakeParameter("w.w", {6, 4})})})));
  const std::string hash = client_->StateHash("m");
  for (const uint32_t version : {kJournalVersion - 1, kJournalVersion + 1}) {
    Stop();
    SetVersion(version);
    const std::map<std::string, std::string> before = Kept();
    EXPECT_FALSE(before.empty());
    EXPECT_THAT(Start(), StatusIs(absl::StatusCode::kFailedPrecondition,
                                  testing::HasSubstr(absl::StrCat("model m: journal: want format version ",
                                                                  kJournalVersion, ", got ", version))));
    EXPECT_EQ(Kept(), before);
    SetVersion(kJournalVersion);
    ASSERT_OK(Start());
    EXPECT_EQ(client_->StateHash("m"), hash);
  }
}

}  // namespace
}  // namespace paramshard::server
