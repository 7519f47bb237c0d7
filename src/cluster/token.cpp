// See token.h.
#include "cluster/token.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <random>

#include "base/error.h"
#include "base/text.h"

namespace optimus {
namespace {

constexpr std::size_t kMinLength = 16, kMaxLength = 256;

// Messages never contain the token itself.
Token checked_token(std::string text, const std::string& origin) {
  const bool is_plain = std::all_of(text.begin(), text.end(), [](char c) { return c > ' ' && c < 0x7f; });
  if (text.size() < kMinLength || text.size() > kMaxLength || !is_plain)
    throw UserError("{}: expected a token of {} to {} printable ASCII characters without spaces; {}", origin,
                    kMinLength, kMaxLength, token_instructions());
  return {std::move(text), origin};
}

}  // namespace

std::optional<Token> find_token(const Environment& environment, const Path& file) {
  if (file.empty()) {
    const auto from_environment = environment(kTokenVariable);
    return from_environment ? std::optional(checked_token(*from_environment, kTokenVariable)) : std::nullopt;
  }
  struct stat file_status {};
  if (::stat(file.c_str(), &file_status) != 0 || !S_ISREG(file_status.st_mode))
    throw UserError("--token-file {}: no such file; {}", file.string(), token_instructions());
  if ((file_status.st_mode & 077) != 0)
    throw UserError("--token-file {}: other users can read it (mode {:o}); run chmod 600 {}", file.string(),
                    file_status.st_mode & 0777, file.string());
  const std::string content = read_input_file(file, Bytes(1 << 12));
  return checked_token(std::string(trim(content)), "--token-file " + file.string());
}

std::string generate_token() {
  std::random_device device;
  std::string result;
  for (int i = 0; i < 4; ++i) result += fmt::format("{:08x}", device());
  return result;
}

std::string token_instructions() {
  return "create one with: export OPTIMUS_TOKEN=$(head -c 16 /dev/urandom | od -An -tx1 | tr -d ' \\n')";
}

}  // namespace optimus
