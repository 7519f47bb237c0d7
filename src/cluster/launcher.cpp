// See launcher.h. One table row per launcher.
#include "cluster/launcher.h"

#include "base/error.h"
#include "base/options.h"

namespace optimus {
namespace {

struct LauncherRow {
  const char* name;
  const char *rank, *world_size, *local_rank;
};

constexpr LauncherRow kLaunchers[] = {
    {"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK"},
    {"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"},
    {"MPICH", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"},
    {"Slurm", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"},
};

int number(const std::string& variable, const std::string& text) {
  int value = 0;
  option_value::parse(value, text, variable);
  if (value < 0) throw UserError("{}: {} is negative", variable, value);
  return value;
}

std::string master_of(const Environment& environment) {
  const auto address = environment("MASTER_ADDR");
  if (address) return *address + ":" + environment("MASTER_PORT").value_or("29400");
  const auto hosts = environment("SLURM_JOB_NODELIST");
  return hosts ? first_slurm_host(*hosts) + ":29400" : "";
}

}  // namespace

LaunchInfo detect_launcher(const Environment& environment) {
  for (const LauncherRow& row : kLaunchers) {
    const auto rank = environment(row.rank), size = environment(row.world_size);
    if (!rank || !size) continue;
    LaunchInfo info{row.name, number(row.rank, *rank), number(row.world_size, *size), 0,
                    master_of(environment)};
    info.local_rank = number(row.local_rank, environment(row.local_rank).value_or("0"));
    if (info.rank >= info.world_size)
      throw UserError("{}={} but {}={}: a rank must be below the number of ranks", row.rank, *rank,
                      row.world_size, *size);
    return info;
  }
  return {"single process", 0, 1, 0, ""};
}

std::string first_slurm_host(const std::string& list) {
  const std::size_t bracket = list.find('['), comma = list.find(',');
  if (bracket == std::string::npos || comma < bracket) return list.substr(0, comma);
  const std::size_t end = list.find_first_of("-,]", bracket);
  if (end == std::string::npos)
    throw UserError("SLURM_JOB_NODELIST: {} lacks a closing bracket", in_quotes(list));
  return list.substr(0, bracket) + list.substr(bracket + 1, end - bracket - 1);
}

}  // namespace optimus
