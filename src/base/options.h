// Settings. Each is declared once, next to the code that uses it.
//
//   struct FilterOptions { std::int64_t min_tokens = 0; bool dedup = false; };
//   void declare(OptionTable& table, FilterOptions& options) {
//     table.add("min-tokens", options.min_tokens, "N", "drop documents with fewer tokens");
//     table.add("dedup", options.dedup, "drop duplicate documents");
//   }
//
// This one declaration provides the flag (--min-tokens), the key in a --config file (min-tokens or
// min_tokens), the help text, and the resolved settings with the origin of each. Origins have ascending
// precedence in this order: default, resumed run, file, flag, planner. The table holds references to the
// structs, so the structs must outlive it.
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
  std::string name;                      // "min-tokens"
  std::vector<std::string> old_names{};  // earlier spellings, which are still accepted
  std::string value_name;                // "N"; empty for a switch, which takes no value
  std::string help;
  bool is_positional = false;
  bool is_list = false;
  // The number of values that follow one occurrence of the flag. 0 means all values up to the next flag. A
  // list option may occur several times.
  int values_per_occurrence = 1;
  bool is_required = false;
  bool is_saved = true;              // false for options that concern only one invocation, such as --json
  std::vector<std::string> choices;  // the accepted words; empty if any value is accepted

  Origin origin = Origin::built_in;
  std::string location;  // "run.toml:3" if a file sets the option, otherwise empty
  // Sets the option to these values (exactly one, unless `is_list`). Throws a UserError that names the
  // option.
  std::function<void(const std::vector<std::string>& values)> assign;
  // The current value as JSON, or null if unset.
  std::function<Json()> value;
  // The current value in human-readable form ("5.00 GiB"). Set only if that form differs from the JSON value.
  std::function<std::string()> display_value;
};

// A duration in the form that options accept: "10m".
std::string short_duration_text(Seconds seconds);

class OptionTable {
 public:
  OptionTable() = default;
  OptionTable(const OptionTable&) = delete;
  OptionTable& operator=(const OptionTable&) = delete;

  // `T` is std::string, Path, std::int64_t or int (with suffixes as in 15T and 300k), double, Bytes,
  // Seconds, std::vector<std::string>, or a std::optional of one of these. The returned reference is valid
  // while the table exists.
  template <typename T>
  Option& add(std::string name, T& target, std::string value_name, std::string help) {
    return insert(make(std::move(name), target, std::move(value_name), std::move(help)));
  }
  // Adds a switch: --name sets it on the command line, `name = true` or `name = false` in a file.
  Option& add(std::string name, bool& target, std::string help);
  // Adds an option whose value is one of a fixed set of words, such as the names of the values of an enum.
  template <typename Enum>
  Option& add_choice(std::string name, Enum& target,
                     const std::vector<std::pair<std::string, Enum>>& named_values, std::string help);
  // Like add_choice, but stores the word itself; an empty value means that no word was chosen.
  Option& add_word(std::string name, std::string& target, const std::vector<std::string>& choices,
                   std::string help);
  template <typename T>
  Option& add_positional(std::string name, T& target, std::string help) {
    Option option = make(std::move(name), target, "", std::move(help));
    option.is_positional = true;
    option.values_per_occurrence = 0;
    return insert(std::move(option));
  }

  std::vector<Option*> options();
  std::vector<const Option*> options() const;
  Option* find(std::string_view name);  // '_' and '-' are equivalent in `name`; nullptr if unknown
  std::vector<std::string> names() const;

  // Sets one option. Has no effect if `origin` has a lower precedence than the option's current origin.
  void set(Option& option, const std::vector<std::string>& values, Origin origin,
           const std::string& location = "");

  // One TOML line for each option that has a value, with the value's origin in a comment.
  std::string resolved_toml() const;

 private:
  template <typename T>
  static Option make(std::string name, T& target, std::string value_name, std::string help);
  Option& insert(Option option);

  std::vector<std::unique_ptr<Option>> options_;
};

// Reads a TOML file of `key = value` lines into the table. Sections only group the lines. Unknown keys are
// rejected with a message that names the file, the line and the nearest known key. Duplicate keys are
// rejected too, even if they are in different sections. `ignored_keys` lists keys of other commands, which
// are accepted and ignored, so that one file serves plan, train and profile. `origin` is Origin::file, or
// Origin::run for the settings of a resumed run.
void read_config_file(OptionTable& table, const Path& path, std::span<const std::string> ignored_keys = {},
                      Origin origin = Origin::file);

// Functions that parse and display a single value, with one overload for each type.
namespace option_value {

void parse(std::string& target, std::string_view text, std::string_view setting_name);
void parse(Path& target, std::string_view text, std::string_view setting_name);
void parse(std::int64_t& target, std::string_view text, std::string_view setting_name);
void parse(int& target, std::string_view text, std::string_view setting_name);
void parse(double& target, std::string_view text, std::string_view setting_name);
void parse(bool& target, std::string_view text, std::string_view setting_name);
void parse(Bytes& target, std::string_view text, std::string_view setting_name);
void parse(Seconds& target, std::string_view text, std::string_view setting_name);
template <typename T>
void parse(std::optional<T>& target, std::string_view text, std::string_view setting_name) {
  T value{};
  parse(value, text, setting_name);
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
  const std::string setting_name = "--" + option.name;
  if constexpr (std::is_same_v<T, std::vector<std::string>>) {
    option.is_list = true;
    option.assign = [&target](const std::vector<std::string>& values) { target = values; };
    option.value = [&target] { return Json(target); };
  } else {
    option.assign = [&target, setting_name](const std::vector<std::string>& values) {
      if (values.size() != 1) throw UserError("{}: expected one value, got {}", setting_name, values.size());
      option_value::parse(target, values[0], setting_name);
    };
    option.value = [&target] { return option_value::show(target); };
    if constexpr (std::is_same_v<T, Bytes>) option.display_value = [&target] { return text(target); };
    if constexpr (std::is_same_v<T, Seconds>)
      option.display_value = [&target] { return short_duration_text(target); };
  }
  return option;
}

template <typename Enum>
Option& OptionTable::add_choice(std::string name, Enum& target,
                                const std::vector<std::pair<std::string, Enum>>& named_values,
                                std::string help) {
  Option option;
  option.name = std::move(name);
  option.help = std::move(help);
  for (const auto& [word, value] : named_values) option.choices.push_back(word);
  option.value_name = join(option.choices, "|");
  option.assign = [&target, named_values, name_in_errors = "--" + option.name,
                   choices = option.choices](const auto& values) {
    for (const auto& [word, value] : named_values)
      if (values.size() == 1 && word == values[0]) return void(target = value);
    const std::string given_value = join(values, " ");
    throw UserError("{}: '{}' is not one of {}{}", name_in_errors, given_value, join(choices, ", "),
                    did_you_mean(given_value, choices));
  };
  option.value = [&target, named_values]() -> Json {
    for (const auto& [word, value] : named_values)
      if (value == target) return word;
    return {};
  };
  return insert(std::move(option));
}

}  // namespace optimus
