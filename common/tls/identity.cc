#include "common/tls/identity.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "kernels/base/status_macros.h"

namespace paramshard::tls {
namespace {

constexpr absl::string_view kForm = "spiffe://DOMAIN/paramshard/WORLD/node/N, or /trainer, /reader, /viewer or /admin";
constexpr absl::string_view kNumber = "{N}";
// Longest URI of SPIFFE.
constexpr size_t kMostUriBytes = 2048;
// Longest text of a certificate in a message. Certificates may hold texts of any length and any bytes.
constexpr size_t kMostTextBytes = 512;

std::string Quoted(absl::string_view text) {
  return absl::StrCat("\"", absl::CEscape(text.substr(0, kMostTextBytes)), "\"");
}

absl::Status NoIdentity(absl::string_view uri) {
  return absl::InvalidArgumentError(absl::StrCat("want a URI ", kForm, ", got ", Quoted(uri)));
}

// Parses a number without sign and leading zeros.
std::optional<int> ParseNode(absl::string_view text) {
  int node = 0;
  if (text.empty() || !std::all_of(text.begin(), text.end(), absl::ascii_isdigit)) return std::nullopt;
  if (!absl::SimpleAtoi(text, &node) || absl::StrCat(node) != text) return std::nullopt;
  return node;
}

std::optional<Role> RoleOf(absl::string_view name) {
  for (const Role role : {Role::kNode, Role::kTrainer, Role::kReader, Role::kViewer, Role::kAdmin}) {
    if (RoleName(role) == name) return role;
  }
  return std::nullopt;
}

// Returns the number in place of {N} in a URI that matches the pattern.
std::optional<int> MatchNode(absl::string_view pattern, absl::string_view uri) {
  const size_t place = pattern.find(kNumber);
  const absl::string_view before = pattern.substr(0, place);
  const absl::string_view after = pattern.substr(place + kNumber.size());
  for (size_t begin = 0; begin < uri.size(); ++begin) {
    if (!absl::ascii_isdigit(uri[begin]) || (begin > 0 && absl::ascii_isdigit(uri[begin - 1]))) continue;
    const auto* const digits_end = std::find_if_not(uri.begin() + begin, uri.end(), absl::ascii_isdigit);
    const size_t end = digits_end - uri.begin();
    const std::optional<int> node = ParseNode(uri.substr(begin, end - begin));
    if (node.has_value() && MatchesPattern(before, uri.substr(0, begin)) && MatchesPattern(after, uri.substr(end)))
      return node;
  }
  return std::nullopt;
}

std::optional<Identity> Match(const RolePattern& pattern, absl::string_view uri) {
  Identity identity{.uri = std::string(uri), .role = pattern.role};
  if (pattern.role != Role::kNode) return MatchesPattern(pattern.pattern, uri) ? std::optional(identity) : std::nullopt;
  const std::optional<int> node = MatchNode(pattern.pattern, uri);
  if (!node.has_value()) return std::nullopt;
  identity.node = *node;
  return identity;
}

}  // namespace

// Each piece between stars is matched at its first place, so the time is bounded for any text.
bool MatchesPattern(absl::string_view pattern, absl::string_view text) {
  const std::vector<absl::string_view> pieces = absl::StrSplit(pattern, '*');
  if (pieces.size() == 1) return pattern == text;
  if (!absl::ConsumePrefix(&text, pieces.front()) || !absl::ConsumeSuffix(&text, pieces.back())) return false;
  for (size_t i = 1; i + 1 < pieces.size(); ++i) {
    const size_t place = text.find(pieces[i]);
    if (place == absl::string_view::npos) return false;
    text.remove_prefix(place + pieces[i].size());
  }
  return true;
}

absl::string_view RoleName(Role role) {
  switch (role) {
    case Role::kNode:
      return "node";
    case Role::kTrainer:
      return "trainer";
    case Role::kReader:
      return "reader";
    case Role::kViewer:
      return "viewer";
    case Role::kAdmin:
      break;
  }
  return "admin";
}

std::string IdentityText(const Identity& identity) {
  if (identity.role == Role::kNode) return absl::StrCat("node/", identity.node);
  return std::string(RoleName(identity.role));
}

absl::StatusOr<Identity> ParseIdentity(absl::string_view uri) {
  absl::string_view path = uri;
  if (!absl::ConsumePrefix(&path, "spiffe://")) return NoIdentity(uri);
  const std::vector<absl::string_view> parts = absl::StrSplit(path, '/');
  // DOMAIN, "paramshard", WORLD, ROLE, and N of a node.
  if (parts.size() < 4 || parts[0].empty() || parts[1] != "paramshard" || parts[2].empty()) return NoIdentity(uri);
  const std::optional<Role> role = RoleOf(parts[3]);
  if (!role.has_value() || parts.size() != (*role == Role::kNode ? 5 : 4)) return NoIdentity(uri);
  Identity identity{.uri = std::string(uri),
                    .world_uri = absl::StrCat("spiffe://", parts[0], "/paramshard/", parts[2]),
                    .role = *role};
  if (*role != Role::kNode) return identity;
  const std::optional<int> node = ParseNode(parts[4]);
  if (!node.has_value()) return NoIdentity(uri);
  identity.node = *node;
  return identity;
}

absl::StatusOr<RolePattern> ParseRolePattern(absl::string_view text) {
  const std::pair<absl::string_view, absl::string_view> parts = absl::StrSplit(text, absl::MaxSplits('=', 1));
  const std::optional<Role> role = RoleOf(parts.first);
  if (!role.has_value() || parts.second.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "want node=PATTERN, trainer=PATTERN, reader=PATTERN, viewer=PATTERN or admin=PATTERN, got ", Quoted(text)));
  }
  const size_t place = parts.second.find(kNumber);
  const bool has_number = place != absl::string_view::npos;
  if (has_number != (*role == Role::kNode) ||
      (has_number && absl::StrContains(parts.second.substr(place + 1), kNumber))) {
    return absl::InvalidArgumentError(absl::StrCat(
        "want a pattern with {N} once for a node's number, and without it for other roles, got ", Quoted(text)));
  }
  return RolePattern{.role = *role, .pattern = std::string(parts.second)};
}

