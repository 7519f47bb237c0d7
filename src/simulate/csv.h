// Parses comma-separated values, including quoted cells, doubled quotes, line breaks inside quotes, and CRLF.
// The first line contains the column names.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace optimus {

struct CsvTable {
  std::vector<std::string> columns;
  std::vector<std::vector<std::string>> rows;  // each row has as many cells as there are columns
  // The cell of a column; "" if the column does not exist.
  const std::string& cell(std::size_t row, std::string_view column) const;
};

// Throws a UserError with `source` and the line for an unclosed quote, a row with the wrong number of cells,
// or a duplicate column.
CsvTable parse_csv(std::string_view text, const std::string& source);

}  // namespace optimus
