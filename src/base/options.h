// Settings, declared once, next to where they are used.
//
//   struct FilterOptions { std::int64_t min_tokens = 0; bool dedup = false; };
//   void declare(OptionTable& table, FilterOptions& options) {
//     table.add("min-tokens", options.min_tokens, "N", "drop documents with fewer tokens");
//     table.add("dedup", options.dedup, "drop documents whose text was seen before");
//   }
//
// From that one declaration come the flag (--min-tokens), the key in a --config file (min-tokens or
// min_tokens), the help text, and the resolved settings with the origin of each. A later origin replaces an
// earlier one: default, then the run that is resumed, then file, then flag, then what was chosen. The table refers to the structs it was given;
// they must outlive it.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/text.h"
#include "base/units.h"

namespace optimus {

enum class Origin { built_in, run, file, flag, planner };
std::string text(Origin origin);  // "default", "run", "file", "flag", "chosen"

struct Option {
  std::string name;        // "min-tokens"
  std::string value_name;  // "N"; empty for a switch, which takes no value
  std::string help;
  bool is_positional = false;
  bool is_list = false;
  int list_length =
      1;  // values that one occurrence of the flag takes; it may be repeated. 0: all up to the next flag
  bool is_required = false;
  bool is_saved = true;              // false for what is about this one call: --json
  std::vector<std::string> choices;  // empty: anything that parses

  Origin origin = Origin::built_in;
  std::string place;  // "run.toml:3" for a file, else empty
  // Takes all values at once (one, unless is_list). Throws UserError that names the option.
  std::function<void(const std::vector<std::string>& values)> assign;
  // The present value, as JSON; null when unset.
  std::function<Json()> value;
  // The same for people, where that says more: "5.00 GiB".
  std::function<std::string()> words;
};

// "10m", as it can be given.
std::string time_words(Seconds seconds);

class OptionTable {
 public:
  OptionTable() = default;
  OptionTable(const OptionTable&) = delete;
  OptionTable& operator=(const OptionTable&) = delete;

  // T: std::string, Path, std::int64_t and int (15T and 300k are read too), double, Bytes, Seconds, std::vector<std::string>, or
  // std::optional of one of them. The reference returned lives as long as the table.
  template <typename T>
  Option& add(std::string name, T& target, std::string value_name, std::string help) {
    return insert(make(std::move(name), target, std::move(value_name), std::move(help)));
  }
  // A switch: --name sets it, name = true|false in a file.
  Option& add(std::string name, bool& target, std::string help);
  // One of a few words, for instance an enum's names.
  template <typename Enum>
  Option& add_choice(std::string name, Enum& target, const std::vector<std::pair<std::string, Enum>>& words,
                     std::string help);
  // The same, kept as the word; an empty one is none of them.
  Option& add_word(std::string name, std::string& target, const std::vector<std::string>& words,
                   std::string help);
  template <typename T>
  Option& add_positional(std::string name, T& target, std::string help) {
    Option option = make(std::move(name), target, "", std::move(help));
    option.is_positional = true;
    option.list_length = 0;
    return insert(std::move(option));
  }

  std::vector<Option*> options();
  std::vector<const Option*> options() const;
  Option* find(std::string_view name);  // '_' and '-' are the same; nullptr when unknown
  std::vector<std::string> names() const;

  // Sets one option. An origin of lower precedence than the present one changes nothing.
  void set(Option& option, const std::vector<std::string>& values, Origin origin,
           const std::string& place = "");

  // Every option with a value as one TOML line, its origin in a comment.
  std::string resolved_toml() const;

 private:
  template <typename T>
  static Option make(std::string name, T& target, std::string value_name, std::string help);
  Option& insert(Option option);

  std::vector<std::unique_ptr<Option>> options_;
};

// Reads a TOML file of `key = value` lines (sections only group them) into the table. A key that no command
// knows is an error with file, line and the nearest key, as is one that stands twice, whatever the sections; `known_elsewhere` are keys of other commands,
// accepted and unused, so that one file serves plan, train and profile. origin: file, or run for the settings of a run.
void read_config_file(OptionTable& table, const Path& path, std::span<const std::string> known_elsewhere = {},
                      Origin origin = Origin::file);

// How one value is read from text and shown. Specialised in options.cpp's header part below.
namespace option_value {

void parse(std::string& target, std::string_view text, std::string_view what);
void parse(Path& target, std::string_view text, std::string_view what);
void parse(std::int64_t& target, std::string_view text, std::string_view what);
void parse(int& target, std::string_view text, std::string_view what);
void parse(double& target, std::string_view text, std::string_view what);
void parse(bool& target, std::string_view text, std::string_view what);
void parse(Bytes& target, std::string_view text, std::string_view what);
void parse(Seconds& target, std::string_view text, std::string_view what);
template <typename T>
void parse(std::optional<T>& target, std::string_view text, std::string_view what) {
  T value{};
  parse(value, text, what);
  target = value;
}

inline Json show(const std::string& value) { return value; }
inline Json show(const Path& value) { return value.empty() ? Json() : Json(value.string()); }
inline Json show(std::int64_t value) { return value; }
inline Json show(int value) { return value; }
inline Json show(double value) { return value; }
inline Json show(bool value) { return value; }
inline Json show(Bytes value) { return value.value; }
inline Json show(Seconds value) { return value.value; }
template <typename T>
Json show(const std::optional<T>& value) {
  return value ? show(*value) : Json();
}

}  // namespace option_value

template <typename T>
Option OptionTable::make(std::string name, T& target, std::string value_name, std::string help) {
  Option option;
  option.name = std::move(name);
  option.value_name = std::move(value_name);
  option.help = std::move(help);
  const std::string what = "--" + option.name;
  if constexpr (std::is_same_v<T, std::vector<std::string>>) {
    option.is_list = true;
    option.assign = [&target](const std::vector<std::string>& values) { target = values; };
    option.value = [&target] { return Json(target); };
  } else {
    option.assign = [&target, what](const std::vector<std::string>& values) {
      if (values.size() != 1) throw UserError("{} takes one value, {} were given", what, values.size());
      option_value::parse(target, values[0], what);
    };
    option.value = [&target] { return option_value::show(target); };
    if constexpr (std::is_same_v<T, Bytes>) option.words = [&target] { return text(target); };
    if constexpr (std::is_same_v<T, Seconds>) option.words = [&target] { return time_words(target); };
  }
  return option;
}

template <typename Enum>
Option& OptionTable::add_choice(std::string name, Enum& target,
                                const std::vector<std::pair<std::string, Enum>>& words, std::string help) {
  Option option;
  option.name = std::move(name);
  option.help = std::move(help);
  for (const auto& [word, value] : words) option.choices.push_back(word);
  option.value_name = join(option.choices, "|");
  option.assign = [&target, words, what = "--" + option.name, choices = option.choices](const auto& values) {
    for (const auto& [word, value] : words)
      if (values.size() == 1 && word == values[0]) return void(target = value);
    const std::string given = join(values, " ");
    throw UserError("{}: '{}' is not one of {}{}", what, given, join(choices, ", "),
                    did_you_mean(given, choices));
  };
  option.value = [&target, words]() -> Json {
    for (const auto& [word, value] : words)
      if (value == target) return word;
    return {};
  };
  return insert(std::move(option));
}

}  // namespace optimus
