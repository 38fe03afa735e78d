// Text in aligned columns, for people.
//
//   Table table({Left("MODEL"), Right("VERSION")});
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
inline Column Left(std::string title) { return {std::move(title), Align::kLeft}; }
inline Column Right(std::string title) { return {std::move(title), Align::kRight}; }

// A heading and rows, two spaces between columns, no space at the ends of lines. Cells may hold any text:
// they are shown as TerminalText.
class Table {
 public:
  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}

  // Takes as many cells as there are columns.
  void AddRow(std::vector<std::string> cells);

  // Every line ends with a line feed. Without rows the heading alone.
  std::string Text() const;

 private:
  std::vector<size_t> Widths() const;
  void AppendLine(const std::vector<std::string>& cells, const std::vector<size_t>& widths, std::string& text) const;

  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

// Properties of one object, one on a line.
class Properties {
 public:
  void Add(std::string name, std::string value) { table_.AddRow({std::move(name), std::move(value)}); }
  // Leaves out the line of titles, which are empty.
  std::string Text() const { return table_.Text().substr(1); }

 private:
  Table table_{{Left(""), Left("")}};
};

}  // namespace paramshard::ctl

#endif  // PARAMSHARD_CLIENT_CTL_TABLE_H_
