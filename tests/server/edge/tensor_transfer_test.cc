#include "server/edge/tensor_transfer.h"

#include <grpcpp/generic/generic_stub.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/shared_memory/crc32c.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/edge/daemon_client.h"
#include "tests/server/edge/test_session.h"
#include "tests/server/models/test_world.h"
#include "tests/server/state/test_spec.h"
#include "tests/support/status_matchers.h"

namespace paramshard::server {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

using Floats = std::vector<float>;

constexpr int kElements = 7 * 4;

// Values that are all different.
Floats Ramp(int64_t count, float first = 1) {
  Floats values(count);
  std::iota(values.begin(), values.end(), first);
  return values;
}

v1::ImportRequest Header(const std::string& model = "m") {
  v1::ImportRequest request;
  request.mutable_header()->set_model(model);
  return request;
}

v1::ImportRequest Tensor(const std::string& parameter, std::vector<int64_t> shape,
                         v1::TensorKind kind = v1::TENSOR_KIND_MASTER) {
  v1::ImportRequest request;
  v1::TensorHeader& tensor = *request.mutable_tensor();
  tensor.set_parameter(parameter);
  tensor.set_kind(kind);
  tensor.mutable_shape()->Assign(shape.begin(), shape.end());
  tensor.set_rows(shape.size() < 2 ? 1 : shape[0]);
  return request;
}

v1::ImportRequest Chunk(int64_t offset_bytes, absl::Span<const float> values) {
  v1::ImportRequest request;
  v1::TensorChunk& chunk = *request.mutable_chunk();
  chunk.set_offset_bytes(offset_bytes);
  chunk.set_data(std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)));
  chunk.set_crc32c(wire::Crc32c(chunk.data()));
  return request;
}

// Returns a chunk of 16-bit elements.
v1::ImportRequest Bits(const std::vector<uint16_t>& bits) {
  v1::ImportRequest request;
  v1::TensorChunk& chunk = *request.mutable_chunk();
  chunk.set_data(std::string(reinterpret_cast<const char*>(bits.data()), bits.size() * sizeof(uint16_t)));
  chunk.set_crc32c(wire::Crc32c(chunk.data()));
  return request;
}

// The end message that goes with them.
v1::ImportRequest EndOf(const std::vector<v1::ImportRequest>& requests) {
  v1::ImportRequest request;
  v1::ImportEnd& end = *request.mutable_end();
  for (const v1::ImportRequest& sent : requests) {
    if (sent.has_tensor()) end.set_slice_count(end.slice_count() + 1);
    if (!sent.has_chunk()) continue;
    end.set_size_bytes(end.size_bytes() + static_cast<int64_t>(sent.chunk().data().size()));
    end.set_crc32c(wire::ExtendCrc32c(end.crc32c(), sent.chunk().crc32c()));
  }
  return request;
}

v1::ImportRequest SliceOfW(int64_t first_row, int64_t rows) {
  v1::ImportRequest request = Tensor("w", {7, 4});
  request.mutable_tensor()->set_first_row(first_row);
  request.mutable_tensor()->set_rows(rows);
  return request;
}

// An exported tensor, put together from all ranks' extents.
struct Exported {
  v1::ExportHeader header;
  std::map<std::pair<std::string, v1::TensorKind>, Floats> tensors;
  std::map<std::string, int64_t> steps;
};

class TensorTransferTest : public DaemonTestBase {
 protected:
  TensorTransferTest() { Create(); }

  void Create() {
    v1::ModelSpec spec = MakeSpec("m", {MakeUnit("u", {MakeParameter("w", {7, 4}), MakeParameter("b", {5})}),
                                        MakeUnit("v", {MakeParameter("big", {1500, 512}, v1::FORMAT_MXFP8)})});
    spec.mutable_units(0)->mutable_parameters(0)->mutable_initial_value()->mutable_constant()->set_value(1);
    EXPECT_OK(client_->CreateModel(spec));
    hash_ = client_->StateHash("m");
  }

  absl::StatusOr<v1::ImportResponse> Import(std::vector<v1::ImportRequest> requests) {
    requests.push_back(EndOf(requests));
    return Send(requests);
  }
  // Sends the requests as they are, without an end message.
  absl::StatusOr<v1::ImportResponse> Send(const std::vector<v1::ImportRequest>& requests) {
    const auto context = client_->Context();
    v1::ImportResponse response;
    const auto writer = client_->trainer().Import(context.get(), &response);
    for (const v1::ImportRequest& request : requests) {
      if (!writer->Write(request)) break;
    }
    writer->WritesDone();
    const grpc::Status status = writer->Finish();
    if (!status.ok()) return FromGrpc(status);
    return response;
  }
  void ExpectRefused(const std::vector<v1::ImportRequest>& requests, absl::StatusCode code,
                     const std::string& message) {
    const std::string before = client_->StateHash("m");
    EXPECT_THAT(Import(requests), StatusIs(code, HasSubstr(message)));
    EXPECT_EQ(client_->StateHash("m"), before) << message;
  }
  void ExpectInvalid(const std::vector<v1::ImportRequest>& requests, const std::string& message) {
    ExpectRefused(requests, absl::StatusCode::kInvalidArgument, message);
  }

