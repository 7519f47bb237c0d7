#include "elastic/memory_level.h"

#include <gtest/gtest.h>

#include "base/temporary_folder.h"

namespace optimus::test {
namespace {

struct MemoryLevelTest : testing::Test {
  MemoryLevelTest() {
    std::filesystem::create_directories(run);
    std::filesystem::create_directories(base);
  }
  TemporaryFolder folder;
  const Path run = folder / "run", base = folder / "shared";
  RealFileSystem files;
};

TEST_F(MemoryLevelTest, IsCreatedOnceAndRemoved) {
  EXPECT_FALSE(find_memory_level(run));
  const Path made = make_memory_level(files, run, base, {Bytes(1000)});
  EXPECT_EQ(made.parent_path(), base);
  EXPECT_EQ(make_memory_level(files, run, base, {Bytes(1000)}), made);
  EXPECT_EQ(find_memory_level(run), made);
  std::filesystem::create_directories(made / "checkpoints" / "step-3");
  ASSERT_TRUE(remove_memory_level(files, run));
  EXPECT_FALSE(find_memory_level(run));
  EXPECT_TRUE(std::filesystem::is_empty(base));
  EXPECT_TRUE(std::filesystem::is_empty(run));
  EXPECT_TRUE(remove_memory_level(files, run));  // of a run without a memory level
}

TEST_F(MemoryLevelTest, CopyOfRunDoesNotShareMemory) {
  const Path made = make_memory_level(files, run, base, {Bytes(1000)});
  std::filesystem::copy(run, folder / "copy");
  EXPECT_FALSE(find_memory_level(folder / "copy"));
  ASSERT_TRUE(remove_memory_level(files, folder / "copy"));
  EXPECT_TRUE(std::filesystem::exists(made));
}

TEST_F(MemoryLevelTest, RejectsFolderOfAnotherOwner) {
  const Path made = make_memory_level(files, run, base, {Bytes(1000)});
  std::filesystem::permissions(made,
                               std::filesystem::perms::all);  // simulates a world-writable folder
  EXPECT_FALSE(find_memory_level(run));
  std::filesystem::permissions(made, std::filesystem::perms::owner_all);
  EXPECT_TRUE(find_memory_level(run));
}

TEST_F(MemoryLevelTest, RejectsFolderWithoutSpace) {
  EXPECT_THROW(make_memory_level(files, run, base, {Bytes(std::int64_t{1} << 60)}), UserError);
  EXPECT_THROW(make_memory_level(files, run, folder / "nothing", {Bytes(1)}), RuntimeFailure);
  EXPECT_TRUE(std::filesystem::is_empty(base));
}

}  // namespace
}  // namespace optimus::test
