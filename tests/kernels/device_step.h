// Extents whose state and planes lie on the GPU, for tests of FusedStepPlan.

#ifndef PARAMSHARD_TESTS_KERNELS_DEVICE_STEP_H_
#define PARAMSHARD_TESTS_KERNELS_DEVICE_STEP_H_

#include <cstdint>
#include <vector>

#include "kernels/formats/bfloat16.h"
#include "kernels/optim/fused_step_cuda.h"
#include "kernels/optim/master_remainder.h"
#include "tests/kernels/gpu_test.h"
#include "tests/kernels/optimizer_state.h"
#include "tests/kernels/planes.h"

namespace paramshard::gpu {

// How far the arrays are from an aligned address, in bytes.
struct Offsets {
  int64_t state = 0;
  int64_t moments = 0;
  int64_t planes = 0;
};

// A moment on the GPU.
class DeviceMoments {
 public:
  DeviceMoments(const Moments& moments, int64_t offset)
      : type_(moments.type()), data_(moments.bytes(), offset), scales_(moments.scales()) {}

  MutableMoment View() const { return {data_.data(), scales_.data(), type_}; }

  void ExpectSame(const Moments& expected, const char* name) const {
    EXPECT_TRUE(SameBytes(expected.bytes(), data_.Download())) << name;
    EXPECT_TRUE(SameBytes(AsBytes(expected.scales()), AsBytes(scales_.Download()))) << name << " scales";
  }

 private:
  MomentType type_;
  DeviceArray<uint8_t> data_;
  DeviceArray<float> scales_;
};

class DevicePlane {
 public:
  DevicePlane(const OwnedPlane& plane, int64_t offset)
      : data_(plane.data, offset), scales_(plane.scales, offset), amax_(plane.amax, offset) {}

  MutablePlane View() const { return {data_.data(), scales_.data(), amax_.data()}; }
  std::vector<uint8_t> DownloadData() const { return data_.Download(); }

  void ExpectSame(const OwnedPlane& expected, const char* name) const {
    EXPECT_TRUE(SameBytes(expected.data, data_.Download())) << name << " data";
    EXPECT_TRUE(SameBytes(expected.scales, scales_.Download())) << name << " scales";
    EXPECT_TRUE(SameBytes(expected.amax, amax_.Download())) << name << " amax";
  }

 private:
  DeviceArray<uint8_t> data_;
  DeviceArray<uint8_t> scales_;
  DeviceArray<uint8_t> amax_;
};

// One extent on the GPU, beside a copy on the host that takes the same steps.
class DeviceStep {
 public:
  // kSplit: the master is BF16 weights and remainders; of BF16 only.
  enum class Master { kFloat, kSplit };

  DeviceStep(const Encoding& encoding, int64_t rows, int64_t columns, const OwnedState& state, const Offsets& offsets,
             Master master = Master::kFloat, GradientType gradient_type = GradientType::kFP32)
      : encoding_(encoding),
        rows_(rows),
        columns_(columns),
        is_split_(master == Master::kSplit),
        expected_(state),
        expected_planes_(encoding, rows, columns),
        expected_remainder_(Split(is_split_, state, expected_planes_)),
        gradient_type_(gradient_type),
        gradient_(std::vector<uint8_t>(rows * columns * GradientBytes(gradient_type)), offsets.state),
        master_(state.master, offsets.state),
        remainder_(expected_remainder_, offsets.state / 2 * 2),
        exp_avg_(state.exp_avg, offsets.moments),
        exp_avg_sq_(state.exp_avg_sq, offsets.moments),
        row_wise_(expected_planes_.row_wise, is_split_ ? offsets.planes / 2 * 2 : offsets.planes),
        column_wise_(expected_planes_.column_wise, offsets.planes) {}

  StepExtent extent() const {
    StepExtent extent;
    extent.gradient = {gradient_.data(), gradient_type_};
    extent.state = {.master = is_split_ ? nullptr : master_.data(),
                    .remainder = is_split_ ? remainder_.data() : nullptr,
                    .moments = {exp_avg_.View(), exp_avg_sq_.View()}};
    expected_.DropMoments(extent.state);
    extent.rows = rows_;
    extent.columns = columns_;
    extent.encoding = encoding_;
    extent.row_wise = row_wise_.View();
    if (HasColumnPlane(encoding_.format)) extent.column_wise = column_wise_.View();
    return extent;
  }

