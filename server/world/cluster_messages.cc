#include "server/world/cluster_messages.h"

#include <algorithm>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include <google/protobuf/message.h>
#include <google/protobuf/reflection.h>

#include "common/model/save_state_proto.h"
#include "common/rpc/durations.h"
#include "common/rpc/status.h"
#include "server/base/version.h"
#include "server/terms/wire_fields.h"

namespace paramshard::server {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

// --- Fields of votes; those of other messages stand beside them ---

void Fields(ConstOr<RankSum> auto& m, const auto& f) {
  f("rank", m.rank)("square_sum", m.square_sum)("non_finite_count", m.non_finite_count);
}

void Fields(ConstOr<CommitVote> auto& m, const auto& f) {
  f("model", m.model)("history_id", m.history_id)("epoch", m.epoch)("commit_number", m.commit_number)(
      "commands", m.commands)("sums", m.sums)("client_states", m.client_states);
}

void Fields(ConstOr<CommitQuery> auto& m, const auto& f) {
  f("model", m.model)("history_id", m.history_id)("epoch", m.epoch)("commit_number", m.commit_number);
}

void Fields(ConstOr<CommitDecision> auto& m, const auto& f) {
  f("apply", m.apply)("square_sum", m.square_sum)("non_finite_count", m.non_finite_count)("save", m.save)(
      "previous_client_states", m.previous_client_states);
}

// A type that has fields, by a visitor of no consequence.
struct AnyVisitor {
  const AnyVisitor& operator()(const char*, const auto&) const { return *this; }
  void Case(const auto&) const {}
};
template <typename T>
concept IsSent = requires(T& value) {
  Fields(value, AnyVisitor());
};

// Every message of a stream has a name there.
template <typename Variant>
constexpr bool kAreAllNamed = std::none_of(kCaseNames<Variant>.begin(), kCaseNames<Variant>.end(),
                                           [](const char* name) { return name == nullptr; });
static_assert(kAreAllNamed<FromNode> && kAreAllNamed<ToNode>);

// Enumerations have the numbers of their messages; save_state_proto.h asserts this for saves.
static_assert(static_cast<int>(RestorePhase::kReady) == v1::RESTORE_PHASE_READY);
static_assert(static_cast<int>(RestorePhase::kWritten) == v1::RESTORE_PHASE_WRITTEN);
static_assert(static_cast<int>(RestorePhase::kDone) == v1::RESTORE_PHASE_DONE);
static_assert(static_cast<int>(RestorePhase::kDone) == v1::RestorePhase_MAX);
// A message with an unknown enumerator is dropped; else the default is read.
template <typename Enum>
constexpr bool kIsNeeded = std::is_same_v<Enum, RestorePhase>;

v1::SaveNumber IdMessage(absl::uint128 id) {
  v1::SaveNumber message;
  message.set_high(absl::Uint128High64(id));
  message.set_low(absl::Uint128Low64(id));
  return message;
}

absl::uint128 IdOf(const v1::SaveNumber& message) { return absl::MakeUint128(message.high(), message.low()); }

// --- The codec: writes fields into a message, and reads them ---

template <typename M>
M& Sub(Message& message, const FieldDescriptor* field) {
  return static_cast<M&>(*message.GetReflection()->MutableMessage(&message, field));
}
template <typename M>
const M& Sub(const Message& message, const FieldDescriptor* field) {
  return static_cast<const M&>(message.GetReflection()->GetMessage(message, field));
}

struct Writer {
  Message& message;

  template <typename Value>
  const Writer& operator()(const char* name, const Value& value) const {
    Put(Field(name), value);
    return *this;
  }
  template <typename Variant>
  void Case(const Variant& variant) const {
    const char* const name = kCaseNames<Variant>[variant.index()];
    if (name == nullptr) return;
    const auto put = [&]<typename Value>(const Value& value) {
      if constexpr (IsSent<const Value>) Put(Field(name), value);
    };
    std::visit(put, variant);
  }

