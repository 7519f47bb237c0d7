// Implements option_map.h.
#include "api/option_map.h"

#include "base/text.h"

namespace optimus {

void set_options(OptionTable& table, const std::map<std::string, std::string>& values) {
  for (const auto& [key, value] : values) {
    Option* option = table.find(key);
    if (option == nullptr)
      throw UserError("unknown option {}{}", in_quotes(key), did_you_mean(key, table.names()));
    table.set(*option, {value.empty() && option->value_name.empty() ? "true" : value}, Origin::flag);
  }
}

}  // namespace optimus
