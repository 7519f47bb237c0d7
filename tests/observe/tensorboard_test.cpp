// Bytes of event files, against published CRC32C vectors and records that TensorBoard's own writer produced.
// tests/parity/tensorboard_parity.py checks that TensorBoard reads our files.
#include "observe/tensorboard.h"

#include <gtest/gtest.h>

#include "base/failing_file_system.h"
#include "base/temporary_folder.h"

namespace optimus {
namespace {

std::string hex(std::string_view bytes) {
  std::string result;
  for (const char byte : bytes) result += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  return result;
}

TEST(TensorBoard, Crc32cOfRfc3720) {
  EXPECT_EQ(crc32c(""), 0U);
  EXPECT_EQ(crc32c("123456789"), 0xe3069283U);
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8a9136aaU);
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62a8ab43U);
  std::string ascending;
  for (char byte = 0; byte < 32; ++byte) ascending += byte;
  EXPECT_EQ(crc32c(ascending), 0x46dd794eU);
}

TEST(TensorBoard, ScalarRecordMatchesTensorBoard) {
  const Scalar scalar{"train/loss", 2.5};
  EXPECT_EQ(hex(tfrecord(scalar_event(Seconds(1.5), 300, {&scalar, 1}))),
            "2100000000000000017becf609000000000000f83f10ac022a130a110a0a747261696e2f6c6f737315"
            "00002040b4ca3a3b");
}

TEST(TensorBoard, FileBeginsWithVersionAndStart) {
  const TemporaryFolder folder;
  RealFileSystem files;
  ASSERT_TRUE(TensorBoardFile::create(files, folder.path(), Seconds(1.5), 7));
  const std::string name = folder.names().at(0);
  EXPECT_EQ(name.rfind("events.out.tfevents.1.", 0), 0U) << name;
  EXPECT_EQ(hex(*read_file(folder / name)),
            "1800000000000000a37f4b2209000000000000f83f1a0d627261696e2e4576656e743a322a28646c"
            "0f000000000000006d532b0909000000000000f83f10083a02080195"
            "71c7d1");
}

TEST(TensorBoard, TwoFilesInASecondHaveTwoNames) {
  const TemporaryFolder folder;
  RealFileSystem files;
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(TensorBoardFile::create(files, folder.path(), Seconds(1000), 0));
  EXPECT_EQ(folder.names().size(), 3U);
}

TEST(TensorBoard, FullDiskIsReportedOnceWithFileName) {
  const TemporaryFolder folder;
  EXPECT_FALSE(
      TensorBoardFile::create(*std::make_unique<FailingFileSystem>(0), folder.path(), Seconds(1), 0));
  FailingFileSystem files(3);  // create, the header, one step
  Outcome<TensorBoardFile> board = TensorBoardFile::create(files, folder.path(), Seconds(1), 0);
  ASSERT_TRUE(board);
  EXPECT_TRUE(board->append({.step = 1}, Seconds(2)));
  const Outcome<void> failed = board->append({.step = 2}, Seconds(3));
  ASSERT_FALSE(failed);
  EXPECT_NE(failed.error().why.find("events.out.tfevents.1."), std::string::npos) << failed.error().why;
  EXPECT_TRUE(board->append({.step = 3}, Seconds(4)));
}

}  // namespace
}  // namespace optimus
