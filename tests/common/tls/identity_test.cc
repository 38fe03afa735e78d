#include "common/tls/identity.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"

namespace paramshard::tls {
namespace {

using ::testing::HasSubstr;

constexpr char kWorld[] = "spiffe://example.test/paramshard/w1";

std::string InWorld(absl::string_view rest) { return absl::StrCat(kWorld, "/", rest); }

RolePattern Pattern(absl::string_view text) {
  const absl::StatusOr<RolePattern> pattern = ParseRolePattern(text);
  EXPECT_OK(pattern);
  return *pattern;
}

IdentityRules RulesOf(const std::string& own, const std::vector<RolePattern>& patterns = {}) {
  auto rules = IdentityRules::Create(std::vector<std::string>{own}, patterns);
  EXPECT_OK(rules);
  return *std::move(rules);
}

TEST(ParseIdentityTest, ReadsEveryRole) {
  ASSERT_OK_AND_ASSIGN(const Identity node, ParseIdentity(InWorld("node/12")));
  EXPECT_EQ(node, (Identity{.uri = InWorld("node/12"), .world_uri = kWorld, .role = Role::kNode, .node = 12}));
  EXPECT_EQ(IdentityText(node), "node/12");
  for (const Role role : {Role::kTrainer, Role::kViewer, Role::kAdmin}) {
    ASSERT_OK_AND_ASSIGN(const Identity identity, ParseIdentity(InWorld(RoleName(role))));
    EXPECT_EQ(identity.role, role);
    EXPECT_EQ(identity.node, -1);
    EXPECT_EQ(IdentityText(identity), RoleName(role));
  }
}

TEST(ParseIdentityTest, RefusesWhatIsNoneOfThem) {
  for (const std::string& uri :
       {std::string(), std::string("spiffe://"), std::string(kWorld), InWorld(""), InWorld("node"), InWorld("node/"),
        InWorld("node/-1"), InWorld("node/01"), InWorld("node/1x"), InWorld("node/1/2"), InWorld("node/99999999999"),
        InWorld("admin/1"), InWorld("admin/"), InWorld("root"), InWorld("Admin"),
        std::string("https://example.test/paramshard/w1/admin"), std::string("spiffe:///paramshard/w1/admin"),
        std::string("spiffe://example.test/other/w1/admin"), std::string("spiffe://example.test/paramshard//admin")}) {
    EXPECT_THAT(ParseIdentity(uri).status(), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("want a URI")))
        << uri;
  }
}

TEST(ParseRolePatternTest, RefusesOtherRolesAndMisplacedNumbers) {
  for (const absl::string_view text :
       {"", "admin", "admin=", "root=spiffe://a", "node=spiffe://a/b", "node={N}/{N}", "viewer=spiffe://a/{N}"}) {
    EXPECT_THAT(ParseRolePattern(text).status(), StatusIs(absl::StatusCode::kInvalidArgument)) << text;
  }
}

TEST(IdentityRulesTest, TakesMembersOfItsOwnWorldAlone) {
  const IdentityRules rules = RulesOf(InWorld("node/1"));
  EXPECT_EQ(rules.own().node, 1);
  EXPECT_OK(rules.Identify({InWorld("node/0")}));
  EXPECT_OK(rules.Identify({InWorld("viewer")}));
  for (const char* foreign :
       {"spiffe://example.test/paramshard/w2/node/0", "spiffe://other.test/paramshard/w1/node/0"}) {
    EXPECT_THAT(rules.Identify({foreign}).status(),
                StatusIs(absl::StatusCode::kUnauthenticated, HasSubstr(absl::StrCat("a member of ", kWorld))));
  }
}

TEST(IdentityRulesTest, TakesOneUriAlone) {
  const IdentityRules rules = RulesOf(InWorld("node/1"));
  EXPECT_THAT(rules.Identify({}).status(), StatusIs(absl::StatusCode::kUnauthenticated, HasSubstr("got 0")));
  EXPECT_THAT(rules.Identify({InWorld("node/0"), InWorld("admin")}).status(),
              StatusIs(absl::StatusCode::kUnauthenticated, HasSubstr("got 2")));
  EXPECT_THAT(rules.Identify({InWorld(std::string(5000, 'a'))}).status(), StatusIs(absl::StatusCode::kUnauthenticated));
}

TEST(IdentityRulesTest, PatternsGiveRolesToOtherUris) {
  const IdentityRules rules =
      RulesOf("spiffe://corp/ns/train/pod/ps-3",
              {Pattern("node=spiffe://corp/ns/train/pod/ps-{N}"), Pattern("admin=spiffe://corp/ns/ops/*"),
               Pattern("viewer=spiffe://corp/*/watch/*")});
  EXPECT_EQ(rules.own().node, 3);
  ASSERT_OK_AND_ASSIGN(const Identity node, rules.Identify({"spiffe://corp/ns/train/pod/ps-0"}));
  EXPECT_EQ(node.node, 0);
  ASSERT_OK_AND_ASSIGN(const Identity admin, rules.Identify({"spiffe://corp/ns/ops/alice"}));
  EXPECT_EQ(admin.role, Role::kAdmin);
  ASSERT_OK_AND_ASSIGN(const Identity viewer, rules.Identify({"spiffe://corp/a/b/watch/"}));
  EXPECT_EQ(viewer.role, Role::kViewer);
  for (const char* other :
       {"spiffe://corp/ns/train/pod/ps-", "spiffe://corp/ns/train/pod/ps-03", "spiffe://corp/ns/train/pod/ps-3x",
        "spiffe://corp/ns/op/alice", "spiffe://corp/watch", "xspiffe://corp/ns/ops/alice"}) {
    EXPECT_THAT(rules.Identify({other}).status(), StatusIs(absl::StatusCode::kUnauthenticated)) << other;
  }
}

// The peers have the same authority, such as an admin of a different world.
TEST(IdentityRulesTest, WhoHasItsRoleByAPatternTakesNobodyByTheNameOfAWorld) {
  const IdentityRules rules = RulesOf("spiffe://corp/ps-3", {Pattern("node=spiffe://corp/ps-{N}")});
  for (const std::string& uri : {InWorld("admin"), InWorld("node/0")}) {
    EXPECT_THAT(rules.Identify({uri}).status(),
                StatusIs(absl::StatusCode::kUnauthenticated, HasSubstr("a URI that a pattern gives a role")));
  }
  EXPECT_OK(rules.Identify({"spiffe://corp/ps-0"}));
}

TEST(CheckIsNodeTest, TakesDaemonsOrOneOfThem) {
  ASSERT_OK_AND_ASSIGN(const Identity node, ParseIdentity(InWorld("node/1")));
  EXPECT_OK(CheckIsNode(node));
  EXPECT_OK(CheckIsNode(node, 1));
  EXPECT_THAT(CheckIsNode(node, 0),
              StatusIs(absl::StatusCode::kUnauthenticated, HasSubstr("want the certificate of node/0")));
  ASSERT_OK_AND_ASSIGN(const Identity admin, ParseIdentity(InWorld("admin")));
  EXPECT_THAT(CheckIsNode(admin),
              StatusIs(absl::StatusCode::kUnauthenticated, HasSubstr("want the certificate of a node")));
}

TEST(IdentityRulesTest, APatternsPiecesDoNotOverlap) {
  const IdentityRules rules = RulesOf(InWorld("node/0"), {Pattern("viewer=ab*bc")});
  EXPECT_OK(rules.Identify({"abbc"}));
  EXPECT_FALSE(rules.Identify({"abc"}).ok());
}

}  // namespace
}  // namespace paramshard::tls
