// Who speaks on a connection with TLS: the one URI that its certificate names.
//
//   spiffe://DOMAIN/paramshard/WORLD/node/N     daemon N of a world
//   spiffe://DOMAIN/paramshard/WORLD/trainer    exports
//   spiffe://DOMAIN/paramshard/WORLD/viewer     inspects
//   spiffe://DOMAIN/paramshard/WORLD/admin      inspects, saves, restores, deletes, drains
//
// Where certificates exist already, patterns (--tls-role) say which role their URIs have.
#ifndef PARAMSHARD_PROTO_TLS_IDENTITY_H_
#define PARAMSHARD_PROTO_TLS_IDENTITY_H_

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
#include "proto/tls/files.h"

namespace paramshard::tls {

enum class Role : uint8_t { kNode, kTrainer, kViewer, kAdmin };
absl::string_view RoleName(Role role);

struct Identity {
  std::string uri = {};
  // What comes before the role: equal for all members of a world. Empty where a pattern has given the role.
  std::string world_uri = {};
  Role role = Role::kViewer;
  int node = -1;  // of a daemon

  friend bool operator==(const Identity&, const Identity&) = default;
};

// "node/3", "admin": as messages say it.
std::string IdentityText(const Identity& identity);

// Of a URI as above. INVALID_ARGUMENT.
absl::StatusOr<Identity> ParseIdentity(absl::string_view uri);

// That URIs with the pattern have the role. `*` in it stands for any characters; for a node `{N}` once for its number.
struct RolePattern {
  Role role = Role::kViewer;
  std::string pattern;
};

// Whether the text is that of the pattern, in which `*` stands for any characters.
bool MatchesPattern(absl::string_view pattern, absl::string_view text);

// UNAUTHENTICATED unless it is a daemon, and that one where `node` says which.
absl::Status CheckIsNode(const Identity& peer, std::optional<int> node = std::nullopt);

// Of "ROLE=PATTERN". INVALID_ARGUMENT.
absl::StatusOr<RolePattern> ParseRolePattern(absl::string_view text);

// What a process takes for a member of its world. Thread-safe.
class IdentityRules {
 public:
  // Of the certificate in the files, as they are now. Errors of CheckFiles and Create.
  static absl::StatusOr<IdentityRules> Load(const Files& files, std::vector<RolePattern> patterns, absl::Time now);
  // `uris` are those of its own certificate. INVALID_ARGUMENT when they are no identity.
  static absl::StatusOr<IdentityRules> Create(absl::Span<const std::string> uris, std::vector<RolePattern> patterns);

  const Identity& own() const { return own_; }
  // UNAUTHENTICATED unless there is one URI, which a pattern has, or which is that of a member of the same world.
  absl::StatusOr<Identity> Identify(absl::Span<const std::string> uris) const;

 private:
  explicit IdentityRules(std::vector<RolePattern> patterns) : patterns_(std::move(patterns)) {}
  absl::StatusOr<Identity> Parse(absl::Span<const std::string> uris) const;

  std::vector<RolePattern> patterns_;
  Identity own_;
};

}  // namespace paramshard::tls

#endif  // PARAMSHARD_PROTO_TLS_IDENTITY_H_
