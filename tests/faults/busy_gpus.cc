// Keeps GPUs busy until it is killed: campaigns run beside it.
//
// Usage: busy_gpus GPU...

#include <cstdlib>
#include <iostream>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "tests/faults/busy_gpu.h"

int main(int argc, char** argv) {
  std::vector<std::thread> threads;
  for (int i = 1; i < argc; ++i) {
    int gpu = 0;
    if (!absl::SimpleAtoi(argv[i], &gpu)) {
      std::cerr << "busy_gpus: want indices of GPUs, got '" << argv[i] << "'\n";
      return 2;
    }
    threads.emplace_back([gpu] {
      const auto on_busy = [gpu] { std::cout << "GPU " << gpu << " is busy" << std::endl; };
      std::cerr << "busy_gpus: " << paramshard::test::KeepBusy(gpu, on_busy) << std::endl;
      std::_Exit(1);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return 0;
}
