// Atomic writes leave either the old or the new file, no matter which call fails.
#include "base/file.h"

#include <gtest/gtest.h>

#include "base/failing_file_system.h"
#include "base/temporary_folder.h"

namespace optimus {
namespace {

TEST(File, WritesAndReadsBack) {
  const TemporaryFolder folder;
  RealFileSystem files;
  std::string content(3 << 20, 'x');
  content += "end";
  ASSERT_TRUE(write_atomically(files, folder / "a", content));
  EXPECT_EQ(*read_file(folder / "a"), content);
  EXPECT_EQ(folder.names(), std::vector<std::string>{"a"});
  const auto mapped = MappedFile::open(folder / "a");
  ASSERT_TRUE(mapped);
  EXPECT_EQ(mapped->bytes().size(), content.size());
}

TEST(File, FailedWriteKeepsOldFile) {
  // The calls are create, write, sync, rename and the sync of the folder. Each of them fails once.
  for (int calls = 0; calls < 5; ++calls) {
    const TemporaryFolder folder;
    folder.write("a", "old");
    FailingFileSystem files(calls);
    const Outcome<void> done = write_atomically(files, folder / "a", "new");
    ASSERT_TRUE(files.has_failed());
    EXPECT_FALSE(done);
    EXPECT_NE(done.error().why.find("No space left"), std::string::npos);
    const std::string now = *read_file(folder / "a");
    EXPECT_TRUE(now == "old" || now == "new") << now;
    if (calls < 4) {
      EXPECT_EQ(now, "old");
    }
    EXPECT_EQ(folder.names(), std::vector<std::string>{"a"});
  }
}

TEST(File, MessagesNameTheFile) {
  const TemporaryFolder folder;
  EXPECT_NE(read_file(folder / "absent").error().why.find("absent: No such file"), std::string::npos);
  EXPECT_NE(read_file(folder.path()).error().why.find("expected a file, got a folder"), std::string::npos);
  folder.write("big", "12345");
  EXPECT_NE(read_file(folder / "big", Bytes(4)).error().why.find("too large"), std::string::npos);
  RealFileSystem files;
  EXPECT_NE(write_atomically(files, folder / "no/such/place", "x").error().why.find("no/such/place"),
            std::string::npos);
}

TEST(File, InputThatIsNoFileIsAMistakeOfTheUser) {
  const TemporaryFolder folder;
  folder.write("big", "12345");
  EXPECT_EQ(read_input_file(folder / "big"), "12345");
  EXPECT_THROW(read_input_file(folder / "absent"), UserError);
  EXPECT_THROW(read_input_file(folder.path()), UserError);
  EXPECT_THROW(read_input_file(folder / "big", Bytes(4)), UserError);
  // A loop of links cannot be resolved, which says nothing about the file.
  std::filesystem::create_symlink("loop", folder / "loop");
  EXPECT_THROW(read_input_file(folder / "loop"), RuntimeFailure);
}

TEST(File, FailuresAreThrownAsRuntimeFailures) {
  const TemporaryFolder folder;
  EXPECT_THROW(value_or_throw(read_file(folder / "absent")), RuntimeFailure);
  EXPECT_THROW(value_or_throw(read_file(folder / "absent")), ReportedError);
}

TEST(File, EmptyFilesMap) {
  const TemporaryFolder folder;
  folder.write("empty", "");
  EXPECT_TRUE(MappedFile::open(folder / "empty")->bytes().empty());
  EXPECT_EQ(*read_file(folder / "empty"), "");
}

}  // namespace
}  // namespace optimus
