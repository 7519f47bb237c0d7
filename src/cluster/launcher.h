// Who started this process: torchrun, MPI, Slurm, or nobody. Reads environment variables handed in, nothing
// else.
#pragma once

#include <functional>
#include <optional>
#include <string>

namespace optimus {

// The value of an environment variable, or nothing. Tests hand in a map.
using Environment = std::function<std::optional<std::string>(const std::string& name)>;

struct LaunchInfo {
  std::string launcher;  // "torchrun", "Open MPI", "MPICH", "Slurm", "single process"
  int rank = 0, world_size = 1;
  int local_rank = 0;
  std::string master;  // "host:port" where it is known, else empty
};

// In this order, as other trainers do: torchrun-style variables, MPI, Slurm. Throws UserError when the
// variables of a launcher contradict each other.
LaunchInfo detect_launcher(const Environment& environment);

// "node[1-3,7],gpu5" -> node1: the first host of a Slurm list.
std::string first_slurm_host(const std::string& list);

}  // namespace optimus
