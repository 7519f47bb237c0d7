// See csv.h.
#include "simulate/csv.h"

#include <algorithm>

#include "base/error.h"
#include "base/text.h"

namespace optimus {
namespace {

constexpr std::size_t kMaxColumns = 1'000;

class CsvReader {
 public:
  CsvReader(std::string_view text, const std::string& source) : text_(text), source_(source) {}

  // Returns the next row, or an empty one at the end of the text. Blank lines are skipped.
  std::vector<std::string> read_row() {
    std::vector<std::string> cells;
    while (offset_ < text_.size() && (text_[offset_] == '\n' || text_[offset_] == '\r')) skip_line_break();
    if (offset_ == text_.size()) return cells;
    row_line_ = line_;
    for (;;) {
      cells.push_back(offset_ < text_.size() && text_[offset_] == '"' ? read_quoted() : read_plain());
      if (cells.size() > kMaxColumns)
        throw UserError("{}:{}: more than {} columns", source_, row_line_, kMaxColumns);
      if (offset_ < text_.size() && text_[offset_] == ',') {
        ++offset_;
        continue;
      }
      if (offset_ < text_.size()) skip_line_break();
      return cells;
    }
  }
  int line() const { return row_line_; }

 private:
  void skip_line_break() {
    if (text_[offset_] == '\r' && offset_ + 1 < text_.size() && text_[offset_ + 1] == '\n') ++offset_;
    ++offset_, ++line_;
  }
  std::string read_plain() {
    const std::size_t end = std::min(text_.find_first_of(",\r\n", offset_), text_.size());
    const std::string_view cell = text_.substr(offset_, end - offset_);
    offset_ = end;
    return std::string(trim(cell));
  }
  std::string read_quoted() {
    std::string cell;
    const int begin = line_;
    for (++offset_; offset_ < text_.size(); ++offset_) {
      if (text_[offset_] == '"' && offset_ + 1 < text_.size() && text_[offset_ + 1] == '"')
        cell += text_[offset_++];
      else if (text_[offset_] == '"')
        break;
      else
        line_ += text_[offset_] == '\n', cell += text_[offset_];
    }
    if (offset_ == text_.size()) throw UserError("{}:{}: unclosed quote", source_, begin);
    ++offset_;
    if (offset_ < text_.size() && text_.substr(offset_, 1).find_first_of(",\r\n") == std::string_view::npos)
      throw UserError("{}:{}: text after a closing quote; expected a comma or the end of the line", source_,
                      line_);
    return cell;
  }

  std::string_view text_;
  const std::string& source_;
  std::size_t offset_ = 0;
  int line_ = 1, row_line_ = 1;
};

}  // namespace

const std::string& CsvTable::cell(std::size_t row, std::string_view column) const {
  static const std::string empty_cell;
  const auto match = std::find(columns.begin(), columns.end(), column);
  return match == columns.end() ? empty_cell : rows[row][static_cast<std::size_t>(match - columns.begin())];
}

CsvTable parse_csv(std::string_view text, const std::string& source) {
  if (starts_with(text, "\xef\xbb\xbf")) text.remove_prefix(3);
  CsvReader reader(text, source);
  CsvTable table;
  table.columns = reader.read_row();
  if (table.columns.empty())
    throw UserError("{}: the file is empty; expected a first line with the column names", source);
  std::vector<std::string> sorted = table.columns;
  std::sort(sorted.begin(), sorted.end());
  if (const auto duplicate = std::adjacent_find(sorted.begin(), sorted.end()); duplicate != sorted.end())
    throw UserError("{}: duplicate column {}", source, in_quotes(*duplicate));
  for (std::vector<std::string> row = reader.read_row(); !row.empty(); row = reader.read_row()) {
    if (row.size() != table.columns.size())
      throw UserError("{}:{}: expected {} cells, as in the first line, got {}", source, reader.line(),
                      table.columns.size(), row.size());
    table.rows.push_back(std::move(row));
  }
  return table;
}

}  // namespace optimus
