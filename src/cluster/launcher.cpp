// Implements launcher.h. There is one table row per launcher.
#include "cluster/launcher.h"

#include <fmt/format.h>

#include "base/error.h"
#include "base/options.h"
#include "base/random.h"

namespace optimus {
namespace {

struct LauncherRow {
  const char* name;
  const char *rank, *world_size, *local_rank;
  const char* local_size;  // number of ranks on this host; empty if not provided
  const char* num_hosts;   // number of hosts; empty if not provided
  const char* hosts;       // a Slurm node list that starts with the host of rank 0; empty if not provided
  std::vector<const char*> job;
};

// The launchers are tried in the same order as in other trainers. For Slurm, the row uses the task count of
// the job step, because the task count of the allocation is also set in shells that srun did not start.
const std::vector<LauncherRow>& launcher_rows() {
  static const std::vector<LauncherRow> rows = {
      {"optimus launch",
       "OPTIMUS_RANK",
       "OPTIMUS_WORLD_SIZE",
       "OPTIMUS_LOCAL_RANK",
       "OPTIMUS_LOCAL_SIZE",
       "",
       "",
       {"OPTIMUS_JOB"}},
      {"torchrun",
       "RANK",
       "WORLD_SIZE",
       "LOCAL_RANK",
       "LOCAL_WORLD_SIZE",
       "",
       "",
       {"TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_ADDR", "MASTER_PORT"}},
      {"Open MPI",
       "OMPI_COMM_WORLD_RANK",
       "OMPI_COMM_WORLD_SIZE",
       "OMPI_COMM_WORLD_LOCAL_RANK",
       "OMPI_COMM_WORLD_LOCAL_SIZE",
       "",
       "",
       {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"}},
      {"MPICH", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", "", "", {"PMI_PORT"}},
      {"Slurm",
       "SLURM_PROCID",
       "SLURM_STEP_NUM_TASKS",
       "SLURM_LOCALID",
       "",
       "SLURM_STEP_NUM_NODES",
       "SLURM_STEP_NODELIST",
       {"SLURM_JOB_ID", "SLURM_STEP_ID"}},
      {"Kubernetes",
       "JOB_COMPLETION_INDEX",
       "WORLD_SIZE",
       "LOCAL_RANK",
       "LOCAL_WORLD_SIZE",
       "",
       "",
       {"MASTER_ADDR", "MASTER_PORT"}},
  };
  return rows;
}

int launch_number(const std::string& variable, const std::string& text, int minimum) {
  int value = 0;
  option_value::parse(value, text, variable);
  if (value < minimum) throw UserError("{}: {} is below the minimum of {}", variable, value, minimum);
  return value;
}

std::optional<int> read_number(const Environment& environment, const std::string& variable, int minimum) {
  if (variable.empty()) return std::nullopt;
  const auto text = environment(variable);
  return text ? std::optional(launch_number(variable, *text, minimum)) : std::nullopt;
}

std::string job_of(const LauncherRow& row, const Environment& environment) {
  std::string job = row.name;
  for (const char* variable : row.job) job += "." + environment(variable).value_or("");
  return job;
}

bool is_this_host(const std::string& host) {
  return host == "localhost" || host == "::1" || host.starts_with("127.");
}

// Decides by the number of local ranks or by the number of hosts. If neither is provided, the name of the
// rendezvous host decides.
bool is_on_one_host(const LauncherRow& row, const LaunchInfo& info, const Environment& environment) {
  if (const auto local = read_number(environment, row.local_size, 1)) return *local >= info.world_size;
  if (const auto hosts = read_number(environment, row.num_hosts, 1)) return *hosts == 1;
  const auto master = environment("MASTER_ADDR");
  return info.world_size == 1 || (master && is_this_host(*master));
}

void find_master(const LauncherRow& row, LaunchInfo& info, const Environment& environment) {
  if (const auto hosts = environment(row.hosts); *row.hosts != '\0' && hosts)
    info.master_host = first_slurm_host(*hosts);
  if (const auto address = environment("MASTER_ADDR")) info.master_host = *address;
  if (const auto port = read_number(environment, "MASTER_PORT", 1)) {
    if (*port > 65535) throw UserError("MASTER_PORT: expected at most 65535, got {}", *port);
    info.master_port = *port;
  } else if (!info.master_host.empty()) {
    info.master_port = port_of_job(info.job);
  }
  info.has_torch_store =
      row.name == std::string("torchrun") && environment("TORCHELASTIC_USE_AGENT_STORE") == "True";
  if (!info.is_one_host && info.master_host.empty()) info.missing.push_back("MASTER_ADDR");
}

}  // namespace

std::string LaunchInfo::master() const {
  return master_host.empty() ? "" : fmt::format("{}:{}", master_host, master_port);
}

LaunchInfo detect_launcher(const Environment& environment) {
  for (const LauncherRow& row : launcher_rows()) {
    const auto rank = environment(row.rank), size = environment(row.world_size);
    if (!rank || !size) continue;
    LaunchInfo info{.launcher = row.name,
                    .rank = launch_number(row.rank, *rank, 0),
                    .world_size = launch_number(row.world_size, *size, 1)};
    if (info.rank >= info.world_size)
      throw UserError("{}: expected a rank below {}={}, got {}", row.rank, row.world_size, *size, *rank);
    info.local_rank = read_number(environment, row.local_rank, 0).value_or(0);
    info.job = job_of(row, environment);
    info.is_one_host = is_on_one_host(row, info, environment);
    find_master(row, info, environment);
    return info;
  }
  return {.launcher = "single process"};
}

std::string first_slurm_host(const std::string& list) {
  const std::size_t bracket = list.find('['), comma = list.find(',');
  if (bracket == std::string::npos || comma < bracket) return list.substr(0, comma);
  const std::size_t end = list.find_first_of("-,]", bracket);
  if (end == std::string::npos)
    throw UserError("SLURM_STEP_NODELIST: {} is missing a closing bracket", in_quotes(list));
  return list.substr(0, bracket) + list.substr(bracket + 1, end - bracket - 1);
}

int port_of_job(const std::string& job) {
  constexpr int kFirst = 15000, kCount = 15000;
  return kFirst + static_cast<int>(RandomKey(0).derive(job).value % kCount);
}

}  // namespace optimus
