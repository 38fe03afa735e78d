// The codec knows every field of every message between the coordinator and a node.

#include "server/world/cluster_messages.h"

#include <string>

#include <google/protobuf/message.h>
#include <google/protobuf/reflection.h>
#include <google/protobuf/util/message_differencer.h>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "paramshard/v1/cluster.pb.h"

namespace paramshard::server {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::util::MessageDifferencer;

// Sets a field and all below it to values that differ from the defaults.
void Fill(Message& message, const FieldDescriptor* field) {
  const auto& reflection = *message.GetReflection();
  const auto fill_all = [](Message& inner) {
    for (int i = 0; i < inner.GetDescriptor()->field_count(); ++i) {
      const FieldDescriptor* const one = inner.GetDescriptor()->field(i);
      if (one->real_containing_oneof() == nullptr) Fill(inner, one);
    }
    // The last case of a choice; each case has a test of its own.
    for (int i = 0; i < inner.GetDescriptor()->real_oneof_decl_count(); ++i) {
      const auto* const choice = inner.GetDescriptor()->oneof_decl(i);
      Fill(inner, choice->field(choice->field_count() - 1));
    }
  };
  if (field->is_repeated()) {
    for (int i = 1; i <= 2; ++i) {
      if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
        fill_all(*reflection.AddMessage(&message, field));
      } else if (field->cpp_type() == FieldDescriptor::CPPTYPE_STRING) {
        reflection.AddString(&message, field, absl::StrCat(field->name(), i));
      } else {
        reflection.AddInt32(&message, field, field->number() + i);
      }
    }
    return;
  }
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_BOOL:
      return reflection.SetBool(&message, field, true);
    case FieldDescriptor::CPPTYPE_INT32:
      return reflection.SetInt32(&message, field, field->number());
    case FieldDescriptor::CPPTYPE_INT64:
      return reflection.SetInt64(&message, field, field->number());
    case FieldDescriptor::CPPTYPE_UINT64:
      return reflection.SetUInt64(&message, field, field->number());
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return reflection.SetDouble(&message, field, field->number());
    case FieldDescriptor::CPPTYPE_STRING:
      return reflection.SetString(&message, field, field->name());
    case FieldDescriptor::CPPTYPE_ENUM:
      // The last one: a save has ended then.
      return reflection.SetEnumValue(&message, field, field->enum_type()->value_count() - 1);
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return fill_all(*reflection.MutableMessage(&message, field));
    default:
      FAIL() << "no such field yet: " << field->full_name();
  }
}

template <typename Stream>
void ExpectRoundTrip(const Stream& sent) {
  SCOPED_TRACE(sent.ShortDebugString());
  const auto value = FromProto(sent);
  ASSERT_TRUE(value.has_value());
  std::string difference;
  MessageDifferencer differencer;
  differencer.ReportDifferencesToString(&difference);
  EXPECT_TRUE(differencer.Compare(sent, ToProto(*value))) << difference;
}

// Sends every case of the stream, with every case of the messages about saves and restores.
template <typename Stream>
int ExpectAllRoundTrips() {
  int count = 0;
  const auto* const cases = Stream::descriptor()->oneof_decl(0);
  for (int i = 0; i < cases->field_count(); ++i) {
    const FieldDescriptor* const field = cases->field(i);
    const bool is_stream = field->name() == "hello" || field->name() == "probe_answer";
    const bool is_to_coordinator = Stream::descriptor()->name() == "JoinRequest";
    if (is_stream || (is_to_coordinator && field->name() == "moved")) continue;
    const bool has_cases = field->message_type()->real_oneof_decl_count() > 0;
    const auto* const inner = has_cases ? field->message_type()->oneof_decl(0) : nullptr;
    for (int k = 0; k < (has_cases ? inner->field_count() : 1); ++k) {
      Stream sent;
      Fill(sent, field);
      if (has_cases) Fill(*sent.GetReflection()->MutableMessage(&sent, field), inner->field(k));
      ExpectRoundTrip(sent);
      ++count;
    }
  }
  return count;
}

TEST(ClusterMessagesTest, EveryFieldArrives) {
  EXPECT_EQ(ExpectAllRoundTrips<v1::JoinRequest>(), 7 + 5 + 8);
  EXPECT_EQ(ExpectAllRoundTrips<v1::JoinResponse>(), 8 + 5 + 8);
}

TEST(ClusterMessagesTest, EveryFieldOfAVoteArrives) {
  v1::VoteRequest vote;
  for (int i = 0; i < vote.GetDescriptor()->field_count(); ++i) Fill(vote, vote.GetDescriptor()->field(i));
  const v1::VoteRequest again = VoteMessage(vote.node(), VoteOf(vote), absl::Seconds(vote.timeout().seconds()));
  EXPECT_EQ(again.sums_size(), 2);
  vote.clear_timeout();
  v1::VoteRequest without = again;
  without.clear_timeout();
  EXPECT_TRUE(MessageDifferencer::Equals(vote, without)) << without.ShortDebugString();
  v1::CommitDecision decision;
  for (int i = 0; i < decision.GetDescriptor()->field_count(); ++i) Fill(decision, decision.GetDescriptor()->field(i));
  EXPECT_TRUE(MessageDifferencer::Equals(decision, DecisionMessage(DecisionOf(decision))));
  v1::QueryCommitRequest query;
  for (int i = 0; i < query.GetDescriptor()->field_count(); ++i) Fill(query, query.GetDescriptor()->field(i));
  EXPECT_TRUE(MessageDifferencer::Equals(query, QueryMessage(query.node(), QueryOf(query))));
}

TEST(ClusterMessagesTest, MessagesThatSayNothingAreDropped) {
  EXPECT_FALSE(FromProto(v1::JoinRequest()).has_value());
  EXPECT_FALSE(FromProto(v1::JoinResponse()).has_value());
  v1::JoinRequest request;
  request.mutable_save();
  EXPECT_FALSE(FromProto(request).has_value()) << "about no save";
  request.mutable_restore()->mutable_report()->set_phase(v1::RESTORE_PHASE_UNSPECIFIED);
  EXPECT_FALSE(FromProto(request).has_value()) << "of no phase";
  request.mutable_probe_answer();
  EXPECT_FALSE(FromProto(request).has_value()) << "of the stream itself";
}

}  // namespace
}  // namespace paramshard::server
