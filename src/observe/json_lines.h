// Reads files with one JSON object per line.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "base/json.h"

namespace optimus {

// Calls `handle_line` for each line in order. The view contains the line number for error messages. Empty
// lines are skipped. An unterminated last line is ignored, because it is still being written or its writer
// was killed. Throws UserError with the line number if a line is not JSON or is longer than `max_bytes`.
// `line_kind` describes a line in messages, for example "a decision".
void for_each_json_line(std::string_view content, const std::string& source, const std::string& line_kind,
                        std::size_t max_bytes, const std::function<void(const JsonView& line)>& handle_line);

}  // namespace optimus
