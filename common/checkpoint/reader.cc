#include "common/checkpoint/reader.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <set>
#include <system_error>
#include <utility>

#include "absl/container/btree_map.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/checkpoint/content_hash.h"
#include "common/checkpoint/rank_file.h"
#include "common/checkpoint/safetensors_image.h"
#include "common/checkpoint/step_folder.h"
#include "common/model/limits.h"
#include "common/model/model_spec_proto.h"
#include "common/model/names.h"
#include "common/safetensors/header.h"
#include "kernels/base/status_macros.h"

namespace paramshard::checkpoint {
namespace {

namespace fs = std::filesystem;
using safetensors::Dtype;
using safetensors::Header;
using safetensors::PageBuffer;
using safetensors::RegularFile;
using safetensors::TensorInfo;

constexpr char kFileSuffix[] = ".safetensors";
// Smallest average chunk of a file that may be read around the page cache.
constexpr int64_t kSmallChunkBytes = int64_t{128} << 10;

absl::Span<uint8_t> SpanOf(std::string& text) {
  return absl::MakeSpan(reinterpret_cast<uint8_t*>(text.data()), text.size());
}
absl::string_view TextOf(absl::Span<const uint8_t> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// Requirements on a tensor of a rank file.
struct ExpectedTensor {
  ArrayShape shape;
  bool has_hash = false;
  bool is_joined = false;  // the hash is of fp32 rows, not of the stored bytes
};
using ExpectedTensors = absl::btree_map<std::string, ExpectedTensor, std::less<>>;

ExpectedTensors ExpectedOf(const ModelSpec& spec) {
  ExpectedTensors expected;
  for (const UnitSpec& unit : spec.units) {
    for (const ParameterSpec& parameter : unit.parameters) {
      for (const ArrayKind kind : ArraysOf(parameter)) {
        const bool is_joined = kind == ArrayKind::kMaster && parameter.master_type == MasterType::kBF16Remainder;
        expected[TensorKey(parameter, kind)] = {*ShapeOf(parameter, kind), HasContentHash(kind), is_joined};
      }
    }
  }
  return expected;
}

}  // namespace

// Fills a reader, and reports faults on the way.
class Reader::Opener {
 public:
  Opener(Reader& reader, const Options& options, absl::FunctionRef<void(const Damage&)> report)
      : reader_(reader), options_(options), report_(report) {}

  // Returns false if manifest or spec cannot be read: then there is no reader.
  bool Open();

 private:
  void Report(std::string file, const absl::Status& status) {
    report_({.file = std::move(file), .code = status.code(), .message = std::string(status.message())});
  }
  void Report(std::string file, std::string tensor, std::optional<RowRange> rows, absl::StatusCode code,
              std::string message) {
    report_({std::move(file), std::move(tensor), rows, code, std::move(message)});
  }
  std::string PathOf(const std::string& name) const { return (fs::path(reader_.folder_) / name).string(); }

  bool CheckFolder();
  absl::Status CheckFolderOwner() const;
  // Checks the owner of the open file, from which is then read.
  absl::StatusOr<RegularFile> OpenOwned(const std::string& name, RegularFile::PageCache page_cache) const;
  bool ReadNumbers();
  bool ReadSpec();
  absl::Status ParseSpec(const std::string& text);
  void CheckNames();
  void CheckNoOtherFiles();
  void OpenFile(int index);
  absl::StatusOr<Header> OpenHeader(const FileEntry& entry, std::optional<RegularFile>& file) const;
  absl::StatusOr<Header> ReadHeader(const FileEntry& entry, const RegularFile& file) const;
  void AddTensors(int index, const Header& header);
  bool CheckTensor(const FileEntry& entry, bool is_common, const TensorInfo& tensor, const RowRun& run);
  bool IsClientStateOf(absl::string_view file, absl::string_view tensor) const;
  void CheckRows(const std::string& key, const ExpectedTensor& expected);
  void CheckHash(const std::string& key, const ExpectedTensor& expected);
  void ReadCommon();
  absl::StatusOr<std::string> ReadWhole(int index) const;

