// The run's token: what a process must know to take part in a run. From OPTIMUS_TOKEN, from a file that only its owner may read, or
// made by whoever starts the run.
#pragma once

#include <optional>
#include <string>

#include "base/file.h"
#include "cluster/launcher.h"

namespace optimus {

inline constexpr const char* kTokenVariable = "OPTIMUS_TOKEN";

struct Token {
  std::string text;
  std::string origin;  // "OPTIMUS_TOKEN", the file's name, "made for this run"
};

// The file wins over the variable; nothing when neither is there. Throws UserError when the token is too short or has odd
// characters, and when others may read the file.
std::optional<Token> find_token(const Environment& environment, const Path& file);

// 128 random bits.
std::string make_token();

// For a run over several hosts that has none.
std::string how_to_make_token();

}  // namespace optimus