  absl::StatusOr<Exported> Export(const v1::ExportRequest& request) {
    const auto context = client_->Context();
    const auto reader = client_->trainer().Export(context.get(), request);
    Exported exported;
    v1::ExportResponse response;
    Floats* tensor = nullptr;
    int64_t first = 0;
    while (reader->Read(&response)) {
      if (response.has_header()) exported.header = response.header();
      if (response.has_tensor()) {
        const v1::TensorHeader& header = response.tensor();
        const auto& shape = header.shape();
        tensor = &exported.tensors[{header.parameter(), header.kind()}];
        tensor->resize(std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>()));
        first = header.first_row() * (shape.empty() ? 1 : shape[shape.size() - 1]);
        exported.steps[header.parameter()] = header.step();
      }
      if (response.has_chunk()) {
        const v1::TensorChunk& chunk = response.chunk();
        EXPECT_LE(static_cast<int64_t>(chunk.data().size()), kMaxChunkBytes);
        EXPECT_EQ(chunk.crc32c(), wire::Crc32c(chunk.data()));
        chunk.data().copy(reinterpret_cast<char*>(tensor->data() + first) + chunk.offset_bytes(), chunk.data().size());
      }
    }
    const grpc::Status status = reader->Finish();
    if (!status.ok()) return FromGrpc(status);
    return exported;
  }
  Floats MasterOf(const std::string& parameter) {
    absl::StatusOr<Exported> exported = Export(ExportOf({parameter}));
    EXPECT_OK(exported);
    return exported->tensors[{parameter, v1::TENSOR_KIND_MASTER}];
  }

  static v1::ExportRequest ExportOf(std::vector<std::string> parameters, std::vector<v1::TensorKind> kinds = {}) {
    v1::ExportRequest request;
    request.set_model("m");
    request.mutable_parameters()->Assign(parameters.begin(), parameters.end());
    for (v1::TensorKind kind : kinds) request.add_kinds(kind);
    return request;
  }

  std::string hash_;
};

// --- Import ---

TEST_F(TensorTransferTest, WhatIsImportedIsExported) {
  v1::ImportRequest with_step = Tensor("w", {7, 4});
  with_step.mutable_tensor()->set_step(9);
  v1::ImportRequest header = Header();
  header.mutable_header()->set_commit_number(12);
  header.mutable_header()->set_version(10);
  ASSERT_OK_AND_ASSIGN(const v1::ImportResponse response,
                       Import({header, with_step, Chunk(0, Ramp(10)), Chunk(40, Ramp(kElements - 10, 11)),
                               Tensor("w", {7, 4}, v1::TENSOR_KIND_EXP_AVG), Chunk(0, Ramp(kElements, 100)),
                               Tensor("b", {5}, v1::TENSOR_KIND_EXP_AVG_SQ), Chunk(0, Ramp(5, 200))}));
  EXPECT_EQ(response.tensor_count(), 3);
  EXPECT_EQ(response.byte_count(), (2 * kElements + 5) * 4);
  ASSERT_OK_AND_ASSIGN(
      const Exported exported,
      Export(ExportOf({"w", "b"}, {v1::TENSOR_KIND_MASTER, v1::TENSOR_KIND_EXP_AVG, v1::TENSOR_KIND_EXP_AVG_SQ})));
  EXPECT_EQ(exported.header.version(), 10);
  EXPECT_EQ(exported.header.commit_number(), 12);
  EXPECT_EQ(exported.tensors.at({"w", v1::TENSOR_KIND_MASTER}), Ramp(kElements));
  EXPECT_EQ(exported.tensors.at({"w", v1::TENSOR_KIND_EXP_AVG}), Ramp(kElements, 100));
  EXPECT_EQ(exported.tensors.at({"w", v1::TENSOR_KIND_EXP_AVG_SQ}), Floats(kElements)) << "it was not given";
  EXPECT_EQ(exported.tensors.at({"b", v1::TENSOR_KIND_EXP_AVG_SQ}), Ramp(5, 200));
  EXPECT_EQ(exported.steps.at("w"), 9);
  EXPECT_EQ(exported.steps.at("b"), 0);
  client_->StateHash("m");  // and its planes are those of the new master
}

