// Comma-separated values, with quoted cells, doubled quotes, line breaks inside quotes, and CRLF. The first
// line contains the names of the columns.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace optimus {

struct CsvTable {
  std::vector<std::string> columns;
  std::vector<std::vector<std::string>> rows;  // each as long as columns
  // The cell of a column; "" if the column does not exist.
  const std::string& cell(std::size_t row, std::string_view column) const;
};

// Throws a UserError with `source` and the line for an unclosed quote, a row of another length, or a
// duplicate column.
CsvTable parse_csv(std::string_view text, const std::string& source);

}  // namespace optimus
