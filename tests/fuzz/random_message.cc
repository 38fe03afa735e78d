#include "tests/fuzz/random_message.h"

#include <google/protobuf/message.h>

#include <cstdint>
#include <iterator>
#include <memory>

namespace paramshard {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::OneofDescriptor;

constexpr int kMaxDepth = 6;

class Filler {
 public:
  Filler(const std::string& model, Mutator& mutator) : model_(model), mutator_(mutator) {}

  void Fill(Message& message, int depth) {
    const Descriptor& type = *message.GetDescriptor();
    for (int i = 0; i < type.field_count(); ++i) {
      const FieldDescriptor& field = *type.field(i);
      if (field.containing_oneof() != nullptr && !field.has_optional_keyword()) continue;
      const bool is_model = field.name() == "model" || field.name() == "name";
      if (!is_model && Below(3) == 0) continue;
      for (size_t count = field.is_repeated() ? Below(3) : 1; count > 0; --count) Set(message, field, depth);
    }
    for (int i = 0; i < type.real_oneof_decl_count(); ++i) {
      const OneofDescriptor& oneof = *type.oneof_decl(i);
      Set(message, *oneof.field(static_cast<int>(Below(oneof.field_count()))), depth);
    }
  }

 private:
  size_t Below(size_t limit) { return mutator_.Below(limit); }
  int64_t Number() {
    constexpr int64_t kNumbers[] = {0,    1,         2,         3,         -1,        64,
                                    4096, INT32_MAX, INT32_MIN, INT64_MAX, INT64_MIN, int64_t{1} << 40};
    // Most accepted numbers are small.
    return kNumbers[Below(Below(2) == 0 ? 3 : std::size(kNumbers))];
  }
  double Real() {
    constexpr double kNumbers[] = {0, 1, -1, 1e-3, 1e300, -1e300, __builtin_nan(""), __builtin_inf()};
    return kNumbers[Below(std::size(kNumbers))];
  }
  std::string Text(const FieldDescriptor& field) {
    if (field.name() == "model" || field.name() == "name") return model_;
    const std::string texts[] = {"", "first", "first.weight", "/dev/zero", "x\n\x1b", std::string(5000, 'y'), "*"};
    return texts[Below(std::size(texts))];
  }
  void Set(Message& message, const FieldDescriptor& field, int depth);

  const std::string& model_;
  Mutator& mutator_;
};

void Filler::Set(Message& message, const FieldDescriptor& field, int depth) {
  const auto& reflection = *message.GetReflection();
  const bool repeated = field.is_repeated();
  switch (field.cpp_type()) {
#define PARAMSHARD_SET(TYPE, Name, value)                                                                     \
  case FieldDescriptor::CPPTYPE_##TYPE:                                                                       \
    repeated ? reflection.Add##Name(&message, &field, value) : reflection.Set##Name(&message, &field, value); \
    break
    PARAMSHARD_SET(INT32, Int32, static_cast<int32_t>(Number()));
    PARAMSHARD_SET(UINT32, UInt32, static_cast<uint32_t>(Number()));
    PARAMSHARD_SET(INT64, Int64, Number());
    PARAMSHARD_SET(UINT64, UInt64, static_cast<uint64_t>(Number()));
    PARAMSHARD_SET(FLOAT, Float, static_cast<float>(Real()));
    PARAMSHARD_SET(DOUBLE, Double, Real());
    PARAMSHARD_SET(BOOL, Bool, Below(2) == 0);
    PARAMSHARD_SET(ENUM, EnumValue, static_cast<int>(Below(12)));
    PARAMSHARD_SET(STRING, String, Text(field));
#undef PARAMSHARD_SET
    case FieldDescriptor::CPPTYPE_MESSAGE:
      if (depth == 0) break;
      Fill(repeated ? *reflection.AddMessage(&message, &field) : *reflection.MutableMessage(&message, &field),
           depth - 1);
  }
}

}  // namespace

std::string RandomMessage(const Descriptor& type, const std::string& model, Mutator& mutator) {
  const std::unique_ptr<Message> message(
      google::protobuf::MessageFactory::generated_factory()->GetPrototype(&type)->New());
  Filler(model, mutator).Fill(*message, kMaxDepth);
  const std::string bytes = message->SerializePartialAsString();
  return mutator.Below(3) == 0 ? mutator.Mutate(bytes) : bytes;
}

}  // namespace paramshard