TEST_F(TensorTransferTest, ATensorOfSeveralChunksGoesThroughBothWays) {
  const Floats values = Ramp(1500 * 512);
  std::vector<v1::ImportRequest> requests{Header(), Tensor("big", {1500, 512})};
  // No chunk ends where a rank's rows do.
  for (size_t first = 0; first < values.size();) {
    const size_t count = std::min<size_t>(first == 0 ? 12'345 : kMaxChunkBytes / 4, values.size() - first);
    requests.push_back(Chunk(static_cast<int64_t>(first) * 4, absl::MakeConstSpan(values).subspan(first, count)));
    first += count;
  }
  ASSERT_OK(Import(requests));
  ASSERT_OK_AND_ASSIGN(const Exported exported, Export(ExportOf({"big"})));
  EXPECT_TRUE(exported.tensors.at({"big", v1::TENSOR_KIND_MASTER}) == values);
}

TEST_F(TensorTransferTest, AnImportWithoutNumbersKeepsThem) {
  ASSERT_OK(Import({Header(), Tensor("b", {5}), Chunk(0, Ramp(5))}));
  ASSERT_OK_AND_ASSIGN(const Exported exported, Export(ExportOf({})));
  EXPECT_EQ(exported.header.version(), 0);
  EXPECT_EQ(exported.header.commit_number(), 0);
  EXPECT_THAT(exported.tensors, SizeIs(3)) << "no name means all";
}

TEST_F(TensorTransferTest, AHeaderAloneSetsNumbers) {
  v1::ImportRequest header = Header();
  header.mutable_header()->set_commit_number(5);
  header.mutable_header()->set_version(4);
  ASSERT_OK(Import({header}));
  EXPECT_EQ(Export(ExportOf({"b"}))->header.version(), 4);
  EXPECT_EQ(client_->StateHash("m"), hash_);
}

TEST_F(TensorTransferTest, TheFirstMessageIsTheHeader) {
  ExpectInvalid({}, "want the header as the first message");
  ExpectInvalid({Tensor("b", {5})}, "want the header");
  ExpectInvalid({v1::ImportRequest()}, "want the header");
  ExpectInvalid({Header(), Header()}, "want one header, got a second");
}

TEST_F(TensorTransferTest, UnknownNamesAreNotFound) {
  ExpectRefused({Header("x")}, absl::StatusCode::kNotFound, "model x");
  ExpectRefused({Header(), Tensor("x", {5})}, absl::StatusCode::kNotFound, "import into m: parameter x not found");
  ExpectRefused({Header(), Tensor("", {5})}, absl::StatusCode::kNotFound, "parameter \"\" not found");
}

TEST_F(TensorTransferTest, TensorsOfAnotherShapeAreRefused) {
  ExpectInvalid({Header(), Tensor("w", {4, 7})}, "import w: want shape [7, 4], got [4, 7]");
  ExpectInvalid({Header(), Tensor("w", {28})}, "got [28]");
  ExpectInvalid({Header(), Tensor("w", {})}, "got []");
  ExpectInvalid({Header(), Tensor("w", {7, 4}, v1::TENSOR_KIND_UNSPECIFIED)}, "unknown tensor kind 0");
  ExpectInvalid({Header(), Tensor("w", {7, 4}, static_cast<v1::TensorKind>(77))}, "unknown tensor kind 77");
}

TEST_F(TensorTransferTest, SlicesLieInTheTensor) {
  ExpectInvalid({Header(), SliceOfW(0, 0)}, "import w: want rows in [0, 7), got [0, 0)");
  ExpectInvalid({Header(), SliceOfW(0, 8)}, "want rows in [0, 7)");
  ExpectInvalid({Header(), SliceOfW(1, 7)}, "want rows in [0, 7)");
  ExpectInvalid({Header(), SliceOfW(-1, 2)}, "want rows in [0, 7)");
  ExpectInvalid({Header(), SliceOfW(INT64_MAX, INT64_MAX)}, "want rows in [0, 7)");
  ExpectInvalid({Header(), SliceOfW(INT64_MIN, -1)}, "want rows in [0, 7)");
  ExpectInvalid({Header(), SliceOfW(2, 3), Chunk(0, Ramp(28))}, "48 bytes in all, got 112");
  ExpectInvalid({Header(), SliceOfW(2, 3), Chunk(0, Ramp(8))}, "want 48 bytes, got 32");
}

TEST_F(TensorTransferTest, ARowComesOnce) {
  ExpectInvalid({Header(), Tensor("b", {5}), Chunk(0, Ramp(5)), Tensor("b", {5})}, "got [0, 1) again");
  const std::vector<v1::ImportRequest> slice = {Header(), SliceOfW(2, 3), Chunk(0, Ramp(12))};
  for (const v1::ImportRequest& again : {SliceOfW(2, 3), SliceOfW(0, 3), SliceOfW(4, 1), SliceOfW(0, 7)}) {
    std::vector<v1::ImportRequest> requests = slice;
    requests.push_back(again);
    ExpectInvalid(requests, "import w: want each row of its master once");
  }
}

TEST_F(TensorTransferTest, SlicesChangeTheirRowsAlone) {
  ASSERT_OK(Import({Header(), SliceOfW(5, 1), Chunk(0, Ramp(4, 100)), SliceOfW(1, 2), Chunk(0, Ramp(8, 10))}));
  const Floats w = MasterOf("w");
  EXPECT_EQ(Floats(w.begin(), w.begin() + 4), Floats(4, 1));
  EXPECT_EQ(Floats(w.begin() + 4, w.begin() + 12), Ramp(8, 10));
  EXPECT_EQ(Floats(w.begin() + 12, w.begin() + 20), Floats(8, 1));
  EXPECT_EQ(Floats(w.begin() + 20, w.begin() + 24), Ramp(4, 100));
  EXPECT_EQ(Floats(w.begin() + 24, w.end()), Floats(4, 1));
}

// Each rank of the group owns a part of the rows.
TEST_F(TensorTransferTest, SlicesOfALargeParameterChangeTheirRowsAlone) {
  ASSERT_OK(Import({Header(), Tensor("big", {1500, 512}), Chunk(0, Floats(262144, 2)),
                    Chunk(1048576, Floats(262144, 2)), Chunk(2097152, Floats(1500 * 512 - 2 * 262144, 2))}));
  v1::ImportRequest slice = Tensor("big", {1500, 512});
  slice.mutable_tensor()->set_first_row(700);
  slice.mutable_tensor()->set_rows(100);
  ASSERT_OK(Import({Header(), slice, Chunk(0, Floats(100 * 512, 3))}));
  ASSERT_OK_AND_ASSIGN(Exported exported, Export(ExportOf({"big"})));
  const Floats& big = exported.tensors[{"big", v1::TENSOR_KIND_MASTER}];
  for (int64_t row = 0; row < 1500; ++row) {
    ASSERT_EQ(big[row * 512 + 7], row < 700 || row >= 800 ? 2.0f : 3.0f) << row;
  }
}

TEST_F(TensorTransferTest, NarrowTypesAreWidenedExactly) {
  v1::ImportRequest tensor = Tensor("b", {5});
  tensor.mutable_tensor()->set_type(v1::TENSOR_TYPE_BF16);
  ASSERT_OK(Import({Header(), tensor, Bits({0x3f80, 0xc000, 0x0001, 0x7f7f, 0x8000})}));
  const float smallest_bf16 = std::ldexp(1.0f, -133);
  const float largest_bf16 = std::ldexp(255.0f, 120);
  EXPECT_THAT(MasterOf("b"), ElementsAre(1.0f, -2.0f, smallest_bf16, largest_bf16, -0.0f));
  tensor.mutable_tensor()->set_type(v1::TENSOR_TYPE_FP16);
  ASSERT_OK(Import({Header(), tensor, Bits({0x3c00, 0xc000, 0x0001, 0x7bff, 0x8000})}));
  EXPECT_THAT(MasterOf("b"), ElementsAre(1.0f, -2.0f, std::ldexp(1.0f, -24), 65504.0f, -0.0f));
}

TEST_F(TensorTransferTest, OtherTypesAreRefused) {
  v1::ImportRequest tensor = Tensor("b", {5});
  tensor.mutable_tensor()->set_type(static_cast<v1::TensorType>(4));
  ExpectInvalid({Header(), tensor}, "import b: want type FP32, BF16 or FP16 for master, got FP8_E4M3");
  tensor.mutable_tensor()->set_type(v1::TENSOR_TYPE_BF16);
  ExpectInvalid({Header(), tensor, Chunk(0, Ramp(5))}, "10 bytes in all, got 20");
}

TEST_F(TensorTransferTest, AStepIsNotNegative) {
  v1::ImportRequest tensor = Tensor("b", {5});
  tensor.mutable_tensor()->set_step(-1);
  ExpectInvalid({Header(), tensor}, ", got -1");
}

TEST_F(TensorTransferTest, ChunksAreInOrderAndComplete) {
  ExpectInvalid({Header(), Chunk(0, Ramp(5))}, "want a tensor header, got a chunk");
  ExpectInvalid({Header(), Tensor("b", {5}), Chunk(4, Ramp(4))}, "want a chunk at offset 0, got 4");
  ExpectInvalid({Header(), Tensor("b", {5}), Chunk(0, Ramp(2)), Chunk(0, Ramp(2))}, "want a chunk at offset 8, got 0");
  ExpectInvalid({Header(), Tensor("b", {5}), Chunk(-4, Ramp(2))}, "got -4");
  ExpectInvalid({Header(), Tensor("b", {5}), Chunk(0, Ramp(6))}, "got 24 bytes at offset 0");
  ExpectInvalid({Header(), Tensor("b", {5}), Chunk(0, {})}, "got 0 at offset 0");
  ExpectInvalid({Header(), Tensor("b", {5}), Chunk(0, Ramp(3))}, "want 20 bytes, got 12");
  ExpectInvalid({Header(), Tensor("b", {5})}, "want 20 bytes, got 0");
  ExpectInvalid({Header(), Tensor("b", {5}), Chunk(0, Ramp(3)), Tensor("w", {7, 4})}, "want 20 bytes, got 12");
  ExpectInvalid({Header(), Tensor("b", {5}), v1::ImportRequest()}, "want tensor, chunk or end");
}

TEST_F(TensorTransferTest, AChunkHasWholeFloatsAndALimit) {
  v1::ImportRequest half = Chunk(0, Ramp(2));
  half.mutable_chunk()->mutable_data()->pop_back();
  half.mutable_chunk()->set_crc32c(wire::Crc32c(half.chunk().data()));
  ExpectInvalid({Header(), Tensor("b", {5}), half}, "whole elements");
  ExpectInvalid({Header(), Tensor("big", {1500, 512}), Chunk(0, Ramp(kMaxChunkBytes / 4 + 1))}, "1 to 1048576 bytes");
}

TEST_F(TensorTransferTest, AWrongChecksumIsDataLoss) {
  v1::ImportRequest chunk = Chunk(8, Ramp(3));
  chunk.mutable_chunk()->set_crc32c(chunk.chunk().crc32c() ^ 1);
  ExpectRefused({Header(), Tensor("w", {7, 4}), Chunk(0, Ramp(kElements)), Tensor("b", {5}), Chunk(0, Ramp(2)), chunk},
                absl::StatusCode::kDataLoss, "import b: the chunk at offset 8");
}

TEST_F(TensorTransferTest, NumbersOutOfOrderAreRefused) {
  const auto header = [](int64_t commit_number, int64_t version) {
    v1::ImportRequest request = Header();
    request.mutable_header()->set_commit_number(commit_number);
    request.mutable_header()->set_version(version);
    return request;
  };
  ExpectInvalid({header(3, 4)}, "want 0 <= version <= commit number < 4611686018427387904");
  ExpectInvalid({header(3, -1)}, "got version -1");
  ExpectInvalid({header(-3, -4)}, "got version -4");
}

// The epoch after such an import would count past what 64 bits hold.
TEST_F(TensorTransferTest, NumbersWithoutASuccessorAreRefused) {
  v1::ImportRequest header = Header();
  header.mutable_header()->set_commit_number(INT64_MAX);
  ExpectInvalid({header}, "commit number 9223372036854775807");
  v1::ImportRequest tensor = Tensor("b", {5});
  tensor.mutable_tensor()->set_step(INT64_MAX);
  ExpectInvalid({Header(), tensor, Chunk(0, Ramp(5))}, "want 0 <= step < 4611686018427387904");
}

TEST_F(TensorTransferTest, WithATrainerNothingIsImported) {
  TestSession session(socket_dir());
  session.Attach(MakeAttach("m", 0));
  ASSERT_TRUE(session.Read().has_accepted());
  ExpectRefused({Header(), Tensor("b", {5}), Chunk(0, Ramp(5))}, absl::StatusCode::kFailedPrecondition, "rank 0");
}

TEST_F(TensorTransferTest, AParameterHasOneStepCount) {
  const auto with_step = [](v1::TensorKind kind, int64_t step) {
    v1::ImportRequest request = Tensor("b", {5}, kind);
    request.mutable_tensor()->set_step(step);
    return request;
  };
  const v1::ImportRequest chunk = Chunk(0, Ramp(5));
  ExpectInvalid({Header(), with_step(v1::TENSOR_KIND_MASTER, 8), chunk, with_step(v1::TENSOR_KIND_EXP_AVG, 9), chunk},
                "import b: want one step count for all its tensors, got 9 after 8");
  EXPECT_OK(Import({Header(), with_step(v1::TENSOR_KIND_MASTER, 8), chunk, with_step(v1::TENSOR_KIND_EXP_AVG, 8), chunk,
                    Tensor("b", {5}, v1::TENSOR_KIND_EXP_AVG_SQ), chunk}));
}

// --- The end of an import ---

TEST_F(TensorTransferTest, WithoutTheEndMessageNothingChanges) {
  const std::vector<v1::ImportRequest> requests = {Header(), Tensor("b", {5}), Chunk(0, Ramp(5))};
  for (size_t sent = 1; sent <= requests.size(); ++sent) {
    EXPECT_THAT(Send({requests.begin(), requests.begin() + sent}),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("without an end message")));
    EXPECT_EQ(client_->StateHash("m"), hash_);
  }
}

