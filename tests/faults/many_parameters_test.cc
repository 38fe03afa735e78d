// A real daemon and a model with as many parameters as the largest models: all operations take time in proportion.

#include <sys/resource.h>

#include <optional>
#include <string>

#include "absl/base/config.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "client/client.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/faults/training.h"
#include "tests/support/child_process.h"
#include "tests/support/daemon_process.h"
#include "tests/support/environment.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temporary_directory.h"

namespace paramshard::test {
namespace {

using testing::HasSubstr;

#if defined(ABSL_HAVE_ADDRESS_SANITIZER) || defined(ABSL_HAVE_THREAD_SANITIZER)
constexpr int kParameters = 12'000;  // all of it takes some twenty times as long
#else
constexpr int kParameters = 100'000;
#endif
constexpr int kParametersOfAUnit = 100;

ModelSpec ModelOf(int parameters) {
  ModelSpec spec{.name = absl::StrCat("m", parameters)};
  for (int unit = 0; unit * kParametersOfAUnit < parameters; ++unit) {
    UnitSpec& made = spec.units.emplace_back();
    made.name = absl::StrCat("layers.", unit);
    for (int i = 0; i < kParametersOfAUnit; ++i) {
      made.parameters.push_back({.name = absl::StrCat("layers.", unit, ".experts.", i, ".weight"), .shape = {4}});
    }
  }
  return spec;
}

absl::Duration CpuTimeOf(int whose) {
  rusage usage{};
  getrusage(whose, &usage);
  return absl::DurationFromTimeval(usage.ru_utime) + absl::DurationFromTimeval(usage.ru_stime);
}

class ManyParametersTest : public testing::Test {
 protected:
  void SetUp() override {
    auto daemon =
        DaemonProcess::Start(Program(PARAMSHARDD), sockets_.path(), {"--device=cpu:0", "--save-dir=" + saves_.path()});
    ASSERT_OK(daemon.status());
    daemon_.emplace(*std::move(daemon));
  }

  // CPU time of daemon and trainers, which does not depend on other load of the machine.
  absl::Duration CpuTime() const { return daemon_->CpuTime() + CpuTimeOf(RUSAGE_SELF) + CpuTimeOf(RUSAGE_CHILDREN); }
  void ExpectPrinted(const std::string& arguments, const std::string& text) const {
    EXPECT_THAT(OutputOf(absl::StrCat(Program(PARAMSHARDCTL), " ", arguments)), IsOkAndHolds(HasSubstr(text)));
  }
  std::string OfDaemon(const std::string& arguments) const {
    return absl::StrCat("--socket-dir=", sockets_.path(), " ", arguments);
  }

  // Returns the time of all operations that a model needs once; adds the time of saving, listing and restoring to
  // `checkpoint`.
  absl::Duration LifeOf(int parameters, absl::Duration& checkpoint) {
    const absl::Duration begin = CpuTime();
    const ModelSpec spec = ModelOf(parameters);
    auto client = Client::Connect({.rank = 0, .socket_dir = sockets_.path()});
    EXPECT_OK(client.status());
    EXPECT_OK(client->CreateModel(spec));
    const absl::Duration created = CpuTime();
    const auto saved = client->Save(spec.name);
    EXPECT_OK(saved.status());
    EXPECT_TRUE(saved.ok() && saved->is_saved());
    ExpectPrinted(absl::StrCat("checkpoint list ", saves_.path(), "/", spec.name), "step-000000000000-");
    EXPECT_OK(client->Restore(spec.name, "latest").status());
    checkpoint += CpuTime() - created;
    ExpectPrinted(absl::StrCat("checkpoint describe ", saved->path), spec.units.back().parameters.back().name);
    EXPECT_OK(client->OpenModel(spec).status());
    ExpectPrinted(OfDaemon("shards " + spec.name), spec.units.back().parameters.back().name);
    ExpectPrinted(OfDaemon("verify " + spec.name), "");
    EXPECT_OK(client->DeleteModel(spec.name));
    return CpuTime() - begin;
  }

  const TemporaryDirectory saves_;
  const TemporaryDirectory sockets_;
  std::optional<DaemonProcess> daemon_;
};

TEST_F(ManyParametersTest, AHundredThousandAreSavedListedAndRestoredInProportion) {
  absl::Duration checkpoint_of_fewer;
  absl::Duration checkpoint;
  const absl::Duration fewer = LifeOf(kParameters / 8, checkpoint_of_fewer);
  const absl::Duration more = LifeOf(kParameters, checkpoint);
  RecordProperty("checkpoint_seconds", absl::StrCat(absl::ToDoubleSeconds(checkpoint)));
  // 8 times as many; 64 times where something looks through all of them for each.
  EXPECT_LT(more, 20 * fewer) << kParameters / 8 << ": " << fewer;
  EXPECT_LT(checkpoint, 20 * checkpoint_of_fewer) << kParameters / 8 << ": " << checkpoint_of_fewer;
}

}  // namespace
}  // namespace paramshard::test
