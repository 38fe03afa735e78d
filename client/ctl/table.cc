#include "client/ctl/table.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "client/ctl/terminal_text.h"
#include "kernels/base/check.h"

namespace paramshard::ctl {
namespace {

// Returns the number of UTF-8 code points: of bytes that do not continue one.
size_t Width(absl::string_view text) {
  return std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; });
}

}  // namespace

void Table::AddRow(std::vector<std::string> cells) {
  PARAMSHARD_CHECK(cells.size() == columns_.size());
  for (std::string& cell : cells) cell = TerminalText(cell);
  rows_.push_back(std::move(cells));
}

std::vector<size_t> Table::Widths() const {
  std::vector<size_t> widths;
  for (size_t i = 0; i < columns_.size(); ++i) {
    size_t width = Width(columns_[i].title);
    for (const std::vector<std::string>& row : rows_) width = std::max(width, Width(row[i]));
    widths.push_back(width);
  }
  return widths;
}

void Table::AppendLine(const std::vector<std::string>& cells, const std::vector<size_t>& widths,
                       std::string& text) const {
  std::string line;
  for (size_t i = 0; i < cells.size(); ++i) {
    const std::string padding(widths[i] - Width(cells[i]), ' ');
    if (i > 0) line += "  ";
    line += columns_[i].align == Align::kRight ? padding + cells[i] : cells[i] + padding;
  }
  absl::StrAppend(&text, absl::StripTrailingAsciiWhitespace(line), "\n");
}

std::string Table::Text() const {
  const std::vector<size_t> widths = Widths();
  std::vector<std::string> titles;
  for (const Column& column : columns_) titles.push_back(column.title);
  std::string text;
  AppendLine(titles, widths, text);
  for (const std::vector<std::string>& row : rows_) AppendLine(row, widths, text);
  return text;
}

}  // namespace paramshard::ctl