TEST_F(TensorTransferTest, AnEndWithOtherCountsChangesNothing) {
  const std::vector<v1::ImportRequest> requests = {Header(), Tensor("b", {5}), Chunk(0, Ramp(5))};
  const auto send_with = [&](const std::function<void(v1::ImportEnd&)>& change) {
    std::vector<v1::ImportRequest> changed = requests;
    changed.push_back(EndOf(requests));
    change(*changed.back().mutable_end());
    return Send(changed);
  };
  EXPECT_THAT(send_with([](v1::ImportEnd& end) { end.set_slice_count(2); }),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("want 2 slices of 20 bytes")));
  EXPECT_THAT(send_with([](v1::ImportEnd& end) { end.set_size_bytes(24); }),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("want 1 slices of 24 bytes")));
  EXPECT_THAT(send_with([](v1::ImportEnd& end) { end.set_crc32c(end.crc32c() ^ 1); }),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("the checksum of the end message")));
  EXPECT_EQ(client_->StateHash("m"), hash_);
  EXPECT_OK(send_with([](v1::ImportEnd&) {}));
  EXPECT_NE(client_->StateHash("m"), hash_);
}

TEST_F(TensorTransferTest, AStreamThatBreaksOffChangesNothing) {
  const auto context = client_->Context();
  v1::ImportResponse response;
  const auto writer = client_->trainer().Import(context.get(), &response);
  for (const v1::ImportRequest& request : {Header(), Tensor("b", {5}), Chunk(0, Ramp(5))}) {
    ASSERT_TRUE(writer->Write(request));
  }
  context->TryCancel();
  EXPECT_THAT(FromGrpc(writer->Finish()), StatusIs(absl::StatusCode::kCancelled));
  EXPECT_EQ(client_->StateHash("m"), hash_);
}

