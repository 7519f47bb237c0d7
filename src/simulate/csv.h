// Comma-separated values: quoted cells, doubled quotes, line breaks inside quotes, CRLF. The first line names
// the columns.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace optimus {

struct CsvTable {
  std::vector<std::string> columns;
  std::vector<std::vector<std::string>> rows;  // each as long as columns
  // "" if the column does not exist.
  const std::string& cell(std::size_t row, std::string_view column) const;
};

// Throws a UserError with `source` and the line for an unclosed quote, a row of different length, or a
// duplicate column.
CsvTable parse_csv(std::string_view text, const std::string& source);

}  // namespace optimus
