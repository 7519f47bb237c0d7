#include "launch/rendezvous_file.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/temporary_folder.h"

namespace optimus::test {
namespace {

TEST(RendezvousFile, IsReadAndRemoved) {
  const TemporaryFolder folder;
  const Path path = folder / "optimus-1.json";
  {
    const RendezvousFile file(path, {4711, "a token"});
    const auto read = read_rendezvous_file(path);
    ASSERT_TRUE(read);
    EXPECT_EQ(read->port, 4711);
    EXPECT_EQ(read->token, "a token");
  }
  EXPECT_FALSE(std::filesystem::exists(path));
  EXPECT_FALSE(read_rendezvous_file(path));
}

TEST(RendezvousFile, FileOfLaterRunIsNotRemoved) {
  const TemporaryFolder folder;
  const Path path = folder / "optimus-1.json";
  auto earlier = std::make_unique<RendezvousFile>(path, RendezvousAddress{4711, "a token"});
  const RendezvousFile later(path, {4712, "another"});
  earlier.reset();
  ASSERT_TRUE(read_rendezvous_file(path));
  EXPECT_EQ(read_rendezvous_file(path)->port, 4712);
}

TEST(RendezvousFile, NextRunRemovesFileOfKilledProcess) {
  const TemporaryFolder folder;
  const Path left = folder / "optimus-1.json", alive = folder / "optimus-2.json";
  const pid_t child = ::fork();
  if (child == 0) {
    const RendezvousFile file(left, {4711, "a token"});
    ::_exit(0);  // as if killed: nothing is cleaned up
  }
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  ASSERT_TRUE(std::filesystem::exists(left));
  const RendezvousFile first(alive, {4712, "another"});
  EXPECT_FALSE(std::filesystem::exists(left));
  const RendezvousFile second(folder / "optimus-3.json", {4713, "a third"});
  EXPECT_TRUE(std::filesystem::exists(alive));
}

}  // namespace
}  // namespace optimus::test
