// A trainer of another project: it sees only the installed package, and looks for a daemon where there is none.

#include <iostream>

#include "absl/time/time.h"
#include "client/client.h"

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  const paramshard::ModelSpec spec = {.name = "m", .units = {{.name = "u", .parameters = {{.name = "w"}}}}};
  if (paramshard::EncodingOf(spec.units[0].parameters[0].encoding).format != paramshard::Format::kFP32) return 1;
  const auto client =
      paramshard::Client::Connect({.rank = 0, .socket_dir = argv[1], .connect_timeout = absl::Milliseconds(200)});
  std::cout << client.status() << std::endl;
  return absl::IsUnavailable(client.status()) ? 0 : 1;
}