  void Put(const FieldDescriptor* field, bool value) const { reflection().SetBool(&message, field, value); }
  void Put(const FieldDescriptor* field, int value) const { reflection().SetInt32(&message, field, value); }
  void Put(const FieldDescriptor* field, int64_t value) const { reflection().SetInt64(&message, field, value); }
  void Put(const FieldDescriptor* field, uint64_t value) const { reflection().SetUInt64(&message, field, value); }
  void Put(const FieldDescriptor* field, double value) const { reflection().SetDouble(&message, field, value); }
  void Put(const FieldDescriptor* field, const std::string& value) const {
    reflection().SetString(&message, field, value);
  }
  void Put(const FieldDescriptor* field, absl::uint128 value) const {
    Sub<v1::SaveNumber>(message, field) = IdMessage(value);
  }
  void Put(const FieldDescriptor* field, absl::Duration value) const {
    Sub<google::protobuf::Duration>(message, field) = DurationToProto(value);
  }
  // OK is absent.
  void Put(const FieldDescriptor* field, const absl::Status& value) const {
    if (!value.ok()) Sub<v1::Status>(message, field) = StatusToProto(value);
  }
  template <typename Enum>
  requires std::is_enum_v<Enum>
  void Put(const FieldDescriptor* field, Enum value) const {
    reflection().SetEnumValue(&message, field, static_cast<int>(value));
  }
  template <IsSent Value>
  void Put(const FieldDescriptor* field, const Value& value) const {
    Fields(value, Writer{Sub<Message>(message, field)});
  }
  template <typename Value>
  void Put(const FieldDescriptor* field, const std::optional<Value>& value) const {
    if (value.has_value()) Put(field, *value);
  }
  void Put(const FieldDescriptor* field, const std::optional<std::vector<std::string>>& states) const {
    if (states.has_value()) {
      Sub<v1::ClientStates>(message, field).mutable_states()->Assign(states->begin(), states->end());
    }
  }
  void Put(const FieldDescriptor* field, const std::vector<int>& values) const {
    for (const int value : values) reflection().AddInt32(&message, field, value);
  }
  void Put(const FieldDescriptor* field, const std::vector<std::string>& values) const {
    for (const std::string& value : values) reflection().AddString(&message, field, value);
  }
  template <IsSent Value>
  void Put(const FieldDescriptor* field, const std::vector<Value>& values) const {
    for (const Value& value : values) Fields(value, Writer{*reflection().AddMessage(&message, field)});
  }

  const FieldDescriptor* Field(const char* name) const { return message.GetDescriptor()->FindFieldByName(name); }
  const google::protobuf::Reflection& reflection() const { return *message.GetReflection(); }
};

// `is_valid` becomes false at a value that no daemon sends.
struct Reader {
  const Message& message;
  bool& is_valid;

  template <typename Value>
  const Reader& operator()(const char* name, Value& value) const {
    Get(Field(name), value);
    return *this;
  }
  template <typename Variant>
  void Case(Variant& variant) const {
    is_valid = ReadCase(variant) && is_valid;
  }
  template <size_t kIndex = 0, typename Variant>
  bool ReadCase(Variant& variant) const {
    if constexpr (kIndex == std::variant_size_v<Variant>) {
      return false;
    } else {
      if constexpr (kCaseNames<Variant>[kIndex] != nullptr) {
        const FieldDescriptor* const field = Field(kCaseNames<Variant>[kIndex]);
        if (reflection().HasField(message, field)) {
          Get(field, variant.template emplace<kIndex>());
          return true;
        }
      }
      return ReadCase<kIndex + 1>(variant);
    }
  }

