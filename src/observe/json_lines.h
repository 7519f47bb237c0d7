// Files of one JSON object a line, read back.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "base/json.h"

namespace optimus {

// Each line in its order, with its place for messages. Empty lines are passed over; a last one without its end is left out: it is being
// written, or its writer was killed. Throws UserError with the number of a line that is no JSON, or longer than `longest`; `what` says
// what a line is: "a decision".
void for_each_json_line(std::string_view content, const std::string& source, const std::string& what,
                        std::size_t longest, const std::function<void(const JsonView& line)>& take);

}  // namespace optimus
