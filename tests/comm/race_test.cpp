// Only in the build with the thread sanitizer: a rank that writes to its tensor before wait() has returned is
// reported, and the same code without that write is not.
#include <gtest/gtest.h>

#include "comm/race_detector.h"

#ifdef OPTIMUS_HAS_RACE_DETECTOR

#include <cstdio>
#include <cstdlib>
#include <string>

#include "comm/comm_checks.h"

namespace optimus::test {
namespace {

// Rank 1 does all the work while rank 0 sleeps, which has started the operation and not waited for it; then
// rank 0 writes, or not.
void sum_and_write(bool writes_too_early) {
  run_ranks(Backend::threads, 2, [&](std::unique_ptr<Comm> comm) {
    must(comm->connect(0, {{kWorld}}, soon()));
    const at::Tensor row = row_of(at::kFloat, 1, comm->rank(), 0, 1000);
    const auto sum = comm->all_reduce(kWorld, row, ReduceOp::sum, "numbers");
    if (comm->rank() == 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(300));
      if (writes_too_early) row.data_ptr<float>()[999] = 1;
    }
    must(sum->wait(soon()));
    if (comm->rank() == 0) row.data_ptr<float>()[999] = 2;
  });
}

TEST(Race, Writer) {
  const char* const how = std::getenv("OPTIMUS_RACE");
  if (how == nullptr) GTEST_SKIP() << "started by the next test";
  sum_and_write(std::string(how) == "yes");
}

std::pair<int, std::string> output_of(const std::string& how) {
  const std::string command =
      "OPTIMUS_RACE=" + how + " /proc/" + std::to_string(::getpid()) + "/exe --gtest_filter=Race.Writer 2>&1";
  std::FILE* const pipe = ::popen(command.c_str(), "r");
  std::string all;
  for (int c = std::fgetc(pipe); c != EOF; c = std::fgetc(pipe)) all.push_back(static_cast<char>(c));
  return {::pclose(pipe), all};
}

TEST(Race, IsCaught) {
  const auto [code, report] = output_of("yes");
  EXPECT_NE(code, 0);
  EXPECT_NE(report.find("ThreadSanitizer: data race"), std::string::npos) << report;
  const auto [clean_code, clean_report] = output_of("no");
  EXPECT_EQ(clean_code, 0) << clean_report;
  EXPECT_EQ(clean_report.find("ThreadSanitizer"), std::string::npos) << clean_report;
}

}  // namespace
}  // namespace optimus::test

#endif