  void Get(const FieldDescriptor* field, bool& value) const { value = reflection().GetBool(message, field); }
  void Get(const FieldDescriptor* field, int& value) const { value = reflection().GetInt32(message, field); }
  void Get(const FieldDescriptor* field, int64_t& value) const { value = reflection().GetInt64(message, field); }
  void Get(const FieldDescriptor* field, uint64_t& value) const { value = reflection().GetUInt64(message, field); }
  void Get(const FieldDescriptor* field, double& value) const { value = reflection().GetDouble(message, field); }
  void Get(const FieldDescriptor* field, std::string& value) const { value = reflection().GetString(message, field); }
  void Get(const FieldDescriptor* field, absl::uint128& value) const {
    value = IdOf(Sub<v1::SaveNumber>(message, field));
  }
  void Get(const FieldDescriptor* field, absl::Duration& value) const {
    value = DurationFromProto(Sub<google::protobuf::Duration>(message, field));
  }
  void Get(const FieldDescriptor* field, absl::Status& value) const {
    if (reflection().HasField(message, field)) value = ReasonFromProto(Sub<v1::Status>(message, field));
  }
  template <typename Enum>
  requires std::is_enum_v<Enum>
  void Get(const FieldDescriptor* field, Enum& value) const {
    const int number = reflection().GetEnumValue(message, field);
    const bool is_known = number != 0 && field->enum_type()->FindValueByNumber(number) != nullptr;
    if (is_known) value = static_cast<Enum>(number);
    is_valid = is_valid && (is_known || !kIsNeeded<Enum>);
  }
  template <IsSent Value>
  void Get(const FieldDescriptor* field, Value& value) const {
    Fields(value, Reader{Sub<Message>(message, field), is_valid});
  }
  template <typename Value>
  void Get(const FieldDescriptor* field, std::optional<Value>& value) const {
    if (!reflection().HasField(message, field)) return;
    value = Value{};  // Clang 14 finds no emplace() of a struct that is nested in the message
    Get(field, *value);
  }
  void Get(const FieldDescriptor* field, std::optional<std::vector<std::string>>& states) const {
    if (!reflection().HasField(message, field)) return;
    const auto& sent = Sub<v1::ClientStates>(message, field).states();
    states.emplace(sent.begin(), sent.end());
  }
  void Get(const FieldDescriptor* field, std::vector<int>& values) const {
    const auto& sent = reflection().GetRepeatedFieldRef<int32_t>(message, field);
    values.assign(sent.begin(), sent.end());
  }
  void Get(const FieldDescriptor* field, std::vector<std::string>& values) const {
    const auto& sent = reflection().GetRepeatedFieldRef<std::string>(message, field);
    values.assign(sent.begin(), sent.end());
  }
  template <IsSent Value>
  void Get(const FieldDescriptor* field, std::vector<Value>& values) const {
    values.resize(reflection().FieldSize(message, field));
    for (size_t i = 0; i < values.size(); ++i) {
      Fields(values[i], Reader{reflection().GetRepeatedMessage(message, field, static_cast<int>(i)), is_valid});
    }
  }

  const FieldDescriptor* Field(const char* name) const { return message.GetDescriptor()->FindFieldByName(name); }
  const google::protobuf::Reflection& reflection() const { return *message.GetReflection(); }
};

// An end has a reason, and a save that is said to have ended has.
absl::Status Reasoned(const absl::Status& why) { return why.ok() ? ReasonFromProto({}) : why; }
void Validate(FromNode& message) {
  if (auto* const end = std::get_if<EndEpoch>(&message); end != nullptr) end->why = Reasoned(end->why);
  if (auto* const left = std::get_if<RankDetached>(&message); left != nullptr) left->why = Reasoned(left->why);
}
void Validate(ToNode& message) {
  if (auto* const ended = std::get_if<EpochEnded>(&message); ended != nullptr) ended->why = Reasoned(ended->why);
  if (auto* const refused = std::get_if<EpochRefused>(&message); refused != nullptr) {
    refused->why = Reasoned(refused->why);
  }
  auto* const save = std::get_if<SaveMessage>(&message);
  auto* const end = save == nullptr ? nullptr : std::get_if<SaveEnd>(&save->what);
  // No ordered save ends in another state.
  const bool is_end = end == nullptr || HasCheckpoint(end->state) || end->state == SaveState::kUnknown;
  if (!is_end) end->state = SaveState::kAbandoned;
}

template <typename Variant>
std::optional<Variant> FromStream(const Message& message) {
  Variant value;
  bool is_valid = true;
  Reader{message, is_valid}.Case(value);
  if (!is_valid) return std::nullopt;
  Validate(value);
  return value;
}

template <typename M, typename Value>
M Written(const Value& value) {
  M message;
  Fields(value, Writer{message});
  return message;
}

template <typename Value>
Value ReadFrom(const Message& message) {
  Value value;
  bool is_valid = true;
  Fields(value, Reader{message, is_valid});
  return value;
}

}  // namespace

