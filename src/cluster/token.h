// The token of a run: a shared secret that a process needs to join the run. It comes from OPTIMUS_TOKEN or
// from a file that only its owner can read, or the process that starts the run generates it.
#pragma once

#include <optional>
#include <string>

#include "base/file.h"
#include "cluster/launcher.h"

namespace optimus {

inline constexpr const char* kTokenVariable = "OPTIMUS_TOKEN";

struct Token {
  std::string text;
  std::string origin;  // "OPTIMUS_TOKEN", the name of the file, or "made for this run"
};

// The file has precedence over the environment variable. Returns nullopt if neither is given. Throws a
// UserError if the token is too short or contains invalid characters, or if other users can read the file.
std::optional<Token> find_token(const Environment& environment, const Path& file);

// A random 128-bit token.
std::string generate_token();

// Instructions for creating a token, shown when a run on several hosts has none.
std::string token_instructions();

}  // namespace optimus
