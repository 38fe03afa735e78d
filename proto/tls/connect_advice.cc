#include "proto/tls/connect_advice.h"

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace paramshard::tls {

std::string ConnectAdvice(absl::string_view failure, const Files& files) {
  // OpenSSL writes its reasons in words in some versions, and as constants in others.
  std::string text = absl::AsciiStrToLower(failure);
  for (char& each : text) each = each == '_' ? ' ' : each;
  if (absl::StrContains(text, "certificate verify failed")) {
    return absl::StrCat("the certificate there is of no authority in ", files.ca, ", or has ended");
  }
  if (absl::StrContains(text, "wrong version number")) {
    return "nobody speaks TLS there: certificates at both ends expected, or at none";
  }
  if (!absl::StrContains(text, "socket closed") && !absl::StrContains(text, "reset by peer") &&
      !absl::StrContains(text, "handshake")) {
    return "";
  }
  return files.any() ? absl::StrCat("the other end's log says whether it refuses the certificate in ", files.cert)
                     : "whoever listens there may speak TLS: certificates at both ends expected, or at none";
}

}  // namespace paramshard::tls
