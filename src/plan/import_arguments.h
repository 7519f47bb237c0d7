// Flags and values of a command line. Each flag is either queried or reported as unknown. Used only by the
// Megatron importer.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace optimus {

class ArgumentList {
 public:
  // Accepts --flag value… and --flag=value, and treats '_' and '-' as equal. The last occurrence of a flag
  // wins, as in argparse.
  ArgumentList(const std::vector<std::string>& arguments, std::string source);

  // Each of these functions marks the flag as understood.
  bool has_flag(const std::string& flag);
  std::optional<std::string> text(const std::string& flag);
  // These functions throw a UserError that names the source, the flag and the value.
  std::optional<std::int64_t> count(const std::string& flag, std::int64_t smallest = 1,
                                    std::int64_t largest = 1'000'000'000);
  std::optional<double> number(const std::string& flag);
  std::vector<std::string> values_of(const std::string& flag);

  struct Argument {
    std::string flag;  // "--num-layers"
    std::vector<std::string> values;
    bool is_understood = false;
  };
  const std::vector<Argument>& arguments() const { return arguments_; }

 private:
  Argument* find(const std::string& flag);

  std::vector<Argument> arguments_;
  std::string source_;
};

// The argument as shown in lists: "--num-layers 32".
std::string display_text(const ArgumentList::Argument& argument);

}  // namespace optimus
