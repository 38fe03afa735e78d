// Text in aligned columns, for people.
//
//   Table table({{"MODEL"}, {"VERSION", Align::kRight}});
//   table.AddRow({"tiny", "12"});
//   out << table.Text();
#ifndef PARAMSHARD_CLIENT_CTL_TABLE_H_
#define PARAMSHARD_CLIENT_CTL_TABLE_H_

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

namespace paramshard::ctl {

enum class Align { kLeft, kRight };

struct Column {
  std::string title;
  Align align = Align::kLeft;
};

// A heading and rows, two spaces between columns, no space at the ends of lines. Cells may come from anywhere:
// they are shown as TerminalText.
class Table {
 public:
  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}

  // As many cells as columns.
  void AddRow(std::vector<std::string> cells);

  // Every line ends with a line feed. Without rows the heading alone.
  std::string Text() const;

 private:
  std::vector<size_t> Widths() const;
  void AppendLine(const std::vector<std::string>& cells, const std::vector<size_t>& widths, std::string& text) const;

  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace paramshard::ctl

#endif  // PARAMSHARD_CLIENT_CTL_TABLE_H_
