// The launch line of a shell script: which words a training program would be started with. Understands what launch scripts are made
// of (quotes, line continuations, comments, simple assignments, arrays, "$NAME", "${NAME:-default}", "$((2 * 4))"), runs nothing,
// and follows no branches: of two assignments the later one counts. Used by import alone.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace optimus {

struct LaunchLine {
  std::vector<std::string> launcher;  // torchrun --nproc-per-node 8 pretrain_gpt.py; empty when there is none
  std::vector<std::string> arguments;  // those of the program
};

// A variable that the text does not define stays as it is written, "$TP". Throws UserError for what has no arguments, and for
// text that expands beyond a few megabytes.
LaunchLine launch_line(std::string_view text, const std::string& source);

}  // namespace optimus
