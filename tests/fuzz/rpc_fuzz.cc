// Calls of every method of a daemon: a byte that chooses the method, one whose lowest bit asks for a valid token, then
// messages, each after two bytes with its length. After any calls the daemon answers the next caller, every model can
// be deleted, and a model that no call has named has its bytes.

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/shared_memory/crc32c.h"
#include "kernels/base/check.h"
#include "paramshard/v1/trainer.pb.h"
#include "server/observe/log.h"
#include "tests/fuzz/any_call.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/random_message.h"
#include "tests/server/edge/daemon_client.h"
#include "tests/server/state/test_spec.h"
#include "tests/server/training/command.h"
#include "tests/support/process_counts.h"

namespace paramshard::server {
namespace {

constexpr char kBystander[] = "bystander";
constexpr char kVictim[] = "victim";
// Calls after which the daemon is looked at.
constexpr int kCallsBetweenLooks = 32;
// Largest growth of gRPC's thread pools on both sides. A leak would grow further.
constexpr int64_t kSlack = 16;

v1::ModelSpec SpecOf(const std::string& name) {
  v1::ModelSpec spec = MakeSpec(name, {MakeUnit("first", {MakeParameter("first.weight", {64, 32}, v1::FORMAT_MXFP8)}),
                                       MakeUnit("second", {MakeParameter("second.weight", {6, 4})})});
  spec.mutable_units(0)->mutable_parameters(0)->mutable_initial_value()->mutable_normal()->set_standard_deviation(1);
  return spec;
}

struct AnyCall {
  const google::protobuf::MethodDescriptor* method;
  bool with_token;
  std::vector<std::string> messages;
};

std::string InputOf(size_t method, bool with_token, const std::vector<std::string>& messages) {
  std::string input = {static_cast<char>(method), static_cast<char>(with_token)};
  for (const std::string& message : messages) {
    const auto size = std::min<size_t>(message.size(), UINT16_MAX);
    absl::StrAppend(&input, std::string{static_cast<char>(size & 255), static_cast<char>(size >> 8)},
                    message.substr(0, size));
  }
  return input;
}

AnyCall CallOf(const std::string& input) {
  static const auto* const methods = new std::vector(ServedMethods());
  AnyCall call{.method = methods->at(static_cast<uint8_t>(input[0]) % methods->size()),
               .with_token = (input[1] & 1) != 0,
               .messages = {}};
  for (size_t at = 2; at + 2 <= input.size();) {
    const size_t wanted = static_cast<uint8_t>(input[at]) | static_cast<uint8_t>(input[at + 1]) << 8;
    const size_t size = std::min(wanted, input.size() - at - 2);
    call.messages.push_back(input.substr(at + 2, size));
    at += 2 + size;
  }
  return call;
}

// Returns false for calls that are allowed but would end this program: calls that end the daemon, or the process that
// holds a rank. Daemon and callers are one process here.
bool IsHarmless(const AnyCall& call) {
  if (!call.with_token) return true;
  if (call.method->name() == "Drain") return false;
  return std::none_of(call.messages.begin(), call.messages.end(), [&call](const std::string& message) {
    v1::SessionRequest request;
    return call.method->name() == "Session" && request.ParseFromString(message) && request.attach().take_over();
  });
}

class World {
 public:
  World() : daemon_(Start(directory_.path())) {
    DaemonClient caller(directory_.path());
    PARAMSHARD_CHECK(caller.CreateModel(SpecOf(kBystander)).ok());
    hash_ = caller.StateHash(kBystander);
    PARAMSHARD_CHECK(!hash_.empty());
    BeginBatch();
  }

  void Send(const AnyCall& call) {
    const grpc::Status status =
        CallAny(caller_->channel(), *call.method, call.with_token ? std::make_optional(caller_->token()) : std::nullopt,
                call.messages);
    PARAMSHARD_CHECK(call.with_token || status.error_code() != grpc::StatusCode::OK);
    if (++calls_ % kCallsBetweenLooks == 0) Look();
  }

 private:
  static std::unique_ptr<Daemon> Start(const std::string& socket_dir) {
    ConfigureLog(LogFormat::kText, LogLevel::kError);
    DaemonConfig config;
    config.devices = {"cpu:0"};  // one rank: an epoch starts as soon as it attaches
    config.socket_dir = socket_dir;
    config.step_timeout = absl::Seconds(1);
    config.memory_limit_bytes = int64_t{256} << 20;
    auto daemon = Daemon::Start(config);
    PARAMSHARD_CHECK(daemon.ok());
    return *std::move(daemon);
  }

  // A caller of its own for each batch: sessions fill its companion connection.
  void BeginBatch() {
    caller_ = std::make_unique<DaemonClient>(directory_.path());
    PARAMSHARD_CHECK(caller_->CreateModel(SpecOf(kVictim)).ok());
  }

  void Look() {
    caller_.reset();
    {
      DaemonClient looker(directory_.path());
      const auto models = looker.Call(looker.admin(), &v1::AdminService::Stub::ListModels, v1::ListModelsRequest());
      PARAMSHARD_CHECK(models.ok());
      for (const v1::ModelSummary& model : models->models()) {
        if (model.name() != kBystander) Delete(looker, model.name());
      }
      PARAMSHARD_CHECK(looker.StateHash(kBystander) == hash_);
    }
    if (!threads_.has_value()) threads_ = Threads();
    if (!descriptors_.has_value()) descriptors_ = OpenDescriptors();
    PARAMSHARD_CHECK(Settles(*threads_, Threads) && Settles(*descriptors_, OpenDescriptors));
    BeginBatch();
  }
  // Its sessions end when their caller has gone, which the daemon may see a moment later.
  static void Delete(DaemonClient& looker, const std::string& model) {
    v1::DeleteModelRequest request;
    request.set_model(model);
    const auto end = absl::Now() + absl::Seconds(60);
    absl::Status deleted;
    do {
      deleted = looker.Call(looker.trainer(), &v1::TrainerService::Stub::DeleteModel, request).status();
    } while (absl::IsFailedPrecondition(deleted) && absl::Now() < end);
    PARAMSHARD_CHECK(deleted.ok());
  }
  static bool Settles(int64_t expected, int64_t (*count)()) {
    const auto end = absl::Now() + absl::Seconds(60);
    while (count() > expected + kSlack && absl::Now() < end) std::this_thread::yield();
    return count() <= expected + kSlack;
  }

