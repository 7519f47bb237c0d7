// Rendezvous of ranks that a launcher started, as threads of this program; the line about a failed rank; the
// file through which ranks on one machine find the store.
#include "launch/rendezvous.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <future>
#include <thread>

#include "base/temporary_folder.h"
#include "launch/rendezvous_file.h"
#include "rundir/failure_line.h"

namespace optimus::test {
namespace {

RendezvousOptions rendezvous_options(int rank, int size, const std::string& job) {
  RendezvousOptions options;
  options.launch = {.launcher = "a test", .rank = rank, .world_size = size, .local_rank = rank};
  options.launch.job = job;
  options.timeout = Seconds(20);
  return options;
}

std::vector<std::future<RendezvousResult>> join_others(int size, const std::string& job) {
  std::vector<std::future<RendezvousResult>> others;
  for (int rank = 1; rank < size; ++rank)
    others.push_back(
        std::async(std::launch::async, [=] { return join_rendezvous(rendezvous_options(rank, size, job)); }));
  return others;
}

TEST(Rendezvous, OtherRanksReceiveSettingsOfRankZero) {
  for (const int size : {2, 5}) {
    const std::string job = generate_token();
    auto others = join_others(size, job);  // they may arrive before rank 0
    Rendezvous first(rendezvous_options(0, size, job));
    EXPECT_EQ(first.wait_for_others([](const std::string&) {}).size(), static_cast<std::size_t>(size));
    const RendezvousResult own = first.send_join_replies({{"steps", 7}});
    for (auto& other : others) {
      const RendezvousResult joined = other.get();
      EXPECT_EQ(joined.settings["steps"], 7);
      EXPECT_EQ(joined.prefix, own.prefix);
      EXPECT_EQ(joined.ranks.size(), static_cast<std::size_t>(size));
      EXPECT_EQ(joined.ranks[1].address, "127.0.0.1");
      EXPECT_EQ(joined.ranks[1].local_rank, 1);
      EXPECT_TRUE(joined.store->set("x", "y"));
    }
  }
}

TEST(Rendezvous, RefusalReachesAllRanks) {
  const std::string job = generate_token();
  auto others = join_others(3, job);
  Rendezvous first(rendezvous_options(0, 3, job));
  first.refuse("no data");
  for (auto& other : others) EXPECT_THROW(other.get(), RankRefused);
}

TEST(Rendezvous, NamesMissingRanks) {
  RendezvousOptions options = rendezvous_options(0, 3, generate_token());
  options.timeout = Seconds(0.1);
  Rendezvous first(options);
  const std::string why = message_of([&] { first.wait_for_others([](const std::string&) {}); });
  EXPECT_NE(why.find("1 of 3 ranks have joined; missing: 1, 2"), std::string::npos) << why;
  RendezvousOptions other = rendezvous_options(1, 3, generate_token());
  other.timeout = Seconds(0.1);
  EXPECT_NE(message_of([&] { join_rendezvous(other); }).find("did not find rank 0"), std::string::npos);
}

TEST(Rendezvous, SeveralHostsNeedAToken) {
  RendezvousOptions options = rendezvous_options(1, 2, generate_token());
  options.launch.is_one_host = false, options.launch.master_host = "127.0.0.1";
  EXPECT_NE(message_of([&] { join_rendezvous(options); }).find("OPTIMUS_TOKEN"), std::string::npos);
  options.launch.missing = {"MASTER_ADDR"};
  EXPECT_NE(message_of([&] { join_rendezvous(options); }).find("MASTER_ADDR"), std::string::npos);
}

TEST(RendezvousFile, IsReadableOnlyByUser) {
  const TemporaryFolder folder;
  const Path path = folder / "meeting";
  {
    const RendezvousFile file(path, {1234, "secret"});
    struct stat about {};
    ASSERT_EQ(::stat(path.c_str(), &about), 0);
    EXPECT_EQ(about.st_mode & 0777, 0600U);
    EXPECT_EQ(read_rendezvous_file(path)->port, 1234);
    EXPECT_EQ(read_rendezvous_file(path)->token, "secret");
  }
  EXPECT_FALSE(read_rendezvous_file(path));
  for (const char* bad : {"", "x", "{}", R"({"port": 0, "token": "a"})", R"({"port": 1})"}) {
    folder.write("meeting", bad);
    EXPECT_FALSE(read_rendezvous_file(path)) << bad;
  }
}

WorkerReport report_with(WorkerReport::End end, const std::string& why = "", std::vector<int> missing = {}) {
  return {end, why, std::move(missing), {}};
}

TEST(FailureLine, NamesTheCause) {
  using End = WorkerReport::End;
  const auto ends_with_reports = [](std::vector<std::optional<WorkerReport>> reports) {
    std::vector<RankOutcome> ends;
    for (std::size_t rank = 0; rank < reports.size(); ++rank)
      ends.push_back({fmt::format("rank {}", rank), fmt::format("log-{}", rank), reports[rank]});
    return ends;
  };
  const auto lost = report_with(End::lost, "no answer", {2});
  const auto killed = ends_with_reports({lost, lost, std::nullopt});
  EXPECT_EQ(failure_line(killed), "rank 2 does not respond; its log is log-2; rank 0 reported: no answer");
  EXPECT_TRUE(have_all_reported(killed));
  const auto failed = ends_with_reports({lost, report_with(End::failed, "disk full"), std::nullopt});
  EXPECT_EQ(failure_line(failed), "rank 1: disk full; rank 0 reported: no answer");
  // Rank 1 only lost others; rank 2 is the one that did not report.
  const auto both = ends_with_reports(
      {report_with(End::lost, "closed", {1, 2}), report_with(End::lost, "closed", {2}), {}});
  EXPECT_EQ(failure_line(both).substr(0, 6), "rank 2");
  const auto silent = ends_with_reports({report_with(End::lost, "rank 1 is gone"), std::nullopt});
  EXPECT_EQ(failure_line(silent).substr(0, 36), "rank 1 ended without a report; its l");
  EXPECT_FALSE(have_all_reported(silent));
}

}  // namespace
}  // namespace optimus::test
