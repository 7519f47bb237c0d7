// Implements json_lines.h.
#include "observe/json_lines.h"

#include "base/error.h"

namespace optimus {

void for_each_json_line(std::string_view content, const std::string& source, const std::string& line_kind,
                        std::size_t max_bytes, const std::function<void(const JsonView& line)>& handle_line) {
  for (int number = 1; !content.empty(); ++number) {
    const std::size_t end = content.find('\n');
    if (end == std::string_view::npos) break;
    const std::string_view line = content.substr(0, end);
    content.remove_prefix(end + 1);
    if (line.empty()) continue;
    const std::string location = fmt::format("{} line {}", source, number);
    if (line.size() > max_bytes)
      throw UserError("{}: the line has {} bytes, but {} has at most {}", location, line.size(), line_kind,
                      max_bytes);
    const Json json = parse_json(line, location);
    handle_line(JsonView(json, location));
  }
}

}  // namespace optimus
