// The command line: finds the subcommand, fills in its options from a settings file and from flags, runs it,
// and maps errors to exit codes. For all subcommands, the exit code is 0 for success, 1 for failure and 2 for
// wrong usage. Read next: commands.cpp.
#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <exception>

#include "base/text.h"
#include "cli/command.h"
#include "cli/flags.h"

namespace optimus {
namespace {

using Words = std::vector<std::string>;

std::string overview() {
  std::string result =
      "optimus: trains large language models and keeps every run on the best parallel plan\n\nusage: optimus "
      "COMMAND [options]\n\n";
  for (const CommandEntry& entry : commands())
    result += fmt::format("  {:<18} {}\n", entry.name, entry.summary);
  return result +
         "\nRun optimus COMMAND --help for the options of a command. --json prints one JSON value. --config "
         "FILE reads "
         "settings from TOML\n";
}

bool is_help(const std::string& word) { return word == "--help" || word == "-h" || word == "help"; }

// Returns the command named by the first one or two arguments, and the number of these arguments.
std::pair<const CommandEntry*, std::size_t> find_command(const Words& arguments) {
  for (const CommandEntry& entry : commands()) {
    const Words name = split(entry.name, ' ');
    if (arguments.size() >= name.size() && std::equal(name.begin(), name.end(), arguments.begin()))
      return {&entry, name.size()};
  }
  return {nullptr, 0};
}

[[noreturn]] void refuse_command(const Words& arguments) {
  Words names;
  for (const CommandEntry& entry : commands()) {
    names.push_back(entry.name);
    if (split(entry.name, ' ')[0] == arguments[0] && arguments.size() > 1)
      throw UsageError("unknown command {}; see optimus --help",
                       in_quotes(arguments[0] + " " + arguments[1]));
  }
  throw UsageError(
      "unknown command {}{}", in_quotes(arguments[0]),
      nearest(arguments[0], names).empty() ? "; see optimus --help" : did_you_mean(arguments[0], names));
}

// Returns an overview of the commands in a group such as "data", for a command line that names only the
// group.
std::string group_overview(const std::string& group) {
  std::string result;
  for (const CommandEntry& entry : commands())
    if (entry.name.starts_with(group + " "))
      result += fmt::format("  {:<18} {}\n", entry.name, entry.summary);
  return result.empty() ? "" : fmt::format("usage: optimus {} COMMAND [options]\n\n{}", group, result);
}

// Returns the option keys of all commands, because one settings file may be used for several commands.
Words keys_of_all_commands() {
  Words keys;
  for (const CommandEntry& entry : commands()) {
    const std::unique_ptr<Command> command = entry.make();
    OptionTable table;
    command->declare(table);
    const Words names = table.names();
    keys.insert(keys.end(), names.begin(), names.end());
  }
  return keys;
}

int run_command(const CommandEntry& entry, const Words& arguments) {
  Console console;
  Path config;
  bool shows_settings = false;
  const std::unique_ptr<Command> command = entry.make();
  OptionTable table;
  command->declare(table);
  table.add("config", config, "FILE", "read settings from a TOML file; flags override it");
  table.add("json", console.wants_json, "print one JSON value, and nothing else, on standard output");
  table.add("show-settings", shows_settings, "print all settings with the origin of each, and exit");
  if (std::any_of(arguments.begin(), std::find(arguments.begin(), arguments.end(), "--"),
                  [](const auto& word) { return word == "--help" || word == "-h"; })) {
    fmt::print("{}", help_text(entry.name, entry.summary, table));
    return 0;
  }
  for (const char* name : {"config", "json", "show-settings"}) table.find(name)->is_saved = false;
  read_flags(table, arguments);
  if (!config.empty()) read_config_file(table, config, keys_of_all_commands());
  if (shows_settings) {
    fmt::print("{}", table.resolved_toml());
    return 0;
  }
  for (const Option* option : table.options())
    if (option->is_required && option->origin == Origin::built_in)
      throw UsageError("{} is missing ({}); see optimus {} --help", display_name(*option), option->help,
                       entry.name);
  return command->run(console);
}

int run(const Words& arguments) {
  if (arguments.empty()) {
    fmt::print(stderr, "{}", overview());
    return 2;
  }
  if (arguments[0] == "--version") {
    fmt::print("optimus {}\n", OPTIMUS_VERSION);
    return 0;
  }
  const auto [entry, num_words] = find_command(arguments);
  if (entry != nullptr)
    return run_command(*entry,
                       Words(arguments.begin() + static_cast<std::ptrdiff_t>(num_words), arguments.end()));
  if (is_help(arguments[0])) {
    fmt::print("{}", overview());
    return 0;
  }
  if (const std::string group = group_overview(arguments[0]);
      !group.empty() && (arguments.size() == 1 || is_help(arguments[1]))) {
    fmt::print(arguments.size() == 1 ? stderr : stdout, "{}", group);
    return arguments.size() == 1 ? 2 : 0;
  }
  refuse_command(arguments);
}

}  // namespace
}  // namespace optimus

namespace {

// Escapes control characters, so that the message stays on one line even if names and values contain them.
void print_error(const char* message) {
  std::string line;
  for (const char* c = message; *c != '\0'; ++c) {
    if (static_cast<unsigned char>(*c) < 0x20 || *c == 0x7f)
      line += fmt::format("\\x{:02x}", static_cast<unsigned char>(*c));
    else
      line += *c;
  }
  fmt::print(stderr, "optimus: {}\n", line);
}

int run_command_line(int argc, char** argv) {
  try {
    return optimus::run({argv + 1, argv + argc});
  } catch (const optimus::UsageError& error) {
    print_error(error.what());
    return 2;
  } catch (const optimus::ReportedError& error) {
    print_error(error.what());
    return 1;
  } catch (const optimus::Interrupted&) {
    return 130;
  } catch (const std::bad_alloc&) {
    fmt::print(stderr, "optimus: out of memory\n");
    return 1;
  } catch (const std::exception& error) {
    fmt::print(stderr, "optimus: internal error: {}\n", error.what());
    return 1;
  }
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool has_sanitizer = true;
#elif defined(__has_feature)
constexpr bool has_sanitizer = __has_feature(address_sanitizer) || __has_feature(thread_sanitizer);
#else
constexpr bool has_sanitizer = false;
#endif

}  // namespace

// All resources are released by now. Unloading libtorch would cost a quarter of a second of CPU time, so the
// process exits without unloading it. Sanitizers check for leaks only at a normal exit.
int main(int argc, char** argv) {
  const int code = run_command_line(argc, argv);
  if (has_sanitizer) return code;
  std::fflush(nullptr);
  std::_Exit(code);
}
