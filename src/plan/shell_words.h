// Finds the launch line in a shell script: the words of the command that would start a training program.
// Supports the usual elements of launch scripts (quotes, line continuations, comments, simple assignments,
// arrays, "$NAME", "${NAME:-default}", "$((2 * 4))"). It does not run commands or evaluate branches, so the
// later of two assignments is used. Used only by the importers.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace optimus {

struct LaunchLine {
  // The launcher and the program: torchrun --nproc-per-node 8 pretrain_gpt.py. Empty if there is no launcher.
  std::vector<std::string> launcher;
  std::vector<std::string> arguments;  // of the training program
};

// A variable that the text does not define is left as written, such as "$TP". Throws UserError if the text
// has no arguments or expands beyond a few megabytes.
LaunchLine launch_line(std::string_view text, const std::string& source);

}  // namespace optimus
