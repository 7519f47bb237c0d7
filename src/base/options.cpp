// Implements options.h. The TOML reader is in config_file.cpp.
#include "base/options.h"

#include <algorithm>
#include <charconv>
#include <climits>
#include <cmath>

namespace optimus {

std::string text(Origin origin) {
  switch (origin) {
    case Origin::built_in:
      return "default";
    case Origin::run:
      return "run";
    case Origin::file:
      return "file";
    case Origin::flag:
      return "flag";
    case Origin::planner:
      return "chosen";
  }
  return "";
}

Option& OptionTable::add(std::string name, bool& target, std::string help) {
  return insert(make(std::move(name), target, "", std::move(help)));
}

Option& OptionTable::add_word(std::string name, std::string& target, const std::vector<std::string>& choices,
                              std::string help) {
  Option option = make(std::move(name), target, join(choices, "|"), std::move(help));
  option.choices = choices;
  option.assign = [&target, choices,
                   setting_name = "--" + option.name](const std::vector<std::string>& values) {
    const std::string given_value = join(values, " ");
    if (!given_value.empty() && std::find(choices.begin(), choices.end(), given_value) == choices.end())
      throw UserError("{}: {} is not one of {}{}", setting_name, in_quotes(given_value), join(choices, ", "),
                      did_you_mean(given_value, choices));
    target = given_value;
  };
  return insert(std::move(option));
}

std::string short_duration_text(Seconds seconds) {
  for (const auto& [unit, length] : {std::pair{"h", 3600.0}, {"m", 60.0}})
    if (const double number = seconds.value / length; number >= 1 && std::floor(number) == number)
      return fmt::format("{:g}{}", number, unit);
  return fmt::format("{:g}s", seconds.value);
}

Option& OptionTable::insert(Option option) {
  ensure(find(option.name) == nullptr, "option --{} is declared twice", option.name);
  options_.push_back(std::make_unique<Option>(std::move(option)));
  return *options_.back();
}

std::vector<Option*> OptionTable::options() {
  std::vector<Option*> result;
  for (const auto& option : options_) result.push_back(option.get());
  return result;
}

std::vector<const Option*> OptionTable::options() const {
  std::vector<const Option*> result;
  for (const auto& option : options_) result.push_back(option.get());
  return result;
}

Option* OptionTable::find(std::string_view name) {
  std::string spelling(name);
  for (char& c : spelling)
    if (c == '_') c = '-';
  for (const auto& option : options_)
    if (option->name == spelling ||
        std::find(option->old_names.begin(), option->old_names.end(), spelling) != option->old_names.end())
      return option.get();
  return nullptr;
}

std::vector<std::string> OptionTable::names() const {
  std::vector<std::string> result;
  for (const auto& option : options_) result.push_back(option->name);
  return result;
}

void OptionTable::set(Option& option, const std::vector<std::string>& values, Origin origin,
                      const std::string& location) {
  if (origin < option.origin) return;
  option.assign(values);
  option.origin = origin;
  option.location = location;
}

std::string OptionTable::resolved_toml() const {
  std::string result;
  for (const auto& option : options_) {
    const Json value = option->value();
    if (value.is_null() || !option->is_saved) continue;
    const std::string origin = option->location.empty() ? text(option->origin) : option->location;
    // JSON numbers, strings and lists of them are valid TOML as well.
    result += fmt::format("{} = {}  # {}\n", option->name,
                          value.dump(-1, ' ', false, Json::error_handler_t::replace), origin);
  }
  return result;
}

namespace option_value {

void parse(std::string& target, std::string_view text, std::string_view) { target = text; }
void parse(Path& target, std::string_view text, std::string_view setting_name) {
  if (text.empty()) throw UserError("{}: the path is empty", setting_name);
  target = text;
}
void parse(std::int64_t& target, std::string_view text, std::string_view setting_name) {
  const std::string_view trimmed = trim(text);
  std::int64_t number = 0;
  const auto [rest, error] = std::from_chars(trimmed.data(), trimmed.data() + trimmed.size(), number);
  const bool is_plain = error == std::errc{} && rest == trimmed.data() + trimmed.size();
  target = is_plain ? number : parse_count(text, setting_name);
}
void parse(int& target, std::string_view text, std::string_view setting_name) {
  std::int64_t number = 0;
  parse(number, text, setting_name);
  if (number < INT_MIN || number > INT_MAX)
    throw UserError("{}: {} is too large", setting_name, in_quotes(text));
  target = static_cast<int>(number);
}
void parse(double& target, std::string_view text, std::string_view setting_name) {
  const std::string_view trimmed = trim(text);
  const auto [rest, error] = std::from_chars(trimmed.data(), trimmed.data() + trimmed.size(), target);
  if (error != std::errc{} || rest != trimmed.data() + trimmed.size())
    throw UserError("{}: {} is not a number", setting_name, in_quotes(text));
  if (!std::isfinite(target)) throw UserError("{}: {} is not a finite number", setting_name, in_quotes(text));
}
void parse(bool& target, std::string_view text, std::string_view setting_name) {
  if (text == "true")
    target = true;
  else if (text == "false")
    target = false;
  else
    throw UserError("{}: {} is not true or false", setting_name, in_quotes(text));
}
void parse(Bytes& target, std::string_view text, std::string_view setting_name) {
  target = parse_bytes(text, setting_name);
}
void parse(Seconds& target, std::string_view text, std::string_view setting_name) {
  target = parse_seconds(text, setting_name);
}

}  // namespace option_value
}  // namespace optimus
