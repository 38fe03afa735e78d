#include "server/mirrors/image_store.h"

#include <cstring>
#include <memory>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/models/model_fixture.h"
#include "tests/support/status_matchers.h"

namespace paramshard::server {
namespace {

using ::testing::HasSubstr;

constexpr absl::Duration kLong = absl::Minutes(1);

// A model that trains, and the images of it.
class ImageStoreTest : public ModelTest {
 protected:
  wire::PublishedVersion Present() const { return *model_->publication().last_published(); }
  wire::PublishedVersion Later(int64_t commits) const {
    wire::PublishedVersion version = Present();
    version.commit_number += commits;
    return version;
  }
  using Image = std::shared_ptr<const PlaneImage>;
  absl::StatusOr<Image> Take(ImageStore& store, const wire::PublishedVersion& version, absl::Duration wait = kLong) {
    return store.Take(*model_, version, SteadyDeadline(wait), [] { return false; });
  }
  bool IsAsThePlanes(const PlaneImage& image) const {
    for (size_t rank = 0; rank < image.ranks.size(); ++rank) {
      const ShardMemory& memory = model_->committed().shards[rank]->memory();
      const absl::StatusOr<HostView> planes =
          memory.device().Read(memory.planes().data(), memory.planes().size_bytes());
      EXPECT_OK(planes.status());
      if (!planes.ok() || std::memcmp(planes->data(), image.ranks[rank].memory.data(), planes->size()) != 0)
        return false;
    }
    return true;
  }
  int64_t bytes() const { return PlaneImageBytes(model_->committed()); }
  static int64_t Used(const ImageStore& store) {
    int64_t bytes = 0;
    for (const auto& [model, of_model] : store.BytesByModel()) bytes += of_model;
    return bytes;
  }
};

TEST_F(ImageStoreTest, AnImageIsSharedAndEndsWithItsLastUser) {
  ImageStore store(std::nullopt);
  ASSERT_OK_AND_ASSIGN(Image first, Take(store, Present()));
  ASSERT_OK_AND_ASSIGN(Image second, Take(store, Present()));
  EXPECT_EQ(first, second);
  EXPECT_EQ(first->version, Present());
  EXPECT_TRUE(IsAsThePlanes(*first));
  EXPECT_EQ(Used(store), bytes());
  EXPECT_TRUE(store.IsBusyWith(*model_, Present()));
  first.reset();
  EXPECT_EQ(Used(store), bytes());
  second.reset();
  EXPECT_EQ(Used(store), 0);
  EXPECT_FALSE(store.IsBusyWith(*model_, Present()));
}

TEST_F(ImageStoreTest, AVersionThatIsStillToComeIsTakenAtItsCommit) {
  ImageStore store(std::nullopt);
  Attach();
  const wire::PublishedVersion wanted = Later(2);
  absl::StatusOr<Image> image;
  std::thread taking([&] { image = Take(store, wanted); });
  // The thread has asked when its image counts.
  while (Used(store) == 0) std::this_thread::yield();
  while (model_->publication().readers().empty()) std::this_thread::yield();
  for (int i = 0; i < 2; ++i) Step();
  taking.join();
  ASSERT_OK(image);
  EXPECT_EQ((*image)->version.commit_number, wanted.commit_number);
  EXPECT_TRUE(IsAsThePlanes(**image));
}

TEST_F(ImageStoreTest, APassedVersionIsAborted) {
  ImageStore store(std::nullopt);
  const wire::PublishedVersion before = Present();
  Attach();
  Step();
  EXPECT_THAT(Take(store, before), StatusIs(absl::StatusCode::kAborted, HasSubstr("want commit 0")));
  EXPECT_EQ(Used(store), 0);
}

TEST_F(ImageStoreTest, AnotherVersionWaitsForRoom) {
  ImageStore store(std::nullopt);
  ASSERT_OK_AND_ASSIGN(Image held, Take(store, Present()));
  EXPECT_THAT(Take(store, Later(1), absl::ZeroDuration()),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("images that other mirrors receive")));
  const ImageStore::IsCancelled is_cancelled = [] { return true; };
  EXPECT_THAT(store.Take(*model_, Later(1), SteadyDeadline(kLong), is_cancelled),
              StatusIs(absl::StatusCode::kCancelled));
  Attach();
  absl::StatusOr<Image> next;
  const wire::PublishedVersion wanted = Later(1);
  std::thread taking([&] { next = Take(store, wanted); });
  held.reset();
  while (model_->publication().readers().empty()) std::this_thread::yield();
  Step();
  taking.join();
  EXPECT_OK(next);
}

TEST_F(ImageStoreTest, TheMemoryIsBounded) {
  ImageStore none(0);
  EXPECT_THAT(Take(none, Present()),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("--mirror-image-memory is 0")));
  ImageStore small(bytes() - 1);
  EXPECT_THAT(Take(small, Present()),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("--mirror-image-memory allows")));
  ImageStore two(2 * bytes());
  ASSERT_OK_AND_ASSIGN(const Image first, Take(two, Present()));
  EXPECT_FALSE(two.IsBusyWith(*model_, Present()));
  Attach();
  Step();
  EXPECT_OK(Take(two, Present()));
}

}  // namespace
}  // namespace paramshard::server
