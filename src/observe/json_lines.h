// Reads files with one JSON object per line.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "base/json.h"

namespace optimus {

// Calls `handle_line` for each line in order; the line number is part of the view, for error messages. Empty
// lines are skipped. An unterminated last line is ignored: it is being written, or its writer was killed.
// Throws UserError with the number of a line that is not JSON or is longer than `max_bytes`; `line_kind`
// describes a line: "a decision".
void for_each_json_line(std::string_view content, const std::string& source, const std::string& line_kind,
                        std::size_t max_bytes, const std::function<void(const JsonView& line)>& handle_line);

}  // namespace optimus
