// See exported_plan.h.
#include "plan/exported_plan.h"

#include <utility>

#include "base/error.h"
#include "base/text.h"

namespace optimus {

namespace {

constexpr std::pair<const char*, Trainer> kTrainers[] = {{"megatron", Trainer::megatron},
                                                         {"deepspeed", Trainer::deepspeed},
                                                         {"torchtitan", Trainer::torchtitan},
                                                         {"optimus", Trainer::optimus}};

}  // namespace

std::string text(Trainer trainer) {
  for (const auto& [word, value] : kTrainers)
    if (value == trainer) return word;
  return "";
}

Trainer parse_trainer(const std::string& word, const std::string& setting_name) {
  std::vector<std::string> known_names;
  for (const auto& [name, value] : kTrainers) {
    if (name == word) return value;
    known_names.emplace_back(name);
  }
  throw UserError("{}: {} is not one of {}{}", setting_name, in_quotes(word), join(known_names, ", "),
                  did_you_mean(word, known_names));
}

}  // namespace optimus