// Sends bytes as messages, whatever they mean.
class RawImport {
 public:
  explicit RawImport(DaemonClient& client)
      : context_(client.Context()),
        stub_(client.channel()),
        stream_(stub_.PrepareCall(context_.get(), "/paramshard.v1.TrainerService/Import", &queue_)) {
    stream_->StartCall(nullptr);
    EXPECT_TRUE(Await());
  }
  ~RawImport() { queue_.Shutdown(); }

  void Write(const std::string& message) {
    const grpc::Slice slice(message);
    stream_->Write(grpc::ByteBuffer(&slice, 1), nullptr);
    Await();
  }
  absl::Status Finish() {
    stream_->WritesDone(nullptr);
    Await();
    // The status comes behind the answer, if there is one.
    grpc::ByteBuffer answer;
    stream_->Read(&answer, nullptr);
    Await();
    grpc::Status status;
    stream_->Finish(&status, nullptr);
    Await();
    return FromGrpc(status);
  }

 private:
  bool Await() {
    void* tag = nullptr;
    bool ok = false;
    EXPECT_TRUE(queue_.Next(&tag, &ok));
    return ok;
  }

  std::unique_ptr<grpc::ClientContext> context_;
  grpc::CompletionQueue queue_;
  grpc::GenericStub stub_;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> stream_;
};