absl::StatusOr<IdentityRules> IdentityRules::Load(const Files& files, std::vector<RolePattern> patterns,
                                                  absl::Time now) {
  ASSIGN_OR_RETURN(const Certificate certificate, CheckFiles(files, now));
  absl::StatusOr<IdentityRules> rules = Create(certificate.uris, std::move(patterns));
  if (rules.ok()) return rules;
  return absl::InvalidArgumentError(absl::StrCat("TLS certificate ", files.cert, ": ", rules.status().message(),
                                                 "; a pattern, ROLE=PATTERN, gives other URIs a role"));
}

absl::StatusOr<IdentityRules> IdentityRules::Create(absl::Span<const std::string> uris,
                                                    std::vector<RolePattern> patterns) {
  IdentityRules rules(std::move(patterns));
  ASSIGN_OR_RETURN(rules.own_, rules.Parse(uris));
  return rules;
}

absl::StatusOr<Identity> IdentityRules::Parse(absl::Span<const std::string> uris) const {
  if (uris.size() != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("want one URI among the alternative names of a certificate, got ", uris.size()));
  }
  if (uris[0].size() > kMostUriBytes) return NoIdentity(uris[0]);
  for (const RolePattern& pattern : patterns_) {
    if (std::optional<Identity> identity = Match(pattern, uris[0])) return *std::move(identity);
  }
  return ParseIdentity(uris[0]);
}

absl::StatusOr<Identity> IdentityRules::Identify(absl::Span<const std::string> uris) const {
  absl::StatusOr<Identity> identity = Parse(uris);
  if (!identity.ok()) return absl::UnauthenticatedError(identity.status().message());
  // A URI that matches a pattern is accepted. Any other URI names a world, which must be this process's world; a
  // process that has its own role by a pattern has no world.
  if (identity->world_uri.empty() || identity->world_uri == own_.world_uri) return identity;
  return absl::UnauthenticatedError(absl::StrCat(
      "want ",
      own_.world_uri.empty() ? "a URI that a pattern gives a role" : absl::StrCat("a member of ", own_.world_uri),
      ", got ", Quoted(identity->uri)));
}

absl::Status CheckIsNode(const Identity& peer, std::optional<int> node) {
  if (peer.role == Role::kNode && peer.node == node.value_or(peer.node)) return absl::OkStatus();
  return absl::UnauthenticatedError(
      absl::StrCat("want the certificate of ", node.has_value() ? absl::StrCat("node/", *node) : "a node",
                   ", got the certificate of ", IdentityText(peer), " (", Quoted(peer.uri), ")"));
}

absl::Status CheckServesTools(const Identity& peer) {
  return peer.role == Role::kReader ? absl::OkStatus() : CheckIsNode(peer);
}

}  // namespace paramshard::tls
