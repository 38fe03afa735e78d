// Imports of files of PyTorch's HuggingFaceStorageWriter(save_distributed=True) into a real daemon.
// PARAMSHARD_TEST_PYTHON names the interpreter that has PyTorch.
#include <sys/wait.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "client/client.h"
#include "client/ctl/ctl.h"
#include "gmock/gmock.h"
#include "nlohmann/json.hpp"
#include "tests/common/checkpoint/saved_model.h"
#include "tests/support/daemon_process.h"
#include "tests/support/environment.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temporary_directory.h"

namespace paramshard::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int kNotInstalled = 77;
constexpr int kRanks = 2;  // of the daemon; PyTorch has three
constexpr char kModel[] = "imported";

std::string Python() {
  const char* const python = std::getenv("PARAMSHARD_TEST_PYTHON");
  return python == nullptr ? PARAMSHARD_PYTHON : python;
}

// All elements of each parameter, as they lie in memory.
using Masters = std::map<std::string, std::string>;

class TorchWriterInteropTest : public testing::Test {
 protected:
  // The script's exit code.
  int Write(const std::string& arguments) const {
    const int status =
        std::system(absl::StrCat("'", Python(), "' ", PARAMSHARD_SOURCE_DIR, "/tests/interop/torch_writer.py ",
                                 folder(), " ", expected_path(), " ", arguments)
                        .c_str());
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

  // Starts a daemon and creates the model that the script has described.
  void CreateModel() {
    absl::StatusOr<DaemonProcess> daemon =
        DaemonProcess::Start(Program(PARAMSHARDD), sockets_.path(), DeviceFlags(kRanks));
    ASSERT_OK(daemon.status());
    daemon_.emplace(*std::move(daemon));
    ModelSpec spec{.name = kModel};
    UnitSpec unit{.name = "all"};
    const nlohmann::json expected = Expected();
    for (const auto& [name, tensor] : expected.items()) {
      ParameterSpec parameter{.name = name};
      parameter.shape = tensor["shape"].get<std::vector<int64_t>>();
      unit.parameters.push_back(parameter);
    }
    spec.units = {unit};
    ASSERT_OK_AND_ASSIGN(Client client, Client::Connect({.socket_dir = sockets_.path()}));
    ASSERT_OK(client.CreateModel(spec));
  }

  nlohmann::json Expected() const { return nlohmann::json::parse(checkpoint::ReadText(expected_path())); }

  Masters ExpectedMasters() const {
    Masters masters;
    const nlohmann::json expected = Expected();
    for (const auto& [name, tensor] : expected.items()) {
      masters[name] = absl::HexStringToBytes(tensor["data"].get<std::string>());
    }
    return masters;
  }

  Masters ImportedMasters() const {
    Masters masters;
    absl::StatusOr<Client> client = Client::Connect({.socket_dir = sockets_.path()});
    EXPECT_OK(client.status());
    EXPECT_OK(client->Export(kModel, {}, [&](const ExportedExtent& extent) {
      const size_t bytes = extent.values.size() * sizeof(float);
      const size_t first = extent.rows == 0 ? 0 : extent.first_row * (bytes / extent.rows);
      std::string& master = masters[extent.parameter];
      master.resize(std::max(master.size(), first + bytes));
      std::memcpy(master.data() + first, extent.values.data(), bytes);
      return absl::OkStatus();
    }));
    return masters;
  }

  // Runs `paramshardctl import`; returns its exit code, and sets `said` to its output.
  int Import(std::string& said) const {
    const std::string socket_dir = absl::StrCat("--socket-dir=", sockets_.path());
    const std::string path = folder();
    const char* const arguments[] = {"paramshardctl", socket_dir.c_str(), "import", kModel, path.c_str()};
    std::ostringstream out;
    const int code = ctl::RunCtl(std::size(arguments), arguments, {out, out});
    said = out.str();
    return code;
  }

  std::string folder() const { return files_.path() + "/saved"; }
  std::string expected_path() const { return files_.path() + "/expected.json"; }

 private:
  const TemporaryDirectory files_;
  const TemporaryDirectory sockets_;
  std::optional<DaemonProcess> daemon_;
};

TEST_F(TorchWriterInteropTest, EveryByteIsImported) {
  if (Python().empty()) GTEST_SKIP() << "there is no Python";
  const int code = Write("");
  if (code == kNotInstalled) GTEST_SKIP() << Python() << " has no safetensors, or no torch";
  ASSERT_EQ(code, 0);
  ASSERT_NO_FATAL_FAILURE(CreateModel());
  ASSERT_NE(ImportedMasters(), ExpectedMasters());
  std::string said;
  EXPECT_EQ(Import(said), 0) << said;
  EXPECT_THAT(said, HasSubstr("7 parameters imported"));
  // The masters are long; which one differs is said by its name.
  Masters imported = ImportedMasters();
  for (const auto& [name, master] : ExpectedMasters()) EXPECT_TRUE(imported[name] == master) << name;
}

TEST_F(TorchWriterInteropTest, TensorsThatAreCutOnColumnsAreNamed) {
  if (Python().empty()) GTEST_SKIP() << "there is no Python";
  const int code = Write("columns");
  if (code == kNotInstalled) GTEST_SKIP() << Python() << " has no safetensors, or no torch";
  ASSERT_EQ(code, 0);
  ASSERT_NO_FATAL_FAILURE(CreateModel());
  const Masters before = ImportedMasters();
  std::string said;
  EXPECT_NE(Import(said), 0);
  EXPECT_THAT(said, AllOf(HasSubstr("INVALID_ARGUMENT"), HasSubstr("half.weight")));
  EXPECT_TRUE(ImportedMasters() == before);
}

}  // namespace
}  // namespace paramshard::test
