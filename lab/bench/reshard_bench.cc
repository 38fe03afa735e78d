// Time of a restore that cuts a model differently from the save, relative to a restore that does not.
//
// Usage: reshard_bench BLOCKS TIMES SAVED:RESTORED... Worlds are a kind of devices and how many of one daemon:
// cpu8:cuda1 is what eight cpu devices have saved, restored by one GPU. Each pair is measured in turns with a restore
// of what the second world has saved itself. Checkpoints lie in a folder of $PARAMSHARD_BENCH_DIR (without: the folder
// for temporary files), which needs 12 bytes a parameter for each world that saves; a block has 218 million.

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "client/client.h"
#include "client/ctl/admin_client.h"
#include "common/rpc/durations.h"
#include "lab/bench/arguments.h"
#include "lab/bench/block_spec.h"
#include "lab/bench/or_die.h"
#include "tests/support/daemon_process.h"
#include "tests/support/environment.h"

namespace paramshard {
namespace {

using ctl::AdminClient;

constexpr char kModel[] = "blocks";
constexpr absl::Duration kLongest = absl::Minutes(10);

// Devices of one daemon, as written on the command line.
struct Devices {
  std::string kind;
  int count = 0;

  std::string name() const { return absl::StrCat(kind, count); }
};

Devices DevicesOf(const std::string& word) {
  for (const std::string kind : {"cpu", "cuda"}) {
    Devices devices{.kind = kind};
    if (!absl::StartsWith(word, kind)) continue;
    if (absl::SimpleAtoi(word.substr(kind.size()), &devices.count) && devices.count > 0) return devices;
  }
  EndWithUsage(absl::StrCat("want devices such as cpu8 or cuda1, got '", word, "'"));
}

struct Pair {
  Devices saved, restored;
};

Pair PairOf(const std::string& word) {
  const std::vector<std::string> both = absl::StrSplit(word, ':');
  if (both.size() != 2) EndWithUsage(absl::StrCat("want SAVED:RESTORED, got '", word, "'"));
  return {.saved = DevicesOf(both[0]), .restored = DevicesOf(both[1])};
}

// A daemon with a model without trainers.
class Daemon {
 public:
  Daemon(const Devices& devices, const std::string& save_dir, int blocks) {
    std::vector<std::string> flags = {"--save-dir=" + save_dir, "--save-on-drain=off"};
    for (int i = 0; i < devices.count; ++i) flags.push_back(absl::StrCat("--device=", devices.kind, ":", i));
    process_.push_back(
        OrDie(test::DaemonProcess::Start(test::Program(PARAMSHARDD), sockets_.path(), flags), "start a daemon"));
    Client client = OrDie(Client::Connect({.socket_dir = sockets_.path()}), "connect");
    OrDie(client.CreateModel(BlockSpec(kModel, blocks)).status(), "create");
  }

  AdminClient Admin() const {
    return OrDie(AdminClient::Connect({.socket_dir = sockets_.path(), .stream_timeout = kLongest}), "connect");
  }

 private:
  test::TemporaryDirectory sockets_;
  std::vector<test::DaemonProcess> process_;  // one
};

// The path of the checkpoint.
std::string Save(const Daemon& daemon) {
  AdminClient admin = daemon.Admin();
  v1::SaveModelRequest request;
  request.set_model(kModel);
  request.set_wait(true);
  v1::SaveModelResponse response;
  OrDie(admin.Call(&AdminClient::Stub::SaveModel, request, response, ctl::RpcLength::kLong), "save");
  if (response.save().has_error()) OrDie(absl::AbortedError(response.save().error().text()), "save");
  return response.save().path();
}

struct Restore {
  double seconds = 0;
  double gigabytes = 0;
};

Restore RestoreFrom(const Daemon& daemon, const std::string& checkpoint) {
  AdminClient admin = daemon.Admin();
  v1::RestoreModelRequest request;
  request.set_model(kModel);
  request.mutable_source()->set_checkpoint(checkpoint);
  Restore restore;
  OrDie(admin.ReadAll<v1::RestoreModelRequest, v1::RestoreModelResponse>(
            &AdminClient::Stub::RestoreModel, request,
            [&](const v1::RestoreModelResponse& response) {
              if (!response.has_summary()) return;
              restore.seconds = absl::ToDoubleSeconds(DurationFromProto(response.summary().elapsed()));
              restore.gigabytes = static_cast<double>(response.summary().size_bytes()) / 1e9;
            }),
        "restore");
  return restore;
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void Compare(const Pair& pair, int blocks, int times, const std::string& save_dir,
             const std::map<std::string, std::string>& checkpoints) {
  const Daemon daemon(pair.restored, save_dir, blocks);
  std::vector<double> same, other, ratios;
  double gigabytes = 0;
  for (int i = 0; i < times; ++i) {
    same.push_back(RestoreFrom(daemon, checkpoints.at(pair.restored.name())).seconds);
    const Restore restore = RestoreFrom(daemon, checkpoints.at(pair.saved.name()));
    other.push_back(restore.seconds);
    ratios.push_back(restore.seconds / same.back());
    gigabytes = restore.gigabytes;
  }
  const auto [least, most] = std::minmax_element(ratios.begin(), ratios.end());
  std::cout << absl::StrFormat("%s to %s: %.2f GB in %.2f s; %s to %s %.2f s; ratio median %.3f, %.3f to %.3f of %d\n",
                               pair.saved.name(), pair.restored.name(), gigabytes, Median(other), pair.restored.name(),
                               pair.restored.name(), Median(same), Median(ratios), *least, *most, times)
            << std::flush;
}

void Main(int blocks, int times, const std::vector<Pair>& pairs) {
  const char* const root = std::getenv("PARAMSHARD_BENCH_DIR");
  const std::string folder =
      absl::StrCat(root != nullptr ? root : std::filesystem::temp_directory_path().string(), "/reshard-", getpid());
  std::map<std::string, std::string> checkpoints;  // by the name of the devices that saved it
  const auto save = [&](const Devices& devices) {
    if (checkpoints.contains(devices.name())) return;
    const std::string save_dir = absl::StrCat(folder, "/", devices.name());
    std::filesystem::create_directories(save_dir);
    std::filesystem::permissions(save_dir, std::filesystem::perms::owner_all);
    checkpoints[devices.name()] = Save(Daemon(devices, save_dir, blocks));
  };
  for (const Pair& pair : pairs) {
    save(pair.saved);
    save(pair.restored);
  }
  for (const Pair& pair : pairs)
    Compare(pair, blocks, times, absl::StrCat(folder, "/", pair.restored.name()), checkpoints);
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace paramshard

int main(int argc, char** argv) {
  int blocks = 1, times = 3;
  paramshard::ReadCounts(std::min(argc, 3), argv, {{"BLOCKS", &blocks}, {"TIMES", &times}});
  std::vector<paramshard::Pair> pairs;
  for (int i = 3; i < argc; ++i) pairs.push_back(paramshard::PairOf(argv[i]));
  if (pairs.empty()) pairs = {paramshard::PairOf("cpu1:cpu8"), paramshard::PairOf("cpu8:cpu3")};
  paramshard::Main(blocks, times, pairs);
}