  const test::TemporaryDirectory directory_;
  const std::unique_ptr<Daemon> daemon_;
  std::string hash_;
  std::unique_ptr<DaemonClient> caller_;
  int64_t calls_ = 0;
  std::optional<int64_t> threads_, descriptors_;
};

void Run(const std::string& input) {
  static World world;  // lives as long as the program, or its last epoch's thread would leak
  if (input.size() < 2) return;
  if (const AnyCall call = CallOf(input); IsHarmless(call)) world.Send(call);
}

// --- Inputs ---

std::vector<std::string> RandomMessages(const google::protobuf::MethodDescriptor& method, Mutator& mutator) {
  std::vector<std::string> messages(method.client_streaming() ? mutator.Below(5) : 1);
  for (std::string& message : messages) message = RandomMessage(*method.input_type(), kVictim, mutator);
  return messages;
}

size_t MethodNamed(const std::string& name) {
  const std::vector<const google::protobuf::MethodDescriptor*> methods = ServedMethods();
  const auto found =
      std::find_if(methods.begin(), methods.end(), [&](const auto* method) { return method->name() == name; });
  PARAMSHARD_CHECK(found != methods.end());
  return found - methods.begin();
}

template <typename... Messages>
std::string GoodInput(const std::string& method, const Messages&... messages) {
  return InputOf(MethodNamed(method), /*with_token=*/true, {messages.SerializeAsString()...});
}

std::string GoodCreateModel() {
  v1::CreateModelRequest request;
  *request.mutable_spec() = SpecOf(kVictim);
  return GoodInput("CreateModel", request);
}

// Attaches, gathers, pushes and commits.
std::string GoodSession() {
  v1::SessionRequest attach, gather, push, commit;
  attach.mutable_attach()->set_model(kVictim);
  *gather.mutable_command() = GatherCommand(1, 0, 0);
  *push.mutable_command() = PushCommand(2, 0, 0);
  *commit.mutable_command() = CommitCommand(3, 1);
  return GoodInput("Session", attach, gather, push, commit);
}

std::string GoodImport() {
  v1::ImportRequest header, tensor, chunk, end;
  header.mutable_header()->set_model(kVictim);
  header.mutable_header()->set_commit_number(7);
  tensor.mutable_tensor()->set_parameter("second.weight");
  tensor.mutable_tensor()->set_kind(v1::TENSOR_KIND_MASTER);
  for (const int64_t size : {6, 4}) tensor.mutable_tensor()->add_shape(size);
  tensor.mutable_tensor()->set_rows(6);
  chunk.mutable_chunk()->set_data(std::string(6 * 4 * sizeof(float), '\x3f'));
  chunk.mutable_chunk()->set_crc32c(wire::Crc32c(chunk.chunk().data()));
  end.mutable_end()->set_slice_count(1);
  end.mutable_end()->set_size_bytes(static_cast<int64_t>(chunk.chunk().data().size()));
  end.mutable_end()->set_crc32c(wire::ExtendCrc32c(0, chunk.chunk().crc32c()));
  return GoodInput("Import", header, tensor, chunk, end);
}

// One call of each method, with and without a token, and some that are carried out.
std::vector<std::string> Seeds() {
  Mutator mutator(1, {kVictim});
  const std::vector<const google::protobuf::MethodDescriptor*> methods = ServedMethods();
  std::vector<std::string> seeds = {GoodCreateModel(), GoodSession(), GoodImport()};
  for (size_t i = 0; i < methods.size(); ++i) {
    for (const bool with_token : {true, false}) {
      seeds.push_back(InputOf(i, with_token, RandomMessages(*methods[i], mutator)));
    }
  }
  return seeds;
}

// Mutates the bytes of a good call, or makes a new call whose messages have the right fields. Messages with mutated
// lengths would seldom parse.
std::string WithMessages(std::string input, Mutator& mutator) {
  static const auto* const good = new std::vector<std::string>{GoodCreateModel(), GoodSession(), GoodImport()};
  const size_t choice = mutator.Below(16);
  if (choice == 0) return input;
  if (choice < 6) {
    input = good->at(mutator.Below(good->size()));
    for (size_t changes = mutator.Below(3); changes > 0; --changes) {
      input[mutator.Below(input.size())] =
          static_cast<char>(mutator.Below(2) == 0 ? mutator.Below(4) : mutator.Below(256));
    }
    return input;
  }
  const std::vector<const google::protobuf::MethodDescriptor*> methods = ServedMethods();
  const size_t method = mutator.Below(methods.size());
  return InputOf(method, mutator.Below(8) != 0, RandomMessages(*methods[method], mutator));
}

}  // namespace
}  // namespace paramshard::server

const paramshard::FuzzTarget& paramshard::Target() {
  static const auto* const target = new FuzzTarget{.seeds = server::Seeds(),
                                                   .words = {server::kVictim, "first", "\x08", "\xff", "\x12\x01"},
                                                   .runs = 4'000,
                                                   .run = server::Run,
                                                   .mend = server::WithMessages};
  return *target;
}
