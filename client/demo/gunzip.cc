#include "client/demo/gunzip.h"

#include <zlib.h>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace paramshard::demo {
namespace {

// Ends the stream however its use ends.
class InflateStream {
 public:
  // 15 window bits, plus 16: a gzip header is expected.
  InflateStream() { ok_ = inflateInit2(&stream_, 15 + 16) == Z_OK; }
  ~InflateStream() {
    if (ok_) inflateEnd(&stream_);
  }
  InflateStream(const InflateStream&) = delete;
  InflateStream& operator=(const InflateStream&) = delete;

  bool ok() const { return ok_; }
  z_stream& operator*() { return stream_; }

 private:
  z_stream stream_{};
  bool ok_;
};

}  // namespace

absl::StatusOr<std::string> Gunzip(absl::Span<const uint8_t> compressed) {
  InflateStream stream;
  if (!stream.ok()) return absl::ResourceExhaustedError("gunzip: failed to initialize zlib");
  (*stream).next_in = const_cast<Bytef*>(compressed.data());
  (*stream).avail_in = static_cast<uInt>(compressed.size());
  std::string text;
  char buffer[64 * 1024];
  int result = Z_OK;
  while (result == Z_OK) {
    (*stream).next_out = reinterpret_cast<Bytef*>(buffer);
    (*stream).avail_out = sizeof(buffer);
    result = inflate(&*stream, Z_NO_FLUSH);
    text.append(buffer, sizeof(buffer) - (*stream).avail_out);
  }
  if (result == Z_STREAM_END) return text;
  return absl::DataLossError(absl::StrCat("gunzip: file is damaged or truncated after ", text.size(), " bytes"));
}

}  // namespace paramshard::demo