v1::JoinRequest ToProto(const FromNode& message) {
  v1::JoinRequest request;
  Writer{request}.Case(message);
  return request;
}

v1::JoinResponse ToProto(const ToNode& message) {
  v1::JoinResponse response;
  Writer{response}.Case(message);
  return response;
}

std::optional<FromNode> FromProto(const v1::JoinRequest& message) { return FromStream<FromNode>(message); }
std::optional<ToNode> FromProto(const v1::JoinResponse& message) { return FromStream<ToNode>(message); }

v1::JoinRequest HelloMessage(int node, int nodes, int device_count, const WorldTerms& terms,
                             const std::string& address) {
  v1::JoinRequest request;
  v1::Hello& hello = *request.mutable_hello();
  hello.set_protocol_version(kClusterProtocolVersion);
  hello.set_node(node);
  hello.set_nodes(nodes);
  hello.set_device_count(device_count);
  hello.set_world(terms.world);
  hello.set_save_dir(terms.save_dir);
  hello.set_engine_library(terms.engine_library);
  hello.set_build(kVersion);
  hello.set_address(address);
  return request;
}

void SetConnection(v1::JoinRequest& hello, absl::uint128 incarnation, int64_t connection, bool resumes) {
  *hello.mutable_hello()->mutable_incarnation() = IdMessage(incarnation);
  hello.mutable_hello()->set_connection(connection);
  hello.mutable_hello()->set_resumes(resumes);
}

absl::uint128 IncarnationOf(const v1::Hello& hello) { return IdOf(hello.incarnation()); }

v1::JoinRequest NodeMovedMessage(int64_t connection) {
  v1::JoinRequest request;
  request.mutable_moved()->set_connection(connection);
  return request;
}

v1::JoinRequest ProbeAnswerMessage() {
  v1::JoinRequest request;
  request.mutable_probe_answer();
  return request;
}

v1::VoteRequest VoteMessage(int node, const CommitVote& vote, absl::Duration timeout) {
  auto request = Written<v1::VoteRequest>(vote);
  request.set_node(node);
  *request.mutable_timeout() = DurationToProto(timeout);
  return request;
}

v1::QueryCommitRequest QueryMessage(int node, const CommitQuery& query) {
  auto request = Written<v1::QueryCommitRequest>(query);
  request.set_node(node);
  return request;
}

v1::CommitDecision DecisionMessage(const CommitDecision& decision) { return Written<v1::CommitDecision>(decision); }
CommitVote VoteOf(const v1::VoteRequest& message) { return ReadFrom<CommitVote>(message); }
CommitQuery QueryOf(const v1::QueryCommitRequest& message) { return ReadFrom<CommitQuery>(message); }
CommitDecision DecisionOf(const v1::CommitDecision& message) { return ReadFrom<CommitDecision>(message); }

grpc::Status ToGrpcStatus(const absl::Status& status) {
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), std::string(status.message()));
}

absl::Status FromGrpcStatus(const grpc::Status& status) {
  return status.ok() ? absl::OkStatus() : Reason(status.error_code(), status.error_message());
}

}  // namespace paramshard::server
