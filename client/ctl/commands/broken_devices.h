// Lines about broken devices, printed below a command's answer.
#ifndef PARAMSHARD_CLIENT_CTL_COMMANDS_BROKEN_DEVICES_H_
#define PARAMSHARD_CLIENT_CTL_COMMANDS_BROKEN_DEVICES_H_

#include <string>

#include "absl/strings/str_cat.h"
#include "client/ctl/cell.h"
#include "client/ctl/terminal_text.h"
#include "paramshard/v1/admin.pb.h"

namespace paramshard::ctl {

// Follows the answer of any command: an operator must not miss it.
template <typename Response>
std::string BrokenDevicesText(const Response& response) {
  std::string text;
  for (const v1::BrokenDevice& broken : response.broken_devices()) {
    absl::StrAppend(&text, "BROKEN ", TerminalText(broken.device()), ": ", TerminalText(TextCell(broken.reason())),
                    "\n");
  }
  return text;
}

}  // namespace paramshard::ctl

#endif  // PARAMSHARD_CLIENT_CTL_COMMANDS_BROKEN_DEVICES_H_
