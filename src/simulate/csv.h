// Comma-separated text: quoted cells, doubled quotes, line breaks inside quotes, CRLF. The first line names the columns.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace optimus {

struct CsvTable {
  std::vector<std::string> columns;
  std::vector<std::vector<std::string>> rows;  // each as long as columns
  // "" where there is no such column.
  const std::string& cell(std::size_t row, std::string_view column) const;
};

// Throws UserError, with `source` and the line: a quote that is never closed, a row of another length, a column twice.
CsvTable parse_csv(std::string_view text, const std::string& source);

}  // namespace optimus
