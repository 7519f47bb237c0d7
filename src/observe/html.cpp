// Implements html.h.
#include "observe/html.h"

#include "base/json.h"

namespace optimus {
namespace {

// Uses the JSON library, which replaces invalid UTF-8 in its output.
std::string valid_utf8(std::string_view text) {
  const Json json = std::string(text);
  return Json::parse(json.dump(-1, ' ', false, Json::error_handler_t::replace)).get<std::string>();
}

}  // namespace

std::string html_escaped(std::string_view text) {
  std::string result;
  for (const char c : valid_utf8(text)) {
    switch (c) {
      case '&':
        result += "&amp;";
        continue;
      case '<':
        result += "&lt;";
        continue;
      case '>':
        result += "&gt;";
        continue;
      case '"':
        result += "&quot;";
        continue;
      case '\'':
        result += "&#39;";
        continue;
      default:
        result += static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? ' ' : c;
    }
  }
  return result;
}

}  // namespace optimus
