// Text inside HTML and SVG. Whatever a file or a folder's name says, it is shown and never becomes markup.
#pragma once

#include <string>
#include <string_view>

namespace optimus {

// For elements and for attributes in double quotes: marks are escaped, control bytes are blanks, what is no UTF-8 is replaced.
std::string html_text(std::string_view text);

}  // namespace optimus
