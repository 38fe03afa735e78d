// Makes system calls of another process fail, one at a time: the calls that a save consists of.
#ifndef PARAMSHARD_TESTS_SUPPORT_DISK_FAULTS_H_
#define PARAMSHARD_TESTS_SUPPORT_DISK_FAULTS_H_

#include <atomic>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace paramshard::test {

// Memory that the test and the process share.
struct DiskFaultsPage {
  std::atomic<int64_t> calls{0};  // since the last arming
  std::atomic<int64_t> at{0};     // the call that fails, from 1; 0: none, and calls are not counted
  std::atomic<int32_t> fault{0};  // a DiskFault
  std::atomic<bool> hit{false};   // it has come to that call, and the call was one that can fail so
};

enum class DiskFault : int32_t {
  kKill,   // the process ends with SIGKILL before the call
  kFull,   // ENOSPC, and nothing is done
  kError,  // EIO, likewise
  kShort,  // a write writes half of its bytes; other calls work
};

// Makes a process that is started with the variables of Environment(), and all its children, count their calls that
// open, create, write, reserve, sync, rename and delete below one folder, for as long as this object lives.
//
//   DiskFaults faults(DISK_FAULTS_LIBRARY, directory.path() + "/faults", saves.path());
//   ...  a daemon is started with faults.Environment(), and trains  ...
//   faults.Arm(3, DiskFault::kError);
//   ...  a save, whose third call is EIO  ...
//   faults.Disarm();
class DiskFaults {
 public:
  static constexpr char kVariable[] = "PARAMSHARD_TEST_DISK_FAULTS";
  static constexpr char kFolderVariable[] = "PARAMSHARD_TEST_DISK_FAULTS_BELOW";
  // No call is the one that fails.
  static constexpr int64_t kNever = INT64_MAX;

  // `library` is the path of the module disk_faults; `path` is a file to create; `folder` is absolute.
  DiskFaults(std::string library, std::string path, std::string folder);
  DiskFaults(const DiskFaults&) = delete;
  DiskFaults& operator=(const DiskFaults&) = delete;
  ~DiskFaults();

  std::vector<std::pair<std::string, std::string>> Environment() const {
    return {{"LD_PRELOAD", library_}, {kVariable, path_}, {kFolderVariable, folder_}};
  }
  // Makes the n-th call from now on fail, counted from 1; kNever: no call.
  void Arm(int64_t n, DiskFault fault);
  // Returns true if the fault has happened.
  bool Disarm();
  // Returns the number of calls since Arm().
  int64_t calls() const { return page_->calls; }

 private:
  const std::string library_, path_, folder_;
  DiskFaultsPage* page_;  // mapped
};

}  // namespace paramshard::test

#endif  // PARAMSHARD_TESTS_SUPPORT_DISK_FAULTS_H_
