// Escapes text for HTML and SVG, so that file contents and folder names are never interpreted as markup.
#pragma once

#include <string>
#include <string_view>

namespace optimus {

// For elements and for attributes in double quotes: special characters are escaped, control characters become
// blanks, invalid UTF-8 is replaced.
std::string html_escaped(std::string_view text);

}  // namespace optimus
