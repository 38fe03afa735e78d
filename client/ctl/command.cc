#include "client/ctl/command.h"

#include "absl/strings/str_cat.h"

namespace paramshard::ctl {

absl::StatusOr<AdminClient> Context::Connect() const {
  AdminClient::Options options;
  options.socket_dir = options_.socket_dir;
  if (!options_.addresses.empty()) {
    // A missing daemon delays the answers of the others.
    options.connect_timeout = absl::Seconds(5);
    options.remote = {.address = options_.addresses[0], .files = options_.tls_files, .roles = options_.tls_roles};
  }
  options.connect_timeout = options_.timeout.value_or(options.connect_timeout);
  options.timeout = options_.timeout.value_or(options.timeout);
  options.stream_timeout = options_.timeout.value_or(options.stream_timeout);
  absl::StatusOr<AdminClient> client = AdminClient::Connect(options);
  if (client.ok() || options_.addresses.empty() || !options_.tls_files.cert.empty()) return client;
  return absl::Status(
      client.status().code(),
      absl::StrCat(client.status().message(),
                   "; give --tls-cert, --tls-key and --tls-ca, or ask a daemon without certificates on its machine"));
}

}  // namespace paramshard::ctl
