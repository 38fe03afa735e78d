// Extents whose state and planes lie on the GPU, for tests of FusedAdamPlan.

#ifndef PARAMSHARD_TESTS_KERNELS_DEVICE_ADAM_H_
#define PARAMSHARD_TESTS_KERNELS_DEVICE_ADAM_H_

#include <cstdint>
#include <vector>

#include "kernels/optim/adam_cuda.h"
#include "tests/kernels/adam_state.h"
#include "tests/kernels/gpu_test.h"
#include "tests/kernels/planes.h"

namespace paramshard::gpu {

// How far the arrays are from an aligned address, in bytes.
struct Offsets {
  int64_t state = 0;
  int64_t moments = 0;
  int64_t planes = 0;
};

// One extent on the GPU, beside a copy on the host that takes the same steps.
class DeviceAdam {
 public:
  DeviceAdam(const Encoding& encoding, int64_t rows, int64_t columns, const OwnedState& state, const Offsets& offsets)
      : encoding_(encoding),
        rows_(rows),
        columns_(columns),
        expected_(state),
        expected_planes_(encoding, rows, columns),
        gradient_(std::vector<float>(rows * columns), offsets.state),
        master_(state.master, offsets.state),
        exp_avg_(state.exp_avg.bytes(), offsets.moments),
        exp_avg_sq_(state.exp_avg_sq.bytes(), offsets.moments),
        row_data_(expected_planes_.row_wise.data, offsets.planes),
        row_scales_(expected_planes_.row_wise.scales, offsets.planes),
        column_data_(expected_planes_.column_wise.data, offsets.planes),
        column_scales_(expected_planes_.column_wise.scales, offsets.planes) {}

  AdamExtent extent() const {
    AdamExtent extent;
    extent.gradient = gradient_.data();
    extent.state = {.master = master_.data(),
                    .exp_avg = {.data = exp_avg_.data(), .type = expected_.exp_avg.type()},
                    .exp_avg_sq = {.data = exp_avg_sq_.data(), .type = expected_.exp_avg_sq.type()}};
    extent.rows = rows_;
    extent.columns = columns_;
    extent.encoding = encoding_;
    extent.row_wise = {row_data_.data(), row_scales_.data()};
    if (HasColumnPlane(encoding_.format)) extent.column_wise = {column_data_.data(), column_scales_.data()};
    return extent;
  }

  int64_t count() const { return rows_ * columns_; }
  int64_t rows() const { return rows_; }
  int64_t columns() const { return columns_; }

  void SetGradient(const std::vector<float>& gradient) {
    expected_gradient_ = gradient;
    gradient_.Upload(gradient);
  }

  void ExpectStep(const AdamStep& step) {
    FusedAdam(step, expected_gradient_.data(), expected_.View(), rows_, columns_, encoding_,
              expected_planes_.row_wise.View(), expected_planes_.column_wise.View());
  }
  void ExpectEncoded() {
    EncodePlanes(encoding_, expected_.master.data(), rows_, columns_, expected_planes_.row_wise.View(),
                 expected_planes_.column_wise.View());
  }

  std::vector<float> DownloadMaster() const { return master_.Download(); }
  std::vector<uint8_t> DownloadRowData() const { return row_data_.Download(); }

  // The GPU's bytes are those expected.
  void Check() const {
    EXPECT_TRUE(SameBytes(AsBytes(expected_.master), AsBytes(master_.Download()))) << "master";
    EXPECT_TRUE(SameBytes(expected_.exp_avg.bytes(), exp_avg_.Download())) << "exp_avg";
    EXPECT_TRUE(SameBytes(expected_.exp_avg_sq.bytes(), exp_avg_sq_.Download())) << "exp_avg_sq";
    EXPECT_TRUE(SameBytes(expected_planes_.row_wise.data, row_data_.Download())) << "row-wise data";
    EXPECT_TRUE(SameBytes(expected_planes_.row_wise.scales, row_scales_.Download())) << "row-wise scales";
    EXPECT_TRUE(SameBytes(expected_planes_.column_wise.data, column_data_.Download())) << "column-wise data";
    EXPECT_TRUE(SameBytes(expected_planes_.column_wise.scales, column_scales_.Download())) << "column-wise scales";
  }

 private:
  Encoding encoding_;
  int64_t rows_;
  int64_t columns_;
  OwnedState expected_;
  OwnedPlanes expected_planes_;
  std::vector<float> expected_gradient_;
  DeviceArray<float> gradient_;
  DeviceArray<float> master_;
  DeviceArray<uint8_t> exp_avg_;
  DeviceArray<uint8_t> exp_avg_sq_;
  DeviceArray<uint8_t> row_data_;
  DeviceArray<uint8_t> row_scales_;
  DeviceArray<uint8_t> column_data_;
  DeviceArray<uint8_t> column_scales_;
};

}  // namespace paramshard::gpu

#endif  // PARAMSHARD_TESTS_KERNELS_DEVICE_ADAM_H_
