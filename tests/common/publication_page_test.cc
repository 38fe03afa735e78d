#include "common/shared_memory/publication_page.h"

#include <string>
#include <thread>

#include "absl/time/time.h"
#include "gtest/gtest.h"

namespace paramshard::wire {
namespace {

struct alignas(64) Memory {
  char bytes[PublicationPage::kBytes] = {};
};

TEST(PublicationPageTest, AGateIsOneNumber) {
  for (const auto state : {Gate::State::kValid, Gate::State::kAsked, Gate::State::kWriting, Gate::State::kEnded}) {
    const Gate gate{.generation = 123456789012, .state = state};
    EXPECT_EQ(Gate::Unpack(gate.packed()), gate);
  }
}

TEST(PublicationPageTest, ATextIsCutToItsRoom) {
  Memory memory;
  const PublicationPage page(&memory);
  page.SetText(std::string(2 * kPublicationTextBytes, 'x'));
  EXPECT_EQ(page.text(), std::string(kPublicationTextBytes - 1, 'x'));
  page.SetText("short");
  EXPECT_EQ(page.text(), "short");
}

TEST(PublicationPageTest, AWaitEndsWhenTheGateChanges) {
  Memory memory;
  const PublicationPage page(&memory);
  const Gate writing{.generation = 1, .state = Gate::State::kWriting};
  const Gate valid{.generation = 1, .state = Gate::State::kValid};
  page.SetGate(writing);
  page.AwaitChange(valid, absl::InfiniteDuration());
  std::thread reader([&] {
    while (page.gate() == writing) page.AwaitChange(writing, absl::Hours(1));
  });
  page.SetGate(valid);
  reader.join();
}

}  // namespace
}  // namespace paramshard::wire
