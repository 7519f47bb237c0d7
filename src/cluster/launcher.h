// Who started this process: `optimus launch`, torchrun, MPI, Slurm, a Kubernetes job, or nobody; which rank it is then, and where
// ranks meet. Reads environment variables handed in, nothing else. What a rank does with it: run/train_launched.h.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace optimus {

// The value of an environment variable, or nothing. Tests hand in a map.
using Environment = std::function<std::optional<std::string>(const std::string& name)>;

struct LaunchInfo {
  std::string
      launcher;  // "optimus launch", "torchrun", "Open MPI", "MPICH", "Slurm", "Kubernetes", "single process"
  int rank = 0, world_size = 1;
  int local_rank = 0;
  // All ranks on this machine: they meet by a file of this user (run/meeting_place.h), no port is open to the network.
  bool is_one_host = true;
  // Several hosts: where rank 0's store listens; empty and 0 when that is not known.
  std::string master_host{};
  int master_port = 0;
  // torchrun's own store listens at the master's port: rank 0 takes another port and announces it there.
  bool has_torch_store = false;
  // What is the same for all processes of this start and differs from other starts, as far as the launcher tells.
  std::string job{};
  // Names of variables that must be set before several hosts can meet.
  std::vector<std::string> missing{};

  std::string master() const;  // "host:port" where it is known, else empty
};

// By the first row of the table in launcher.cpp whose variables are there. Throws UserError when they contradict each other.
LaunchInfo detect_launcher(const Environment& environment);

// "node[1-3,7],gpu5" -> node1: the first host of a Slurm list.
std::string first_slurm_host(const std::string& list);

// The port at which ranks of a job meet where nobody names one: 15000 to 29999, by the job's name.
int port_of_job(const std::string& job);

}  // namespace optimus
