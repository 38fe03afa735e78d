#include "common/tls/connect_advice.h"

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace paramshard::tls {

std::string ConnectAdvice(absl::string_view failure, const Files& files) {
  // OpenSSL writes its reasons in words in some versions, and as constants in others.
  std::string text = absl::AsciiStrToLower(failure);
  for (char& each : text) each = each == '_' ? ' ' : each;
  if (absl::StrContains(text, "certificate verify failed")) {
    return absl::StrCat("the other end's certificate is not signed by an authority in ", files.ca, ", or has expired");
  }
  if (absl::StrContains(text, "wrong version number")) {
    return "the other end does not use TLS: give certificates to both ends, or to neither";
  }
  if (!absl::StrContains(text, "socket closed") && !absl::StrContains(text, "reset by peer") &&
      !absl::StrContains(text, "handshake")) {
    return "";
  }
  return files.any() ? absl::StrCat("the other end may have rejected the certificate in ", files.cert, ": see its log")
                     : "the other end may use TLS: give certificates to both ends, or to neither";
}

}  // namespace paramshard::tls
