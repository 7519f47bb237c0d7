// Reads a TOML settings file into an OptionTable. toml++ does the grammar; here its values become the same
// texts that flags carry, so both ways end in one parser and one set of messages.
#include <toml++/toml.h>
#include <charconv>
#include <sstream>

#include "base/options.h"

namespace optimus {
namespace {

// toml++ recurses along dotted keys, lists and tables: a.a.a.… or [[[[… would exhaust the stack.
void refuse_deep_keys(const std::string& content, const Path& path) {
  constexpr int kDeepest = 64;
  int line = 1, dots = 0, brackets = 0;
  for (const char c : content) {
    if (c == '\n') ++line, brackets = 0;
    if (c == '[' || c == '{') ++brackets;
    if (c == '.')
      ++dots;
    else if (std::string_view(" \t\r\n=,{}[]").find(c) != std::string_view::npos)
      dots = 0;
    if (dots > kDeepest || brackets > kDeepest)
      throw UserError("{}:{}: nested deeper than {} levels", path.string(), line, kDeepest);
  }
}

// toml++ 3.3 does not survive some letters beyond ASCII in wrong places (found by fuzzing), so it sees none: bytes that
// are not ASCII travel as %HH, and % as %25. Outside quotes and comments that is no valid TOML either.
std::string as_ascii(std::string_view content) {
  if (content.starts_with("\xef\xbb\xbf")) content.remove_prefix(3);
  std::string result;
  for (const char c : content) {
    if (static_cast<unsigned char>(c) >= 0x80 || c == '%')
      result += fmt::format("%{:02x}", static_cast<unsigned char>(c));
    else
      result += c;
  }
  return result;
}

std::string from_ascii(std::string_view text) {
  std::string result;
  for (std::size_t i = 0; i < text.size(); ++i) {
    unsigned byte = 0;
    const bool is_escape =
        text[i] == '%' && i + 2 < text.size() &&
        std::from_chars(text.data() + i + 1, text.data() + i + 3, byte, 16).ptr == text.data() + i + 3;
    result += is_escape ? static_cast<char>(byte) : text[i];
    if (is_escape) i += 2;
  }
  return result;
}

std::string place_of(const toml::node& node, const Path& path) {
  return fmt::format("{}:{}", path.string(), node.source().begin.line);
}

// A single value as a flag would carry it; "" with `ok` false for dates, lists and tables.
std::optional<std::string> scalar_text(const toml::node& node) {
  if (const auto* text = node.as_string()) return from_ascii(text->get());
  if (const auto* number = node.as_integer()) return std::to_string(number->get());
  if (const auto* number = node.as_floating_point()) return fmt::format("{}", number->get());
  if (const auto* flag = node.as_boolean()) return flag->get() ? "true" : "false";
  return std::nullopt;
}

std::vector<std::string> value_texts(const toml::node& node, const Option& option, const std::string& place) {
  if (const auto one = scalar_text(node)) return {*one};
  std::vector<std::string> texts;
  const toml::array* list = node.as_array();
  if (list == nullptr || !option.is_list)
    throw UserError("{}: {} must be {}", place, option.name,
                    option.is_list ? "a list of values" : "a single value");
  for (const toml::node& element : *list) {
    const auto one = scalar_text(element);
    if (!one) throw UserError("{}: {} must be a list of single values", place, option.name);
    texts.push_back(*one);
  }
  return texts;
}

void read_table(OptionTable& options, const toml::table& table, const Path& path,
                std::span<const std::string> known_elsewhere) {
  for (const auto& [key, node] : table) {
    if (const toml::table* section = node.as_table()) {
      read_table(options, *section, path, known_elsewhere);
      continue;
    }
    const std::string name = from_ascii(key.str());
    const std::string place = place_of(node, path);
    Option* option = options.find(name);
    if (option == nullptr) {
      std::string spelled = name;
      std::replace(spelled.begin(), spelled.end(), '_', '-');
      if (std::find(known_elsewhere.begin(), known_elsewhere.end(), spelled) != known_elsewhere.end())
        continue;
      std::vector<std::string> known = options.names();
      known.insert(known.end(), known_elsewhere.begin(), known_elsewhere.end());
      throw UserError("{}: unknown key {}{}", place, in_quotes(name), did_you_mean(name, known));
    }
    try {
      options.set(*option, value_texts(node, *option, place), Origin::file, place);
    } catch (const UserError& error) {
      const std::string message = error.what();
      if (message.starts_with(path.string())) throw;
      throw UserError("{}: {}", place, message);
    }
  }
}

}  // namespace

void read_config_file(OptionTable& table, const Path& path, std::span<const std::string> known_elsewhere) {
  const std::string content = value_or_throw(read_file(path, Bytes(1 << 24)));
  refuse_deep_keys(content, path);
  toml::table parsed;
  try {
    parsed = toml::parse(as_ascii(content), path.string());
  } catch (const toml::parse_error& error) {
    throw UserError("{}:{}: not valid TOML: {}", path.string(), error.source().begin.line,
                    in_quotes(error.description(), 200));
  }
  read_table(table, parsed, path, known_elsewhere);
}

}  // namespace optimus
