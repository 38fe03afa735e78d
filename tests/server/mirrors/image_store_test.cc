#include "server/mirrors/image_store.h"

#include <cstring>
#include <memory>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/base/status_macros.h"
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
    ASSIGN_OR_RETURN(const SharedImage image, store.Take(*model_, version, SteadyDeadline(wait), [] { return false; }));
    for (int rank = 0; rank < image->ranks(); ++rank) {
      RETURN_IF_ERROR(image->AwaitCopied(rank, image->planes(rank).size_bytes()));
    }
    return image.get();
  }
  static std::unique_ptr<ImageStore> Started(ImageStore::Options options = {}) {
    absl::StatusOr<std::unique_ptr<ImageStore>> store = ImageStore::Start(options);
    EXPECT_OK(store.status());
    return *std::move(store);
  }
  bool IsAsThePlanes(const PlaneImage& image) const {
    for (int rank = 0; rank < image.ranks(); ++rank) {
      const ShardMemory& memory = model_->committed().shards[rank]->memory();
      const absl::StatusOr<HostView> planes =
          memory.device().Read(memory.planes().data(), memory.planes().size_bytes());
      EXPECT_OK(planes.status());
      if (!planes.ok() || std::memcmp(planes->data(), image.planes(rank).data(), planes->size()) != 0) return false;
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

TEST_F(ImageStoreTest, AnImageIsSharedUntilItsLastUserEnds) {
  const std::unique_ptr<ImageStore> owner = Started();
  ImageStore& store = *owner;
  ASSERT_OK_AND_ASSIGN(Image first, Take(store, Present()));
  ASSERT_OK_AND_ASSIGN(Image second, Take(store, Present()));
  EXPECT_EQ(first, second);
  EXPECT_EQ(first->version(), Present());
  EXPECT_TRUE(IsAsThePlanes(*first));
  EXPECT_EQ(Used(store), bytes());
  EXPECT_TRUE(store.IsBusyWith(*model_, Present()));
  first.reset();
  EXPECT_EQ(Used(store), bytes());
  second.reset();
  EXPECT_FALSE(store.IsBusyWith(*model_, Present()));
}

// Mirrors that are cut off and try again would keep the others from every later version.
TEST_F(ImageStoreTest, AnImageOfAPassedVersionIsSharedForABoundedTime) {
  Attach();
  for (const absl::Duration shared : {absl::ZeroDuration(), kLong}) {
    SCOPED_TRACE(shared);
    const auto store = Started({.shared = shared});
    const wire::PublishedVersion version = Present();
    ASSERT_OK_AND_ASSIGN(const Image held, Take(*store, version));
    EXPECT_THAT(Take(*store, version), IsOkAndHolds(held)) << "the model is at that version";
    EXPECT_TRUE(store->IsBusyWith(*model_, version));
    Step();
    EXPECT_EQ(store->IsBusyWith(*model_, version), shared > absl::ZeroDuration());
    if (shared > absl::ZeroDuration()) {
      EXPECT_THAT(Take(*store, version), IsOkAndHolds(held));
    } else {
      EXPECT_THAT(Take(*store, version, absl::ZeroDuration()),
                  StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("images that other mirrors receive")));
    }
  }
}

TEST_F(ImageStoreTest, TheMemoryOfAnImageServesTheNextOne) {
  const auto store = Started({.memory_bytes = bytes()});
  Attach();
  const uint8_t* memory = nullptr;
  for (int i = 0; i < 3; ++i) {
    ASSERT_OK_AND_ASSIGN(const Image image, Take(*store, Present()));
    if (i > 0) EXPECT_EQ(image->planes(0).data(), memory);
    memory = image->planes(0).data();
    EXPECT_TRUE(IsAsThePlanes(*image));
    EXPECT_EQ(Used(*store), bytes());
    Step();
  }
}

TEST_F(ImageStoreTest, MemoryThatNoImageNeedsIsFreed) {
  const auto store = Started({.idle = absl::ZeroDuration()});
  ASSERT_OK(Take(*store, Present()));
  while (Used(*store) > 0) std::this_thread::yield();
}

TEST_F(ImageStoreTest, AnImageWhoseLeaseHasEndedIsWorthless) {
  std::vector<HostPlanes> memory;
  ASSERT_OK_AND_ASSIGN(const auto image,
                       PlaneImage::Begin(
                           model_->committed(), Present(), SteadyDeadline(kLong), [] { return false; }, memory));
  absl::Status awaited;
  std::thread sending([&] { awaited = image->AwaitCopied(0, 1); });
  { const Publication::Writing writing(model_->publication(), Publication::Hold::kNone); }
  const auto is_aborted = StatusIs(absl::StatusCode::kAborted, HasSubstr("a step did not wait"));
  EXPECT_THAT(image->Copy(model_->committed()), is_aborted);
  sending.join();
  EXPECT_THAT(awaited, is_aborted);
  EXPECT_THAT(image->AwaitCopied(0, 1), is_aborted);
}

TEST_F(ImageStoreTest, AVersionThatIsStillToComeIsTakenAtItsCommit) {
  const std::unique_ptr<ImageStore> owner = Started();
  ImageStore& store = *owner;
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
  EXPECT_EQ((*image)->version().commit_number, wanted.commit_number);
  EXPECT_TRUE(IsAsThePlanes(**image));
}

TEST_F(ImageStoreTest, APassedVersionIsAborted) {
  const std::unique_ptr<ImageStore> owner = Started();
  ImageStore& store = *owner;
  const wire::PublishedVersion before = Present();
  Attach();
  Step();
  EXPECT_THAT(Take(store, before), StatusIs(absl::StatusCode::kAborted, HasSubstr("want commit 0")));
  EXPECT_FALSE(store.IsBusyWith(*model_, before));
}

TEST_F(ImageStoreTest, AnotherVersionWaitsForRoom) {
  const std::unique_ptr<ImageStore> owner = Started();
  ImageStore& store = *owner;
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
  const auto none = Started({.memory_bytes = 0});
  EXPECT_THAT(Take(*none, Present()),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("--mirror-image-memory is 0")));
  const auto small = Started({.memory_bytes = bytes() - 1});
  EXPECT_THAT(Take(*small, Present()),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("--mirror-image-memory allows")));
  const auto two = Started({.memory_bytes = 2 * bytes()});
  ASSERT_OK_AND_ASSIGN(const Image first, Take(*two, Present()));
  EXPECT_FALSE(two->IsBusyWith(*model_, Present()));
  Attach();
  Step();
  EXPECT_OK(Take(*two, Present()));
}

}  // namespace
}  // namespace paramshard::server