TEST_F(TensorTransferTest, AMessageThatCannotBeParsedChangesNothing) {
  const std::vector<v1::ImportRequest> requests = {Header(), Tensor("b", {5}), Chunk(0, Ramp(5))};
  for (size_t good = 1; good <= requests.size(); ++good) {
    RawImport import(*client_);
    for (size_t i = 0; i < good; ++i) import.Write(requests[i].SerializeAsString());
    import.Write("\xff\xff\xff garbage");
    EXPECT_THAT(import.Finish(), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("v1.ImportRequest")));
    EXPECT_EQ(client_->StateHash("m"), hash_) << good;
  }
  RawImport whole(*client_);
  for (const v1::ImportRequest& request : requests) whole.Write(request.SerializeAsString());
  whole.Write(EndOf(requests).SerializeAsString());
  EXPECT_OK(whole.Finish());
  EXPECT_NE(client_->StateHash("m"), hash_) << "the same without garbage";
}

// --- Export ---

TEST_F(TensorTransferTest, ExportsCoverTheAskedKinds) {
  ASSERT_OK_AND_ASSIGN(const Exported exported, Export(ExportOf({"b"}, {v1::TENSOR_KIND_EXP_AVG})));
  EXPECT_THAT(exported.tensors, SizeIs(1));
  EXPECT_EQ(exported.tensors.begin()->second, Floats(5));
}

TEST_F(TensorTransferTest, WhatIsAskedForTwiceIsRefused) {
  EXPECT_THAT(Export(ExportOf({"b", "w", "b"})), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("parameter")));
  EXPECT_THAT(Export(ExportOf({"b"}, {v1::TENSOR_KIND_MASTER, v1::TENSOR_KIND_MASTER})),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("tensor kind")));
}

