// Implements flags.h. CLI11 splits the arguments. Values are parsed like those in a settings file.
#include "cli/flags.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <cstdio>

#include "base/text.h"

namespace optimus {
namespace {

struct ParsedFlag {
  Option* option = nullptr;
  CLI::Option* flag = nullptr;
};

bool is_switch(const Option& option) { return option.value_name.empty() && !option.is_positional; }

void add_to(CLI::App& app, ParsedFlag& parsed) {
  const Option& option = *parsed.option;
  if (is_switch(option)) {
    parsed.flag = app.add_flag("--" + option.name);
    return;
  }
  // The callback makes CLI11 keep the arguments unchanged. Otherwise, CLI11 would split values in brackets
  // and assign the following arguments to the flag.
  parsed.flag = app.add_option((option.is_positional ? "" : "--") + option.name,
                               [](const CLI::results_t&) { return true; });
  parsed.flag->allow_extra_args(option.is_list && option.values_per_occurrence == 0);
  if (option.is_list && option.values_per_occurrence == 0)
    parsed.flag->expected(1, 1 << 20)->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  else if (option.is_list)
    parsed.flag->expected(option.values_per_occurrence)->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  else
    parsed.flag->expected(1)->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
}

[[noreturn]] void refuse_extra(const std::string& word, const OptionTable& table) {
  if (!word.starts_with("-")) throw UsageError("unexpected argument {}; see --help", in_quotes(word));
  std::vector<std::string> known_names;
  for (const std::string& name : table.names()) known_names.push_back("--" + name);
  const std::string flag = word.substr(0, word.find('='));
  const std::string hint = did_you_mean(flag, known_names);
  throw UsageError("unknown option {}{}", in_quotes(flag), hint.empty() ? "; see --help" : hint);
}

// Rejects missing and surplus values. An option name is never taken as the value of the preceding option.
void check_values(OptionTable& table, const std::vector<std::string>& arguments) {
  const auto is_option = [&](const std::string& word) {
    return word.starts_with("--") && table.find(word.substr(2, word.find('=') - 2)) != nullptr;
  };
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (!is_option(arguments[i])) continue;
    const std::size_t equals = arguments[i].find('=');
    const Option& option = *table.find(arguments[i].substr(2, equals - 2));
    if (is_switch(option) && equals != std::string::npos && arguments[i].substr(equals) != "=true" &&
        arguments[i].substr(equals) != "=false")
      throw UsageError("--{} takes no value, got {}", option.name,
                       in_quotes(arguments[i].substr(equals + 1)));
    if (is_switch(option) || option.is_positional || equals != std::string::npos) continue;
    const auto needed = static_cast<std::size_t>(std::max(1, option.values_per_occurrence));
    std::size_t num_given = 0;
    while (num_given < needed && i + num_given + 1 < arguments.size() &&
           !is_option(arguments[i + num_given + 1]))
      ++num_given;
    if (num_given < needed)
      throw UsageError("--{} needs {}: --{} {}", option.name,
                       needed == 1 ? "a value" : fmt::format("{} values", needed), option.name,
                       option.value_name);
  }
}

// Replaces a deprecated option name with the current name and prints a note.
std::string current_spelling(OptionTable& table, const std::string& word) {
  if (!word.starts_with("--")) return word;
  const std::size_t end = std::min(word.find('='), word.size());
  const std::string name = word.substr(2, end - 2);
  const Option* option = table.find(name);
  if (option == nullptr ||
      std::find(option->old_names.begin(), option->old_names.end(), name) == option->old_names.end())
    return word;
  fmt::print(stderr, "optimus: --{} is now --{}; the old name is still accepted\n", name, option->name);
  return "--" + option->name + word.substr(end);
}

// The arguments after -- are the values of the positional list option.
void set_arguments_after_dashes(OptionTable& table, const std::vector<std::string>& arguments) {
  for (Option* option : table.options())
    if (option->is_positional && option->is_list) return table.set(*option, arguments, Origin::flag);
  throw UsageError("unexpected arguments after --; see --help");
}

}  // namespace

void read_flags(OptionTable& table, const std::vector<std::string>& all_arguments) {
  // The arguments after -- are not flags of this command, but the command line of another program.
  const auto end = std::find(all_arguments.begin(), all_arguments.end(), "--");
  std::vector<std::string> arguments(all_arguments.begin(), end);
  for (std::string& word : arguments) word = current_spelling(table, word);
  check_values(table, arguments);
  CLI::App app;
  app.set_help_flag();
  app.allow_extras();
  std::vector<ParsedFlag> parsed_flags;
  for (Option* option : table.options()) parsed_flags.push_back({option, nullptr});
  for (ParsedFlag& parsed_flag : parsed_flags) add_to(app, parsed_flag);
  try {
    app.parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));
  } catch (const CLI::ParseError&) {
    throw UsageError("cannot parse the options; see --help");
  }
  if (const auto extra = app.remaining(); !extra.empty()) refuse_extra(extra.front(), table);
  if (end != all_arguments.end()) set_arguments_after_dashes(table, {end + 1, all_arguments.end()});
  for (ParsedFlag& parsed_flag : parsed_flags) {
    if (parsed_flag.flag->count() == 0) continue;
    try {
      const std::vector<std::string> values = parsed_flag.flag->results();
      const bool takes_last = !parsed_flag.option->is_list;
      table.set(*parsed_flag.option, takes_last ? std::vector{values.back()} : values, Origin::flag);
    } catch (const UserError& error) {
      throw UsageError("{}", error.what());
    }
  }
}

namespace {

std::string in_capitals(std::string word) {
  for (char& c : word) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return word;
}

// Returns the default for the help text, for example " [5.00 GiB]". Empty if the option has no default or is
// required.
std::string default_text(const Option& option) {
  const Json value = option.value();
  const bool is_unset = value.is_null() || value == "" || value == false ||
                        (value.is_array() && value.empty()) || (option.display_value && value == 0);
  if (is_unset || option.is_required) return "";
  if (option.display_value) return fmt::format(" [{}]", option.display_value());
  return fmt::format(" [{}]", value.is_string() ? value.get<std::string>() : value.dump());
}

}  // namespace

std::string display_name(const Option& option) {
  return option.is_positional ? in_capitals(option.name) : "--" + option.name;
}

std::string help_text(const std::string& command, const std::string& summary, const OptionTable& table) {
  std::string usage = fmt::format("usage: optimus {}", command);
  std::vector<std::pair<std::string, std::string>> rows;
  for (const Option* option : table.options()) {
    if (option->is_positional)
      usage += fmt::format(" {}{}", display_name(*option), option->is_list ? "…" : "");
    rows.emplace_back(display_name(*option) + (option->value_name.empty() ? "" : " " + option->value_name),
                      option->help + (option->is_positional ? "" : default_text(*option)));
  }
  std::string result = fmt::format("{} [options]\n{}\n\n", usage, summary);
  std::size_t width = 0;
  for (const auto& [left, right] : rows) width = std::max(width, std::min<std::size_t>(left.size(), 28));
  for (const auto& [left, right] : rows) {
    const bool is_wide = left.size() > width;
    result += fmt::format("  {:<{}}{}{}\n", left, width,
                          is_wide ? fmt::format("\n{:{}}", "", width + 4) : "  ", right);
  }
  return result;
}

}  // namespace optimus