  const Encoding& encoding() const { return encoding_; }
  int moment_count() const { return expected_.moment_count; }
  int64_t count() const { return rows_ * columns_; }
  int64_t rows() const { return rows_; }
  int64_t columns() const { return columns_; }

  // With the amax of the latest expectation.
  const TensorScaling& scaling() const { return scaling_; }
  void set_scaling(const TensorScaling& scaling) { scaling_ = scaling; }

  // Rounded to the gradients' type.
  void SetGradient(const std::vector<float>& gradient) {
    expected_gradient_ = gradient;
    if (gradient_type_ == GradientType::kFP32) return gradient_.Upload(AsBytes(gradient));
    std::vector<uint16_t> rounded;
    for (float& value : expected_gradient_) {
      rounded.push_back(EncodeBFloat16(value));
      value = DecodeBFloat16(rounded.back());
    }
    gradient_.Upload(AsBytes(rounded));
  }

  // Steps on the host, and encodes formats that encode afterwards with this extent's amax.
  void ExpectStep(const OptimizerStep& step) {
    OptimizerState state = expected_.View();
    if (is_split_) {
      state.master = nullptr;
      state.remainder = expected_remainder_.data();
    }
    const float amax = FusedStep(step, expected_gradient_.data(), state, rows_, columns_, encoding_,
                                 expected_planes_.row_wise.View(), expected_planes_.column_wise.View(), scaling_);
    if (NeedsAmax(encoding_.format)) scaling_.amax = amax;
    if (EncodesAfterAmax(encoding_.format)) EncodeExpected();
  }
  void ExpectEncoded() {
    scaling_.amax = Amax(expected_.master.data(), count());
    if (!is_split_) EncodeExpected();
  }
  // Encodes with the scaling that was set.
  void EncodeExpected() {
    EncodePlanes(encoding_, expected_.master.data(), rows_, columns_, expected_planes_.row_wise.View(),
                 expected_planes_.column_wise.View(), scaling_);
  }

  std::vector<float> DownloadMaster() const { return master_.Download(); }
  std::vector<uint8_t> DownloadRowData() const { return row_wise_.DownloadData(); }

  // Checks that the GPU's bytes equal the expected bytes.
  void Check() const {
    if (is_split_) {
      EXPECT_TRUE(SameBytes(AsBytes(expected_remainder_), AsBytes(remainder_.Download()))) << "remainder";
    } else {
      EXPECT_TRUE(SameBytes(AsBytes(expected_.master), AsBytes(master_.Download()))) << "master";
    }
    exp_avg_.ExpectSame(expected_.exp_avg, "exp_avg");
    exp_avg_sq_.ExpectSame(expected_.exp_avg_sq, "exp_avg_sq");
    row_wise_.ExpectSame(expected_planes_.row_wise, "row-wise");
    column_wise_.ExpectSame(expected_planes_.column_wise, "column-wise");
  }

 private:
  // Leaves the weights in the row-wise plane and returns the remainders.
  static std::vector<int16_t> Split(bool is_split, const OwnedState& state, OwnedPlanes& planes) {
    if (!is_split) return {};
    std::vector<int16_t> remainders(state.master.size());
    SplitMasters(state.master.data(), static_cast<int64_t>(remainders.size()), planes.row_wise.data.data(),
                 remainders.data());
    return remainders;
  }

  Encoding encoding_;
  int64_t rows_;
  int64_t columns_;
  bool is_split_;
  TensorScaling scaling_ = {0.0f, 37.5f};
  OwnedState expected_;
  OwnedPlanes expected_planes_;
  std::vector<int16_t> expected_remainder_;
  std::vector<float> expected_gradient_;
  GradientType gradient_type_;
  DeviceArray<uint8_t> gradient_;
  DeviceArray<float> master_;
  DeviceArray<int16_t> remainder_;
  DeviceMoments exp_avg_;
  DeviceMoments exp_avg_sq_;
  DevicePlane row_wise_;
  DevicePlane column_wise_;
};

}  // namespace paramshard::gpu

#endif  // PARAMSHARD_TESTS_KERNELS_DEVICE_STEP_H_