TEST_F(TensorTransferTest, UnknownExportsAreRefused) {
  v1::ExportRequest request;
  request.set_model("x");
  EXPECT_THAT(Export(request), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(Export(ExportOf({"b", "x"})),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("export m: parameter x not found")));
  EXPECT_THAT(Export(ExportOf({"b"}, {v1::TENSOR_KIND_UNSPECIFIED})),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("unknown tensor kind 0")));
  EXPECT_THAT(Export(ExportOf({"b"}, {static_cast<v1::TensorKind>(77)})), StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST_F(TensorTransferTest, AnotherVersionThanThePresentOneIsRefused) {
  v1::ExportRequest request = ExportOf({"b"});
  request.set_version(3);
  EXPECT_THAT(Export(request), StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("want version 3, got 0")));
  request.set_version(0);
  EXPECT_OK(Export(request));
}

TEST_F(TensorTransferTest, StoredStateIsExportedAndImportedBitForBit) {
  v1::ModelSpec spec = MakeSpec("stored", {MakeUnit("u", {MakeParameter("w", {300, 130}, v1::FORMAT_BF16)})});
  v1::ParameterSpec& parameter = *spec.mutable_units(0)->mutable_parameters(0);
  parameter.set_exp_avg_type(v1::MOMENT_TYPE_FP16);
  parameter.set_exp_avg_sq_type(v1::MOMENT_TYPE_FP8);
  parameter.set_master_type(v1::MASTER_TYPE_BF16_REMAINDER);
  parameter.mutable_initial_value()->mutable_normal()->set_standard_deviation(1);
  ASSERT_OK(client_->CreateModel(spec));
  v1::ImportRequest moment = Tensor("w", {300, 130}, v1::TENSOR_KIND_EXP_AVG_SQ);
  moment.mutable_tensor()->set_step(6);
  ASSERT_OK(Import({Header("stored"), moment, Chunk(0, Ramp(300 * 130, 0.1f))}));
  const std::string hash = client_->StateHash("stored");

  // Imports the export's messages into another model.
  v1::ExportRequest request;
  request.set_model("stored");
  for (int kind = v1::TENSOR_KIND_MASTER_ELEMENTS; kind <= v1::TENSOR_KIND_EXP_AVG_SQ_SCALES; ++kind) {
    request.add_kinds(static_cast<v1::TensorKind>(kind));
  }
  const auto context = client_->Context();
  const auto reader = client_->trainer().Export(context.get(), request);
  std::vector<v1::ImportRequest> requests{Header("again")};
  std::set<int> kinds;
  for (v1::ExportResponse response; reader->Read(&response);) {
    if (response.has_header()) {
      requests[0].mutable_header()->set_history_id(response.header().history_id());
    } else if (response.has_tensor()) {
      kinds.insert(response.tensor().kind());
      *requests.emplace_back().mutable_tensor() = response.tensor();
    } else {
      *requests.emplace_back().mutable_chunk() = response.chunk();
    }
  }
  ASSERT_TRUE(reader->Finish().ok());
  EXPECT_THAT(kinds, SizeIs(6));
  spec.set_name("again");
  parameter.clear_initial_value();
  ASSERT_OK(client_->CreateModel(spec));
  ASSERT_OK_AND_ASSIGN(const v1::ImportResponse response, Import(requests));
  EXPECT_EQ(response.history_id(), requests[0].header().history_id());
  EXPECT_EQ(client_->StateHash("again"), hash);
}

TEST_F(TensorTransferTest, WhatIsNotStoredIsLeftOut) {
  ASSERT_OK_AND_ASSIGN(const Exported exported,
                       Export(ExportOf({"b"}, {v1::TENSOR_KIND_MASTER_ELEMENTS, v1::TENSOR_KIND_MASTER_REMAINDERS,
                                               v1::TENSOR_KIND_EXP_AVG_SCALES})));
  EXPECT_THAT(exported.tensors, SizeIs(1)) << "fp32 has neither remainders nor scales";
}

TEST_F(TensorTransferTest, HistoriesAreSaidEverywhere) {
  const auto present = [&] {
    v1::GetModelRequest request;
    request.set_model("m");
    return client_->Call(client_->trainer(), &v1::TrainerService::Stub::GetModel, request)->model().history_id();
  };
  const std::string created = present();
  EXPECT_EQ(created.size(), 32u);
  ASSERT_OK_AND_ASSIGN(const v1::ImportResponse response, Import({Header(), Tensor("b", {5}), Chunk(0, Ramp(5))}));
  EXPECT_NE(response.history_id(), created);
  EXPECT_EQ(present(), response.history_id());
  EXPECT_EQ(Export(ExportOf({"b"}))->header.history_id(), response.history_id());
  v1::ImportRequest header = Header();
  header.mutable_header()->set_history_id("somewhere");
  ExpectRefused({header}, absl::StatusCode::kInvalidArgument, "history id: want 32 hexadecimal digits");
}

// --- Without a daemon ---

