#include "launch/meeting_file.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/temporary_folder.h"

namespace optimus::test {
namespace {

TEST(MeetingFile, IsReadAndRemoved) {
  const TemporaryFolder folder;
  const Path path = folder / "optimus-1.json";
  {
    const MeetingFile file(path, {4711, "a token"});
    const auto read = read_meeting(path);
    ASSERT_TRUE(read);
    EXPECT_EQ(read->port, 4711);
    EXPECT_EQ(read->token, "a token");
  }
  EXPECT_FALSE(std::filesystem::exists(path));
  EXPECT_FALSE(read_meeting(path));
}

TEST(MeetingFile, OfALaterRunStays) {
  const TemporaryFolder folder;
  const Path path = folder / "optimus-1.json";
  auto earlier = std::make_unique<MeetingFile>(path, MeetingPlace{4711, "a token"});
  const MeetingFile later(path, {4712, "another"});
  earlier.reset();
  ASSERT_TRUE(read_meeting(path));
  EXPECT_EQ(read_meeting(path)->port, 4712);
}

TEST(MeetingFile, OfAKilledProcessIsRemovedByTheNext) {
  const TemporaryFolder folder;
  const Path left = folder / "optimus-1.json", alive = folder / "optimus-2.json";
  const pid_t child = ::fork();
  if (child == 0) {
    const MeetingFile file(left, {4711, "a token"});
    ::_exit(0);  // as if killed: nothing is cleaned up
  }
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  ASSERT_TRUE(std::filesystem::exists(left));
  const MeetingFile first(alive, {4712, "another"});
  EXPECT_FALSE(std::filesystem::exists(left));
  const MeetingFile second(folder / "optimus-3.json", {4713, "a third"});
  EXPECT_TRUE(std::filesystem::exists(alive));
}

}  // namespace
}  // namespace optimus::test
