// Escapes text for HTML and SVG, so that file contents and folder names are never interpreted as markup.
#pragma once

#include <string>
#include <string_view>

namespace optimus {

// Escapes special characters, and replaces control characters with spaces and invalid UTF-8 with replacement
// characters. The result can be used in elements and in double-quoted attributes.
std::string html_escaped(std::string_view text);

}  // namespace optimus
