#include "server/data_plane/counted_mesh.h"

#include <memory>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"

namespace paramshard::server {
namespace {

// Exchanges nothing.
class StatusMesh final : public Mesh {
 public:
  explicit StatusMesh(absl::Status status) : Mesh({{0, 0}, {1, 1}}, 1), status_(std::move(status)) {}
  absl::Status Exchange(absl::Span<const PeerTransfer>, SteadyTime, absl::FunctionRef<void(int)>) override {
    return status_;
  }
  void Abort(const absl::Status& status) override { status_ = status; }
  Mesh& host_mesh() override { return *this; }
  absl::string_view name() const override { return "status"; }

 private:
  absl::Status status_;
};

const std::vector<PeerTransfer> kTransfers = {
    {.peer = 0, .sends = {{nullptr, 3}, {nullptr, 4}}, .receives = {{nullptr, 10}}},
    {.peer = 2, .sends = {{nullptr, 5}}, .receives = {}}};

std::vector<int64_t> Moved(const MetricRegistry& metrics) {
  std::vector<int64_t> moved;
  for (int series = 0; series < SeriesOf(TraitsOf(Metric::kMovedBytes)); ++series) {
    moved.push_back(metrics.count(Metric::kMovedBytes, series));
  }
  return moved;
}

TEST(CountedMeshTest, BytesOfExchangesThatSucceedAreCounted) {
  MetricRegistry metrics;
  CountedMesh mesh(std::make_unique<StatusMesh>(absl::OkStatus()), MovedBy::kGloo, metrics);
  EXPECT_OK(mesh.Exchange(kTransfers, SteadyNow(), [](int) {}));
  EXPECT_OK(mesh.Exchange(kTransfers, SteadyNow(), [](int) {}));
  EXPECT_EQ(Moved(metrics), (std::vector<int64_t>{0, 0, 0, 0, 24, 20, 0, 0}));
  mesh.Abort(absl::CancelledError("over"));
  EXPECT_THAT(mesh.Exchange(kTransfers, SteadyNow(), [](int) {}), StatusIs(absl::StatusCode::kCancelled));
  EXPECT_EQ(Moved(metrics), (std::vector<int64_t>{0, 0, 0, 0, 24, 20, 0, 0}));
}

TEST(CountedMeshTest, ItIsTheOtherMeshInAllElse) {
  auto other = std::make_unique<StatusMesh>(absl::OkStatus());
  Mesh* const host = &other->host_mesh();
  MetricRegistry metrics;
  CountedMesh mesh(std::move(other), MovedBy::kNccl, metrics);
  EXPECT_EQ(mesh.name(), "status");
  EXPECT_EQ(mesh.self(), 1);
  EXPECT_EQ(mesh.size(), 2);
  EXPECT_EQ(&mesh.host_mesh(), host);
}

}  // namespace
}  // namespace paramshard::server
