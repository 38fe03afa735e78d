// Identity of the peer on a TLS connection: the one URI in its certificate.
//
//   spiffe://DOMAIN/paramshard/WORLD/node/N     daemon N of a world
//   spiffe://DOMAIN/paramshard/WORLD/trainer    exports
//   spiffe://DOMAIN/paramshard/WORLD/reader     mirrors weights
//   spiffe://DOMAIN/paramshard/WORLD/viewer     inspects
//   spiffe://DOMAIN/paramshard/WORLD/admin      inspects, saves, restores, deletes, drains
//
// For certificates with other URIs, patterns (--tls-role) give the URIs a role.
#ifndef PARAMSHARD_COMMON_TLS_IDENTITY_H_
#define PARAMSHARD_COMMON_TLS_IDENTITY_H_

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/tls/files.h"

namespace paramshard::tls {

enum class Role : uint8_t { kNode, kTrainer, kReader, kViewer, kAdmin };
absl::string_view RoleName(Role role);

struct Identity {
  std::string uri = {};
  // Part of the URI before the role: equal for all members of a world. Empty if a pattern has given the role.
  std::string world_uri = {};
  Role role = Role::kViewer;
  int node = -1;  // number of a daemon; else -1

  friend bool operator==(const Identity&, const Identity&) = default;
};

// Returns "node/3", "admin": the form in messages.
std::string IdentityText(const Identity& identity);

// Parses a URI as above. INVALID_ARGUMENT.
absl::StatusOr<Identity> ParseIdentity(absl::string_view uri);

// Gives a role to URIs that match the pattern. `*` stands for any characters; a node's pattern has `{N}` once, for its
// number.
struct RolePattern {
  Role role = Role::kViewer;
  std::string pattern;
};

// Returns true if the text matches the pattern, in which `*` stands for any characters.
bool MatchesPattern(absl::string_view pattern, absl::string_view text);

// UNAUTHENTICATED unless the peer is a daemon, and daemon `node` if it is given.
absl::Status CheckIsNode(const Identity& peer, std::optional<int> node = std::nullopt);
// UNAUTHENTICATED unless the peer is a daemon or a mirror, whose certificate is a reader's.
absl::Status CheckServesTools(const Identity& peer);

// Parses "ROLE=PATTERN". INVALID_ARGUMENT.
absl::StatusOr<RolePattern> ParseRolePattern(absl::string_view text);

// Rules by which a process accepts a member of its world. Thread-safe.
class IdentityRules {
 public:
  // Makes rules for the certificate in the files, as they are now. Errors of CheckFiles and Create.
  static absl::StatusOr<IdentityRules> Load(const Files& files, std::vector<RolePattern> patterns, absl::Time now);
  // `uris` are the URIs of the own certificate. INVALID_ARGUMENT if they are not an identity.
  static absl::StatusOr<IdentityRules> Create(absl::Span<const std::string> uris, std::vector<RolePattern> patterns);

  const Identity& own() const { return own_; }
  // UNAUTHENTICATED unless there is one URI, and it matches a pattern or belongs to a member of the same world.
  absl::StatusOr<Identity> Identify(absl::Span<const std::string> uris) const;

 private:
  explicit IdentityRules(std::vector<RolePattern> patterns) : patterns_(std::move(patterns)) {}
  absl::StatusOr<Identity> Parse(absl::Span<const std::string> uris) const;

  std::vector<RolePattern> patterns_;
  Identity own_;
};

}  // namespace paramshard::tls

#endif  // PARAMSHARD_COMMON_TLS_IDENTITY_H_