  Reader& reader_;
  const Options& options_;
  const absl::FunctionRef<void(const Damage&)> report_;
  ExpectedTensors expected_;
  int first_common_ = 0;  // index into the manifest's files: common.safetensors and those behind it; none: their count
  bool all_files_open_ = true;
};

bool Reader::Opener::Open() {
  if (!CheckFolder() || !ReadNumbers() || !ReadSpec()) return false;
  expected_ = ExpectedOf(*reader_.spec_);
  CheckNames();
  CheckNoOtherFiles();
  reader_.files_.resize(reader_.manifest_.files.size());
  for (int i = 0; i < static_cast<int>(reader_.files_.size()); ++i) OpenFile(i);
  for (const auto& [key, expected] : expected_) {
    CheckRows(key, expected);
    CheckHash(key, expected);
  }
  for (const auto& [key, hash] : reader_.manifest_.tensors) {
    const auto found = expected_.find(key);
    if (found == expected_.end() || !found->second.has_hash) {
      Report(kManifestFileName, key, std::nullopt, absl::StatusCode::kInvalidArgument,
             "not a hashed tensor of the spec");
    }
  }
  ReadCommon();
  return true;
}

bool Reader::Opener::CheckFolder() {
  std::error_code error;
  const fs::file_status status = fs::status(reader_.folder_, error);
  if (const absl::Status failed = safetensors::FileError(error.value(), "stat failed"); absl::IsUnavailable(failed)) {
    Report("", failed);
    return false;
  }
  if (!fs::is_directory(status)) {
    const bool exists = fs::exists(status);
    Report("", "", std::nullopt, exists ? absl::StatusCode::kInvalidArgument : absl::StatusCode::kNotFound,
           exists ? "not a folder" : "folder not found");
    return false;
  }
  const absl::Status owner = CheckFolderOwner();
  if (!owner.ok()) Report("", owner);
  return owner.ok();
}

absl::Status Reader::Opener::CheckFolderOwner() const {
  if (!options_.owner.has_value()) return absl::OkStatus();
  struct stat status;
  if (stat(reader_.folder_.c_str(), &status) != 0) return safetensors::FileError(errno, "stat failed");
  return safetensors::CheckOwnerOf(status, *options_.owner);
}

absl::StatusOr<RegularFile> Reader::Opener::OpenOwned(const std::string& name,
                                                      RegularFile::PageCache page_cache) const {
  ASSIGN_OR_RETURN(RegularFile file, RegularFile::Open(PathOf(name), page_cache));
  if (options_.owner.has_value()) RETURN_IF_ERROR(file.CheckOwner(*options_.owner));
  return file;
}

bool Reader::Opener::ReadNumbers() {
  absl::StatusOr<Manifest> manifest = ReadManifest(reader_.folder_, options_.owner);
  if (!manifest.ok()) {
    // Damage::ToStatus names the file.
    absl::string_view message = manifest.status().message();
    absl::ConsumePrefix(&message, absl::StrCat(PathOf(kManifestFileName), ": "));
    Report(kManifestFileName, absl::Status(manifest.status().code(), message));
    return false;
  }
  reader_.manifest_ = *std::move(manifest);
  return true;
}

bool Reader::Opener::ReadSpec() {
  const absl::StatusOr<RegularFile> file = OpenOwned(kSpecFileName, RegularFile::PageCache::kUsed);
  const absl::StatusOr<std::string> text = file.ok() ? file->ReadWhole(kMaxManifestBytes) : file.status();
  absl::Status status = text.ok() ? ParseSpec(*text) : text.status();
  if (absl::IsNotFound(status)) status = absl::DataLossError("file not found");
  if (!status.ok()) Report(kSpecFileName, status);
  return status.ok();
}

absl::Status Reader::Opener::ParseSpec(const std::string& text) {
  const Manifest& manifest = reader_.manifest_;
  if (static_cast<int64_t>(text.size()) != manifest.spec_bytes || HashBytes(text) != manifest.spec_hash) {
    return absl::DataLossError(absl::StrCat("want ", manifest.spec_bytes, " bytes with hash ",
                                            HashText(manifest.spec_hash), ", got ", text.size(), " with ",
                                            HashText(HashBytes(text))));
  }
  v1::ModelSpec message;
  if (!message.ParseFromString(text)) return absl::InvalidArgumentError("not a ModelSpec message");
  ASSIGN_OR_RETURN(ModelSpec spec, ParseModelSpec(message));
  // The fingerprint is not compared: an older program made it without the fields that were added since.
  if (spec.name != manifest.model) {
    return absl::InvalidArgumentError(
        absl::StrCat("want the spec of model ", DisplayName(manifest.model), ", got ", DisplayName(spec.name)));
  }
  reader_.spec_ = std::make_unique<const ModelSpec>(std::move(spec));
  reader_.names_ = std::make_unique<const NameIndex>(*reader_.spec_);
  return absl::OkStatus();
}

void Reader::Opener::CheckNames() {
  absl::Span<const FileEntry> files = reader_.manifest_.files;
  const auto common =
      std::find_if(files.begin(), files.end(), [](const FileEntry& file) { return file.name == kCommonFileName; });
  first_common_ = static_cast<int>(common - files.begin());
  for (int i = first_common_, index = 0; i < static_cast<int>(files.size()); ++i, ++index) {
    if (files[i].name != CommonFileName(index)) first_common_ = static_cast<int>(files.size());
  }
  if (first_common_ == static_cast<int>(files.size())) {
    return Report(kManifestFileName,
                  absl::InvalidArgumentError(absl::StrCat("files: want ", kCommonFileName, " last")));
  }
  const absl::Status status = CheckRankFiles(files.first(first_common_), reader_.manifest_.world);
  if (!status.ok()) Report(kManifestFileName, status);
}

// Reports other safetensors files: readers of sharded safetensors would take them for parts of the tensors.
void Reader::Opener::CheckNoOtherFiles() {
  std::set<absl::string_view> names;
  for (const FileEntry& entry : reader_.manifest_.files) names.insert(entry.name);
  std::set<std::string> others;
  std::error_code error;
  for (fs::directory_iterator entry(reader_.folder_, error), end; !error && entry != end; entry.increment(error)) {
    std::string name = entry->path().filename().string();
    if (absl::EndsWith(name, kFileSuffix) && names.count(name) == 0) others.insert(std::move(name));
  }
  if (error) Report("", absl::UnavailableError(absl::StrCat("reading the folder failed: ", error.message())));
  for (const std::string& name : others) {
    Report(name, absl::InvalidArgumentError("not a file of the manifest: remove it"));
  }
}

void Reader::Opener::OpenFile(int index) {
  const FileEntry& entry = reader_.manifest_.files[index];
  const absl::StatusOr<Header> header = OpenHeader(entry, reader_.files_[index]);
  if (header.ok()) return AddTensors(index, *header);
  reader_.files_[index].reset();
  all_files_open_ = false;
  Report(entry.name, absl::IsNotFound(header.status()) ? absl::DataLossError("file not found") : header.status());
}

absl::StatusOr<Header> Reader::Opener::OpenHeader(const FileEntry& entry, std::optional<RegularFile>& file) const {
  // Around the page cache every small chunk is a wait for the disk: 100,000 parameters have 300,000 small chunks.
  const auto chunks = std::max<int64_t>(1, static_cast<int64_t>(entry.chunk_sums.size()));
  const bool is_small = entry.size_bytes / chunks < kSmallChunkBytes;
  ASSIGN_OR_RETURN(file, OpenOwned(entry.name, is_small ? RegularFile::PageCache::kUsed : options_.page_cache));
  return ReadHeader(entry, *file);
}

absl::StatusOr<Header> Reader::Opener::ReadHeader(const FileEntry& entry, const RegularFile& file) const {
  if (file.size_bytes() != entry.size_bytes) {
    return absl::DataLossError(absl::StrCat("want ", entry.size_bytes, " bytes, got ", file.size_bytes()));
  }
  std::string text(entry.header_bytes, '\0');
  RETURN_IF_ERROR(file.ReadAt(0, SpanOf(text)));
  if (HashBytes(text) != entry.header_hash) {
    return absl::DataLossError(
        absl::StrCat("want a header with hash ", HashText(entry.header_hash), ", got ", HashText(HashBytes(text))));
  }
  ASSIGN_OR_RETURN(const int64_t header_bytes, safetensors::DataBegin(text));
  if (header_bytes != entry.header_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("want a header of ", entry.header_bytes, " bytes, got ", header_bytes));
  }
  return safetensors::ParseHeader(absl::string_view(text).substr(safetensors::kLengthBytes),
                                  entry.size_bytes - header_bytes);
}

void Reader::Opener::AddTensors(int index, const Header& header) {
  const FileEntry& entry = reader_.manifest_.files[index];
  const absl::StatusOr<std::vector<RowRun>> runs = RunsOf(header, entry.header_bytes, entry.chunk_bytes);
  if (!runs.ok()) return Report(entry.name, runs.status());
  int64_t chunks = 0;
  for (const RowRun& run : *runs) chunks += ChunkCount(run);
  if (chunks != static_cast<int64_t>(entry.chunk_sums.size())) {
    return Report(kManifestFileName,
                  absl::InvalidArgumentError(
                      absl::StrCat(entry.name, ": want sums of ", chunks, " chunks, got ", entry.chunk_sums.size())));
  }
  int first_chunk = 0;
  for (size_t i = 0; i < runs->size(); ++i) {
    const RowRun& run = (*runs)[i];
    if (CheckTensor(entry, index >= first_common_, header.tensors[i], run)) {
      reader_.tensors_[header.tensors[i].name].push_back({index, first_chunk, run});
    }
    first_chunk += static_cast<int>(ChunkCount(run));
  }
}

bool Reader::Opener::CheckTensor(const FileEntry& entry, bool is_common, const TensorInfo& tensor, const RowRun& run) {
  const auto refuse = [&](std::string message) {
    Report(entry.name, tensor.name, std::nullopt, absl::StatusCode::kInvalidArgument, std::move(message));
    return false;
  };
  const auto found = expected_.find(tensor.name);
  // ParseCommonState checks the other tensors of common files.
  if (is_common) return found == expected_.end() || refuse("belongs into a rank file");
  if (found != expected_.end()) {
    const ArrayShape& shape = found->second.shape;
    const bool fits = tensor.dtype == shape.dtype && tensor.shape.size() == 2 && tensor.shape[1] == shape.columns &&
                      run.rows <= shape.rows && run.first_row <= shape.rows - run.rows;
    return fits || refuse(absl::StrCat("want rows of ", safetensors::DtypeName(shape.dtype), " [", shape.rows, ", ",
                                       shape.columns, "], got a different type or shape"));
  }
  const bool is_client_state =
      IsClientStateOf(entry.name, tensor.name) && tensor.dtype == Dtype::kU8 && tensor.shape.size() == 1 &&
      tensor.size_bytes <= static_cast<int64_t>(kMaxClientStateBytes) && reader_.tensors_.count(tensor.name) == 0;
  return is_client_state || refuse("want a tensor of the spec, or the rank's client state once");
}

// Returns true if the tensor is the client state of the rank that wrote the file.
bool Reader::Opener::IsClientStateOf(absl::string_view file, absl::string_view tensor) const {
  int rank = 0;
  const size_t slash = tensor.rfind('/');
  if (slash == tensor.npos || !absl::SimpleAtoi(tensor.substr(slash + 1), &rank)) return false;
  const std::string stem = RankFileName(rank, reader_.manifest_.world.size, 0);
  return tensor == ClientStateKey(rank) && absl::StartsWith(file, absl::StripSuffix(stem, kFileSuffix));
}

void Reader::Opener::CheckRows(const std::string& key, const ExpectedTensor& expected) {
  Segments& segments = reader_.tensors_[key];
  std::sort(segments.begin(), segments.end(),
            [](const Segment& a, const Segment& b) { return a.run.first_row < b.run.first_row; });
  Segments once;
  int64_t next_row = 0;
  const auto lack = [&](int64_t end) {
    // A file that could not be opened has been reported; its rows are missing.
    if (next_row >= end || !all_files_open_) return;
    Report("", key, RowRange{next_row, end}, absl::StatusCode::kDataLoss, "not found in any file");
  };
  for (const Segment& segment : segments) {
    const int64_t end = segment.run.first_row + segment.run.rows;
    lack(segment.run.first_row);
    if (segment.run.first_row < next_row) {
      Report(reader_.manifest_.files[segment.file].name, key, RowRange{segment.run.first_row, std::min(next_row, end)},
             absl::StatusCode::kDataLoss, "found in several files");
      continue;
    }
    once.push_back(segment);
    next_row = end;
  }
  lack(expected.shape.rows);
  segments = std::move(once);
}

void Reader::Opener::CheckHash(const std::string& key, const ExpectedTensor& expected) {
  if (!expected.has_hash) return;
  const auto found = reader_.manifest_.tensors.find(key);
  if (found == reader_.manifest_.tensors.end() || found->second.rows != expected.shape.rows) {
    return Report(kManifestFileName, key, std::nullopt, absl::StatusCode::kInvalidArgument,
                  absl::StrCat("want a hash of ", expected.shape.rows, " rows"));
  }
  if (expected.is_joined || !all_files_open_) return;
  ContentHash hash;
  for (const Segment& segment : reader_.tensors_[key]) {
    const auto& sums = reader_.manifest_.files[segment.file].chunk_sums;
    for (int64_t i = 0; i < ChunkCount(segment.run); ++i) hash.sum += sums[segment.first_chunk + i];
    hash.rows += segment.run.rows;
  }
  // Missing and duplicate rows have been reported.
  if (hash.rows != expected.shape.rows || hash.sum == found->second.sum) return;
  Report(kManifestFileName, key, std::nullopt, absl::StatusCode::kDataLoss,
         absl::StrCat("want content hash ", HashText(found->second.sum), ", got ", HashText(hash.sum),
                      " from its chunks"));
}

absl::StatusOr<std::string> Reader::Opener::ReadWhole(int index) const {
  const FileEntry& entry = reader_.manifest_.files[index];
  if (entry.size_bytes > MaxCommonStateBytes(*reader_.spec_)) {
    return absl::InvalidArgumentError(
        absl::StrCat("want at most ", MaxCommonStateBytes(*reader_.spec_), " bytes, got ", entry.size_bytes));
  }
  std::string text(entry.size_bytes, '\0');
  RETURN_IF_ERROR(reader_.files_[index]->ReadAt(0, SpanOf(text)));
  return text;
}

void Reader::Opener::ReadCommon() {
  const auto file_count = static_cast<int>(reader_.files_.size());
  if (first_common_ == file_count) return;
  std::vector<std::string> texts;
  for (int i = first_common_; i < file_count; ++i) {
    if (!reader_.files_[i].has_value()) return;
    absl::StatusOr<std::string> text = ReadWhole(i);
    if (!text.ok()) return Report(reader_.manifest_.files[i].name, text.status());
    texts.push_back(*std::move(text));
  }
  bool is_whole = true;
  for (const Place& place : reader_.PlacesIn([&](int file) { return file >= first_common_; })) {
    const absl::string_view bytes =
        absl::string_view(texts[place.file - first_common_]).substr(place.rows.offset_bytes, place.rows.size_bytes());
    reader_.CheckSums(place, absl::MakeConstSpan(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()),
                      [&](const Damage& damage) {
                        is_whole = false;
                        Report(damage.file, damage.tensor, std::nullopt, damage.code, damage.message);
                      });
  }
  if (!is_whole) return;
  absl::StatusOr<CommonState> common = ParseCommonState(*reader_.spec_, texts);
  if (!common.ok()) return Report(kCommonFileName, common.status());
  if (common->commit_number != reader_.manifest_.step || common->version != reader_.manifest_.version) {
    return Report(kCommonFileName,
                  absl::InvalidArgumentError(absl::StrCat("numbers: want step ", reader_.manifest_.step, ", version ",
                                                          reader_.manifest_.version, " as in the manifest, got step ",
                                                          common->commit_number, ", version ", common->version)));
  }
  reader_.common_ = *std::move(common);
}

absl::StatusOr<Reader> Reader::Open(const std::string& folder, const Options& options) {
  absl::Status first;
  std::optional<Reader> reader = OpenDamaged(folder, options, [&](const Damage& damage) {
    if (first.ok()) first = damage.ToStatus(folder);
  });
  if (!first.ok()) return first;
  return *std::move(reader);
}

std::optional<Reader> Reader::OpenDamaged(const std::string& folder, const Options& options,
                                          absl::FunctionRef<void(const Damage&)> report) {
  Reader reader;
  reader.folder_ = folder;
  if (!Opener(reader, options, report).Open()) return std::nullopt;
  return reader;
}

absl::StatusOr<std::string> Reader::ClientState(int rank) const {
  const int saved_rank = rank < manifest_.world.size ? rank : 0;
  const auto found = tensors_.find(ClientStateKey(saved_rank));
  if (found == tensors_.end()) return "";
  const Segment& segment = found->second.front();
  PageBuffer buffer;
  ASSIGN_OR_RETURN(const auto bytes, Read({segment.file, segment.first_chunk, found->first, segment.run}, buffer));
  return std::string(TextOf(bytes));
}

std::vector<Reader::Place> Reader::Places() const {
  return PlacesIn([](int) { return true; });
}

std::vector<Reader::Place> Reader::PlacesIn(absl::FunctionRef<bool(int file)> wanted) const {
  std::vector<Place> places;
  for (const auto& [key, segments] : tensors_) {
    for (const Segment& segment : segments) {
      if (!wanted(segment.file)) continue;
      const std::vector<Place> more = PlacesOf(segment, key, {segment.run.first_row, segment.run.end_row()});
      places.insert(places.end(), more.begin(), more.end());
    }
  }
  std::sort(places.begin(), places.end(),
            [](const Place& a, const Place& b) { return std::pair(a.file, a.chunk) < std::pair(b.file, b.chunk); });
  return places;
}

std::vector<Reader::Place> Reader::PlacesOf(const Segment& segment, absl::string_view key, const RowRange& rows) {
  const Place all = Place{segment.file, segment.first_chunk, key, segment.run}.ChunksWith(rows);
  std::vector<Place> places;
  int chunk = all.chunk;
  for (const RowRun& run : RunsOfChunks(all.rows, kPlaceBytes)) {
    places.push_back({segment.file, chunk, key, run});
    chunk += static_cast<int>(ChunkCount(run));
  }
  return places;
}

Reader::Place Reader::Place::ChunksWith(const RowRange& wanted) const {
  Place part = *this;
  part.rows = checkpoint::ChunksWith(rows, wanted);
  part.chunk += static_cast<int>((part.rows.first_row - rows.first_row) / rows.rows_per_chunk());
  return part;
}

void Reader::CheckSums(const Place& place, absl::Span<const uint8_t> bytes,
                       absl::FunctionRef<void(const Damage&)> report) const {
  Place chunk = place;
  for (const RowRun& rows : ChunksOf(place.rows)) {
    chunk.rows = rows;
    const absl::uint128 expected = manifest_.files[place.file].chunk_sums[chunk.chunk++];
    const absl::uint128 sum =
        ChunkSum(rows, bytes.subspan(rows.offset_bytes - place.rows.offset_bytes, rows.size_bytes()));
    if (sum == expected) continue;
    report(
        DamageOf(chunk, absl::DataLossError(absl::StrCat("want sum ", HashText(expected), ", got ", HashText(sum)))));
  }
}

absl::StatusOr<absl::Span<const uint8_t>> Reader::ReadBytes(const Place& place, PageBuffer& buffer) const {
  return files_[place.file]->ReadAt(place.rows.offset_bytes, place.rows.size_bytes(), buffer);
}

Damage Reader::DamageOf(const Place& place, const absl::Status& status) const {
  return {.file = manifest_.files[place.file].name,
          .tensor = std::string(place.key),
          .rows = RowRange{place.rows.first_row, place.rows.end_row()},
          .code = status.code(),
          .message = std::string(status.message())};
}

void Reader::Check(const Place& place, PageBuffer& buffer, absl::FunctionRef<void(const Damage&)> report) const {
  const absl::StatusOr<absl::Span<const uint8_t>> bytes = ReadBytes(place, buffer);
  if (!bytes.ok()) return report(DamageOf(place, bytes.status()));
  CheckSums(place, *bytes, report);
}

absl::StatusOr<absl::Span<const uint8_t>> Reader::Read(const Place& place, PageBuffer& buffer) const {
  const absl::StatusOr<absl::Span<const uint8_t>> bytes = ReadBytes(place, buffer);
  if (!bytes.ok()) return DamageOf(place, bytes.status()).ToStatus(folder_);
  absl::Status first;
  CheckSums(place, *bytes, [&](const Damage& damage) { first.Update(damage.ToStatus(folder_)); });
  if (!first.ok()) return first;
  return bytes;
}

absl::Status Reader::ReadRows(int unit, int parameter, ArrayKind kind, const RowRange& rows, RowSink sink) const {
  const ParameterSpec& spec = spec_->units[unit].parameters[parameter];
  const std::optional<ArrayShape> shape = ShapeOf(spec, kind);
  if (!shape.has_value()) {
    return absl::InvalidArgumentError(absl::StrCat(folder_, ": parameter ", DisplayName(spec.name),
                                                   " has no array of kind ", static_cast<int>(kind)));
  }
  const std::string key = TensorKey(spec, kind);
  if (rows.begin < 0 || rows.begin > rows.end || rows.end > shape->rows) {
    return absl::InvalidArgumentError(absl::StrCat(folder_, ": tensor ", DisplayName(key), ": want rows in [0, ",
                                                   shape->rows, "), got [", rows.begin, ", ", rows.end, ")"));
  }
  PageBuffer buffer;
  int64_t next_row = rows.begin;
  const auto found = tensors_.find(key);
  static const Segments kNone;
  for (const Segment& segment : found == tensors_.end() ? kNone : found->second) {
    const RowRun& run = segment.run;
    const int64_t end = std::min(rows.end, run.end_row());
    if (next_row < run.first_row || next_row >= end) continue;
    for (const Place& place : PlacesOf(segment, found->first, {next_row, end})) {
      ASSIGN_OR_RETURN(const auto bytes, Read(place, buffer));
      const int64_t last = std::min(end, place.rows.end_row());
      RETURN_IF_ERROR(sink(next_row, bytes.subspan((next_row - place.rows.first_row) * run.row_bytes,
                                                   (last - next_row) * run.row_bytes)));
      next_row = last;
    }
  }
  if (next_row == rows.end) return absl::OkStatus();
  // Only a damaged checkpoint lacks rows.
  return Damage{.tensor = key, .rows = RowRange{next_row, rows.end}, .message = "cannot be read"}.ToStatus(folder_);
}

absl::Status Reader::ReadRows(int unit, int parameter, ArrayKind kind, const RowRange& rows,
                              absl::Span<uint8_t> out) const {
  const std::optional<ArrayShape> shape = ShapeOf(spec_->units[unit].parameters[parameter], kind);
  const int64_t row_bytes = shape.has_value() ? shape->row_bytes() : 0;
  if (shape.has_value() && static_cast<int64_t>(out.size()) != rows.size() * row_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(folder_, ": want memory of ", rows.size() * row_bytes, " bytes, got ", out.size()));
  }
  return ReadRows(unit, parameter, kind, rows, [&](int64_t first_row, absl::Span<const uint8_t> bytes) {
    std::memcpy(out.data() + (first_row - rows.begin) * row_bytes, bytes.data(), bytes.size());
    return absl::OkStatus();
  });
}

}  // namespace paramshard::checkpoint
