// Planes that are all that there is of a parameter: what a process leaves of them, on every kind of device.
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/device/kept_memory.h"
#include "server/state/scaling_book.h"
#include "server/state/shard.h"
#include "tests/server/device/faulty_device.h"
#include "tests/server/keeper/fake_kept_store.h"
#include "tests/server/state/test_spec.h"
#include "tests/support/every_format.h"
#include "tests/support/status_matchers.h"

namespace paramshard::server {
namespace {

// In fp32 more than a reader takes at a time.
constexpr int64_t kRows = 300;
constexpr int64_t kColumns = 4096;

class KeptPlanesTest : public testing::TestWithParam<Format> {
 protected:
  void SetUp() override {
    auto devices = OpenFaultyDevices(1, &faults_);
    if (absl::IsFailedPrecondition(devices.status())) GTEST_SKIP() << devices.status();
    ASSERT_OK(devices);
    devices_ = *std::move(devices);
    v1::ParameterSpec frozen = MakeParameter("f", {kRows, kColumns}, static_cast<v1::Format>(GetParam()));
    frozen.set_trainable(false);
    frozen.mutable_initial_value()->mutable_normal()->set_standard_deviation(0.5f);
    spec_ = Parse(MakeSpec("m", {MakeUnit("u", {frozen, MakeParameter("w", {4, 32})})}));
    layout_ = std::make_unique<Layout>(spec_, 1);
  }

  std::unique_ptr<Shard> MakeShard(KeptMemory& memory) {
    auto shard =
        Shard::Create(spec_, *layout_, 0, devices_.front().get(), {.moves = {.moves = true}, .memory = &memory});
    EXPECT_OK(shard);
    return shard.ok() ? *std::move(shard) : nullptr;
  }
  static std::vector<std::string> Planes(const Shard& shard) {
    std::vector<std::string> bytes;
    const auto planes = PlaneBytes(shard.memory(), *shard.extents().Find(0, 0));
    EXPECT_OK(planes);
    for (const PlaneViews& plane : *planes) {
      for (const HostView* const view : {&plane.data, &plane.scales, &plane.amax}) {
        bytes.emplace_back(view->bytes().begin(), view->bytes().end());
      }
    }
    return bytes;
  }

  DeviceFaults faults_;
  std::vector<std::unique_ptr<ComputeDevice>> devices_;
  FakeKeptStore store_;
  ModelSpec spec_;
  std::unique_ptr<Layout> layout_;
};

TEST_P(KeptPlanesTest, ComeBackByteForByte) {
  ScalingBook book(spec_);
  std::vector<std::string> expected;
  {
    KeptMemory memory("m", &store_);
    const std::unique_ptr<Shard> shard = MakeShard(memory);
    ASSERT_NE(shard, nullptr);
    ASSERT_OK(shard->MeasureAmaxes(book));
    book.Settle(book.Offer());
    ASSERT_OK(shard->EncodePlanes(book));
    ASSERT_OK(shard->KeepPlanes());
    expected = Planes(*shard);
  }
  auto all = store_.TakeAll();
  ASSERT_OK(all);
  KeptMemory memory("m", &store_, std::move(KeptModels::Sort(*std::move(all)).models["m"]));
  const std::unique_ptr<Shard> shard = MakeShard(memory);
  ASSERT_NE(shard, nullptr);
  EXPECT_FALSE(Planes(*shard) == expected) << "they end with the process";
  ASSERT_OK(shard->BringBackPlanes());
  ASSERT_OK(shard->EncodePlanes(book));
  EXPECT_TRUE(Planes(*shard) == expected);
}

INSTANTIATE_TEST_SUITE_P(Formats, KeptPlanesTest, testing::ValuesIn(EveryFormat()),
                         [](const auto& info) { return std::string(FormatName(info.param)); });

}  // namespace
}  // namespace paramshard::server