TEST(ExportTest, AnImportMeanwhileAbortsIt) {
  TestWorld world({.ranks = 2});
  const std::shared_ptr<Model> model = world.Create(MakeSpec("m", {MakeUnit("u", {MakeParameter("w", {600, 64})})}));
  v1::ExportRequest request;
  request.set_model("m");
  int imports = 0;
  const auto import_after_the_first_rank = [&](const v1::ExportResponse& response) {
    if (!response.has_chunk() || imports++ > 0) return absl::OkStatus();
    return model->changes().Import({}, [] { return absl::OkStatus(); }).status();
  };
  EXPECT_THAT(ExportModel(*model, request, import_after_the_first_rank),
              StatusIs(absl::StatusCode::kAborted,
                       HasSubstr("export m: an import has begun to replace the state; export again")));
  EXPECT_EQ(imports, 1);
  EXPECT_OK(ExportModel(*model, request, import_after_the_first_rank)) << "nothing comes between this time";
  ASSERT_OK(model->changes().Import({}, [&] {
    EXPECT_THAT(ExportModel(*model, request, import_after_the_first_rank), StatusIs(absl::StatusCode::kUnavailable));
    return absl::OkStatus();
  }));
}

TEST(ExportTest, AnImportBetweenTwoChunksOfATensorAbortsIt) {
  TestWorld world({.ranks = 1});
  const std::shared_ptr<Model> model = world.Create(MakeSpec("m", {MakeUnit("u", {MakeParameter("w", {600, 1024})})}));
  v1::ExportRequest request;
  int chunks = 0;
  EXPECT_THAT(ExportModel(*model, request,
                          [&](const v1::ExportResponse& response) {
                            if (!response.has_chunk() || ++chunks > 1) return absl::OkStatus();
                            return model->changes().Import({}, [] { return absl::OkStatus(); }).status();
                          }),
              StatusIs(absl::StatusCode::kAborted, HasSubstr("an import has begun to replace the state")));
  EXPECT_EQ(chunks, 1);
}

// Returns the concatenated bytes that an export of one tensor in one form sends.
std::string BytesSent(const Model& model, v1::TensorKind kind) {
  v1::ExportRequest request;
  request.add_kinds(kind);
  std::string bytes;
  EXPECT_OK(ExportModel(model, request, [&](const v1::ExportResponse& response) {
    if (!response.has_chunk()) return absl::OkStatus();
    EXPECT_EQ(response.chunk().offset_bytes(), static_cast<int64_t>(bytes.size()));
    EXPECT_LE(static_cast<int64_t>(response.chunk().data().size()), kMaxChunkBytes);
    bytes += response.chunk().data();
    return absl::OkStatus();
  }));
  return bytes;
}

// Chunks begin and end at rows, or within rows that are larger than a chunk: at blocks of moments, or with the row.
TEST(ExportTest, ChunksAreTheTensorWhateverItsRows) {
  for (const std::vector<int64_t>& shape : {std::vector<int64_t>{700, 1000}, std::vector<int64_t>{3, 600'001}}) {
    v1::ParameterSpec parameter = MakeParameter("w", shape, v1::FORMAT_BF16);
    parameter.set_exp_avg_type(v1::MOMENT_TYPE_FP16);
    parameter.set_exp_avg_sq_type(v1::MOMENT_TYPE_FP8);
    parameter.set_master_type(v1::MASTER_TYPE_BF16_REMAINDER);
    TestWorld world({.ranks = 1});
    const std::shared_ptr<Model> model = world.Create(MakeSpec("m", {MakeUnit("u", {parameter})}));
    Shard& shard = *model->committed().shards[0];
    const ShardExtent& extent = shard.extents()[0];
    const Publication::Writing writing(*model->committed().publication, Publication::Hold::kNone);
    for (const StateTensor tensor : {StateTensor::kMaster, StateTensor::kFirstMoment, StateTensor::kSecondMoment}) {
      ASSERT_OK(shard.Write(extent, tensor, Ramp(shape[0] * shape[1], 0.1f)));
      const int kind = static_cast<int>(tensor);
      ASSERT_OK_AND_ASSIGN(const Floats values, shard.arrays().Read(extent, tensor));
      const std::string bytes(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
      EXPECT_TRUE(BytesSent(*model, static_cast<v1::TensorKind>(v1::TENSOR_KIND_MASTER + kind)) == bytes) << kind;
      ASSERT_OK_AND_ASSIGN(const std::vector<HostView> arrays, shard.arrays().Stored(extent, tensor));
      ASSERT_THAT(arrays, SizeIs(2));
      for (int array = 0; array < 2; ++array) {
        const auto stored = static_cast<v1::TensorKind>(v1::TENSOR_KIND_MASTER_ELEMENTS + 2 * kind + array);
        const std::string expected(reinterpret_cast<const char*>(arrays[array].data()), arrays[array].size());
        EXPECT_TRUE(BytesSent(*model, stored) == expected) << stored;
      }
    }
  }
}

}  // namespace
}  // namespace paramshard::server
