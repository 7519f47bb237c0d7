// Reads a TOML settings file into an OptionTable. toml++ parses the syntax. Each value is then converted to
// the text that a flag would take, so that files and flags share one parser and one set of messages.
#include "base/options.h"

#include <charconv>
#include <map>

// toml++ 3.3 asserts that a section name starts with a letter before it checks this, so [=] aborts. With
// clang and NDEBUG, the assertion becomes a compiler assumption instead, again ahead of the check. Therefore
// both assertions and assumptions are disabled (found by fuzzing).
#pragma push_macro("NDEBUG")
#undef NDEBUG
#define TOML_ASSERT(condition) static_assert(true)
#include <toml++/toml.h>
#pragma pop_macro("NDEBUG")

namespace optimus {
namespace {

// toml++ recurses into dotted keys, lists and tables, so input such as a.a.a.… or [[[[… would exhaust the
// stack.
void check_nesting_depth(const std::string& content, const Path& path) {
  constexpr int kMaxDepth = 64;
  int line = 1, dots = 0, brackets = 0;
  for (const char c : content) {
    if (c == '\n') ++line, brackets = 0;
    if (c == '[' || c == '{') ++brackets;
    if (c == '.')
      ++dots;
    else if (std::string_view(" \t\r\n=,{}[]").find(c) != std::string_view::npos)
      dots = 0;
    if (dots > kMaxDepth || brackets > kMaxDepth)
      throw UserError("{}:{}: nested deeper than {} levels", path.string(), line, kMaxDepth);
  }
}

// toml++ 3.3 crashes on some non-ASCII characters in unexpected places (found by fuzzing). Therefore it
// receives pure ASCII: non-ASCII bytes are encoded as %HH, and % as %25. If the file contains the escape
// \u0025, which toml++ would decode to %, another ASCII character is used instead of %. Non-ASCII bytes
// outside quotes and comments are still rejected, because no escape character is valid TOML there.
char choose_escape_character(std::string_view content, const Path& path) {
  const std::string lower_content = lower(content);
  for (const char escape : {'%', '~', '^', '`', '@', '!', '$', '&', '*', ';', '?', '|'}) {
    const std::string code = fmt::format("00{:02x}", static_cast<unsigned char>(escape));
    if (lower_content.find("\\u" + code) == std::string::npos &&
        lower_content.find("\\u0000" + code) == std::string::npos)
      return escape;
  }
  throw UserError(
      "{}: too many characters are written as \\u00.. escapes; write some of them literally, for example %",
      path.string());
}

std::string as_ascii(std::string_view content, char escape) {
  if (content.starts_with("\xef\xbb\xbf")) content.remove_prefix(3);
  std::string result;
  for (const char c : content) {
    if (static_cast<unsigned char>(c) >= 0x80 || c == escape)
      result += fmt::format("{}{:02x}", escape, static_cast<unsigned char>(c));
    else
      result += c;
  }
  return result;
}

std::string from_ascii(std::string_view text, char escape) {
  std::string result;
  for (std::size_t i = 0; i < text.size(); ++i) {
    unsigned byte = 0;
    const bool is_escape =
        text[i] == escape && i + 2 < text.size() &&
        std::from_chars(text.data() + i + 1, text.data() + i + 3, byte, 16).ptr == text.data() + i + 3;
    result += is_escape ? static_cast<char>(byte) : text[i];
    if (is_escape) i += 2;
  }
  return result;
}

// Reads the values of one file, section by section.
class SettingsReader {
 public:
  SettingsReader(OptionTable& options, const Path& path, std::span<const std::string> ignored_keys,
                 char escape, Origin origin)
      : options_(options), path_(path), ignored_keys_(ignored_keys), escape_(escape), origin_(origin) {}

  void read(const toml::table& table) {
    for (const auto& [key, node] : table) {
      if (const toml::table* section = node.as_table())
        read(*section);
      else
        read_value(from_ascii(key.str(), escape_), node);
    }
  }

 private:
  void read_value(const std::string& name, const toml::node& node) {
    const auto line = node.source().begin.line;
    const std::string location = fmt::format("{}:{}", path_.string(), line);
    std::string spelling = name;
    std::replace(spelling.begin(), spelling.end(), '_', '-');
    Option* option = options_.find(name);
    if (option == nullptr && !is_ignored_key(spelling)) {
      std::vector<std::string> known_names = options_.names();
      known_names.insert(known_names.end(), ignored_keys_.begin(), ignored_keys_.end());
      throw UserError("{}: unknown key {}{}", location, in_quotes(name), did_you_mean(name, known_names));
    }
    // toml++ yields sections in alphabetical order, not in file order.
    if (const auto [earlier, is_new] = lines_.try_emplace(spelling, line); !is_new)
      throw UserError("{}:{}: key {} is already set on line {}", path_.string(),
                      std::max(line, earlier->second), in_quotes(spelling), std::min(line, earlier->second));
    if (option == nullptr) return;
    try {
      options_.set(*option, value_texts(node, *option, location), origin_, location);
    } catch (const UserError& error) {
      const std::string message = error.what();
      if (message.starts_with(path_.string())) throw;
      throw UserError("{}: {}", location, message);
    }
  }

  bool is_ignored_key(const std::string& spelling) const {
    return std::find(ignored_keys_.begin(), ignored_keys_.end(), spelling) != ignored_keys_.end();
  }

  // Returns a single value as the text that a flag would take, or nullopt for dates, lists and tables.
  std::optional<std::string> scalar_text(const toml::node& node) const {
    if (const auto* text = node.as_string()) return from_ascii(text->get(), escape_);
    if (const auto* number = node.as_integer()) return std::to_string(number->get());
    if (const auto* number = node.as_floating_point()) return fmt::format("{}", number->get());
    if (const auto* flag = node.as_boolean()) return flag->get() ? "true" : "false";
    return std::nullopt;
  }

  std::vector<std::string> value_texts(const toml::node& node, const Option& option,
                                       const std::string& location) const {
    if (const auto scalar = scalar_text(node)) return {*scalar};
    std::vector<std::string> texts;
    const toml::array* list = node.as_array();
    if (list == nullptr || !option.is_list)
      throw UserError("{}: {}: expected {}", location, option.name,
                      option.is_list ? "a list of values" : "a single value");
    for (const toml::node& element : *list) {
      const auto scalar = scalar_text(element);
      if (!scalar)
        throw UserError("{}: {}: expected a list of strings, numbers or booleans", location, option.name);
      texts.push_back(*scalar);
    }
    return texts;
  }

  OptionTable& options_;
  const Path& path_;
  const std::span<const std::string> ignored_keys_;
  const char escape_;
  const Origin origin_;
  std::map<std::string, toml::source_index> lines_;  // line number of each key that was read
};

}  // namespace

void read_config_file(OptionTable& table, const Path& path, std::span<const std::string> ignored_keys,
                      Origin origin) {
  const std::string content = read_input_file(path, Bytes(1 << 24));
  check_nesting_depth(content, path);
  const char escape = choose_escape_character(content, path);
  toml::table root_table;
  try {
    root_table = toml::parse(as_ascii(content, escape), path.string());
  } catch (const toml::parse_error& error) {
    throw UserError("{}:{}: not valid TOML: {}", path.string(), error.source().begin.line,
                    in_quotes(error.description(), 200));
  }
  SettingsReader(table, path, ignored_keys, escape, origin).read(root_table);
}

}  // namespace optimus
