// Detection of launchers from environment variables, and tokens.
#include "cluster/launcher.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <map>

#include "base/error.h"
#include "base/temporary_folder.h"
#include "cluster/token.h"

namespace optimus {
namespace {

using Variables = std::map<std::string, std::string>;

Environment environment_of(Variables variables) {
  return [variables = std::move(variables)](const std::string& name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  };
}

LaunchInfo detected(const Variables& variables) { return detect_launcher(environment_of(variables)); }

TEST(Launcher, NoLauncher) {
  const LaunchInfo info = detected({});
  EXPECT_EQ(info.launcher, "single process");
  EXPECT_EQ(info.world_size, 1);
}

TEST(Launcher, Torchrun) {
  Variables variables = {{"RANK", "3"},
                         {"WORLD_SIZE", "8"},
                         {"LOCAL_RANK", "1"},
                         {"LOCAL_WORLD_SIZE", "2"},
                         {"MASTER_ADDR", "node1"},
                         {"MASTER_PORT", "29500"},
                         {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                         {"TORCHELASTIC_RUN_ID", "x"}};
  const LaunchInfo info = detected(variables);
  EXPECT_EQ(info.launcher, "torchrun");
  EXPECT_EQ(info.rank, 3);
  EXPECT_EQ(info.world_size, 8);
  EXPECT_EQ(info.local_rank, 1);
  EXPECT_FALSE(info.is_one_host);
  EXPECT_TRUE(info.has_torch_store);
  EXPECT_EQ(info.master(), "node1:29500");
  variables["LOCAL_WORLD_SIZE"] = "8";
  EXPECT_TRUE(detected(variables).is_one_host);
  const std::string job = detected(variables).job;
  variables["TORCHELASTIC_RESTART_COUNT"] = "1";
  EXPECT_NE(detected(variables).job, job);
}

// Variables set by hand.
TEST(Launcher, TorchrunStyle) {
  EXPECT_TRUE(detected({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "127.0.0.1"}}).is_one_host);
  const LaunchInfo info = detected({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "node1"}});
  EXPECT_FALSE(info.is_one_host);
  EXPECT_FALSE(info.has_torch_store);
  EXPECT_GE(info.master_port, 15000);
  EXPECT_LT(info.master_port, 30000);
  EXPECT_EQ(detected({{"RANK", "0"}, {"WORLD_SIZE", "2"}}).missing, std::vector<std::string>{"MASTER_ADDR"});
}

TEST(Launcher, Mpi) {
  Variables variables = {
      {"OMPI_COMM_WORLD_RANK", "1"},       {"OMPI_COMM_WORLD_SIZE", "2"}, {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
      {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}, {"PMIX_NAMESPACE", "77"},      {"PMI_RANK", "9"}};
  const LaunchInfo info = detected(variables);
  EXPECT_EQ(info.launcher, "Open MPI");
  EXPECT_TRUE(info.is_one_host);
  EXPECT_TRUE(info.missing.empty());
  variables["OMPI_COMM_WORLD_LOCAL_SIZE"] = "1";
  EXPECT_EQ(detected(variables).missing, std::vector<std::string>{"MASTER_ADDR"});
  variables["MASTER_ADDR"] = "node1";
  EXPECT_EQ(detected(variables).master_port, port_of_job(info.job));
  const LaunchInfo mpich = detected({{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"MPI_LOCALNRANKS", "2"}});
  EXPECT_EQ(mpich.launcher, "MPICH");
  EXPECT_TRUE(mpich.is_one_host);
}

TEST(Launcher, Slurm) {
  // A shell inside an allocation, and the script of a batch job, are not started by srun.
  EXPECT_EQ(detected({{"SLURM_JOB_ID", "5"}, {"SLURM_NTASKS", "4"}, {"SLURM_PROCID", "0"}}).world_size, 1);
  Variables variables = {{"SLURM_JOB_ID", "5"},         {"SLURM_STEP_ID", "0"},
                         {"SLURM_NTASKS", "8"},         {"SLURM_STEP_NUM_TASKS", "4"},
                         {"SLURM_PROCID", "2"},         {"SLURM_LOCALID", "0"},
                         {"SLURM_STEP_NUM_NODES", "2"}, {"SLURM_STEP_NODELIST", "node[3-4]"}};
  const LaunchInfo info = detected(variables);
  EXPECT_EQ(info.launcher, "Slurm");
  EXPECT_EQ(info.rank, 2);
  EXPECT_EQ(info.world_size, 4);
  EXPECT_FALSE(info.is_one_host);
  EXPECT_EQ(info.master_host, "node3");
  EXPECT_EQ(info.master_port, port_of_job(info.job));
  variables["MASTER_PORT"] = "1234";
  EXPECT_EQ(detected(variables).master(), "node3:1234");
  variables["SLURM_STEP_NUM_NODES"] = "1";
  EXPECT_TRUE(detected(variables).is_one_host);
  EXPECT_EQ(first_slurm_host("a"), "a");
  EXPECT_EQ(first_slurm_host("gpu[07,9-12],b"), "gpu07");
  EXPECT_EQ(first_slurm_host("a,b[1-2]"), "a");
  EXPECT_THROW(first_slurm_host("a[1"), UserError);
}

TEST(Launcher, Kubernetes) {
  const LaunchInfo info =
      detected({{"JOB_COMPLETION_INDEX", "3"}, {"WORLD_SIZE", "4"}, {"MASTER_ADDR", "job-0.train"}});
  EXPECT_EQ(info.launcher, "Kubernetes");
  EXPECT_EQ(info.rank, 3);
  EXPECT_FALSE(info.is_one_host);
  EXPECT_EQ(detected({{"JOB_COMPLETION_INDEX", "3"}}).world_size, 1);
}

TEST(Launcher, OptimusLaunch) {
  const LaunchInfo info = detected({{"OPTIMUS_RANK", "1"},
                                    {"OPTIMUS_WORLD_SIZE", "4"},
                                    {"OPTIMUS_LOCAL_RANK", "1"},
                                    {"OPTIMUS_LOCAL_SIZE", "2"},
                                    {"MASTER_ADDR", "a"},
                                    {"MASTER_PORT", "7"},
                                    {"SLURM_PROCID", "0"},
                                    {"SLURM_STEP_NUM_TASKS", "2"}});
  EXPECT_EQ(info.launcher, "optimus launch");
  EXPECT_EQ(info.master(), "a:7");
  EXPECT_FALSE(info.is_one_host);
}

TEST(Launcher, Contradictions) {
  for (const Variables& variables :
       std::vector<Variables>{{{"RANK", "4"}, {"WORLD_SIZE", "4"}},
                              {{"RANK", "-1"}, {"WORLD_SIZE", "4"}},
                              {{"RANK", "0"}, {"WORLD_SIZE", "0"}},
                              {{"RANK", "x"}, {"WORLD_SIZE", "4"}},
                              {{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_PORT", "70000"}}})
    EXPECT_THROW(detected(variables), UserError);
}

TEST(Token, FromVariableAndFile) {
  const TemporaryFolder folder;
  EXPECT_FALSE(find_token(environment_of({}), {}));
  const std::string token = generate_token(), other = generate_token();
  EXPECT_EQ(token.size(), 32U);
  EXPECT_NE(token, other);
  EXPECT_EQ(find_token(environment_of({{"OPTIMUS_TOKEN", token}}), {})->text, token);
  folder.write("token", other + "\n");
  const Path file = folder / "token";
  ::chmod(file.c_str(), 0644);
  EXPECT_THROW(find_token(environment_of({}), file), UserError);
  ::chmod(file.c_str(), 0600);
  EXPECT_EQ(find_token(environment_of({{"OPTIMUS_TOKEN", token}}), file)->text, other);
  EXPECT_THROW(find_token(environment_of({}), folder / "none"), UserError);
  for (const char* bad : {"", "short", "with spaces in the middle", "sixteen letters\n!"})
    EXPECT_THROW(find_token(environment_of({{"OPTIMUS_TOKEN", bad}}), {}), UserError) << bad;
}

}  // namespace
}  // namespace optimus
