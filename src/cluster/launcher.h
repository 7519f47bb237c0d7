// Detects which launcher started this process (`optimus launch`, torchrun, MPI, Slurm, a Kubernetes job, or
// none), the rank of the process, and the rendezvous address. It reads only the environment variables passed
// to it. run/train_launched.h uses the result.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace optimus {

// Returns the value of an environment variable, or nullopt. Tests pass a map.
using Environment = std::function<std::optional<std::string>(const std::string& name)>;

// How this process was launched. `launcher` is "optimus launch", "torchrun", "Open MPI", "MPICH", "Slurm",
// "Kubernetes" or "single process".
struct LaunchInfo {
  std::string launcher;
  int rank = 0, world_size = 1;
  int local_rank = 0;
  // Whether all ranks are on this machine. They then meet through a file that belongs to the user
  // (launch/rendezvous_file.h), and no port is open to the network.
  bool is_one_host = true;
  // With several hosts, the address at which rank 0 hosts the store. Empty and 0 if unknown.
  std::string master_host{};
  int master_port = 0;
  // torchrun's store occupies the master port. Rank 0 then uses another port and publishes it in that store.
  bool has_torch_store = false;
  // Identifies the job. The same for all processes of a job and different for other jobs, as far as the
  // launcher provides this.
  std::string job{};
  // The environment variables that are required for a rendezvous across hosts but are not set.
  std::vector<std::string> missing{};

  std::string master() const;  // "host:port" if known, otherwise empty
};

// Uses the first launcher in the table of launcher.cpp whose variables are set. Throws a UserError if they
// contradict each other.
LaunchInfo detect_launcher(const Environment& environment);

// The first host of a Slurm node list: "node[1-3,7],gpu5" -> node1.
std::string first_slurm_host(const std::string& list);

// The default rendezvous port of a job, from 15000 to 29999. It is derived from the job name.
int port_of_job(const std::string& job);

}  // namespace optimus
