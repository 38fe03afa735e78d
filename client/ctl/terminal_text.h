// Escapes untrusted text for terminals.
#ifndef PARAMSHARD_CLIENT_CTL_TERMINAL_TEXT_H_
#define PARAMSHARD_CLIENT_CTL_TERMINAL_TEXT_H_

#include <string>

#include "absl/strings/string_view.h"

namespace paramshard::ctl {

// Returns the text as one line without control sequences: every byte of a control character (C0 with line feeds, DEL,
// and C1, which is U+0080 to U+009F), and of invalid UTF-8, is shown as \xHH. Names from daemons, files and other
// processes pass through here before people see them; JSON has its own escapes.
std::string TerminalText(absl::string_view text);

}  // namespace paramshard::ctl

#endif  // PARAMSHARD_CLIENT_CTL_TERMINAL_TEXT_H_
