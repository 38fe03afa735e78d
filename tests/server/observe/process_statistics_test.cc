#include "server/observe/process_statistics.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <map>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/shared_memory/file_descriptor.h"
#include "gtest/gtest.h"

namespace paramshard::server {
namespace {

std::map<Metric, double> Values() {
  std::map<Metric, double> values;
  for (const MetricSample& sample : ProcessSamples()) values[sample.metric] = sample.value;
  return values;
}

TEST(ProcessStatisticsTest, TheKernelTellsAll) {
  std::map<Metric, double> values = Values();
  EXPECT_EQ(values.size(), 6);
  const auto page_size = static_cast<double>(sysconf(_SC_PAGESIZE));
  EXPECT_GE(values[Metric::kProcessResidentMemory], page_size);
  EXPECT_GT(values[Metric::kProcessVirtualMemory], values[Metric::kProcessResidentMemory]);
  rlimit limit{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  EXPECT_EQ(values[Metric::kProcessMaxFds], static_cast<double>(limit.rlim_cur));
}

TEST(ProcessStatisticsTest, DescriptorsAreCounted) {
  const double before = Values()[Metric::kProcessOpenFds];
  const wire::FileDescriptor opened(open("/dev/null", O_RDONLY | O_CLOEXEC));
  ASSERT_TRUE(opened.valid());
  EXPECT_EQ(Values()[Metric::kProcessOpenFds], before + 1);
}

TEST(ProcessStatisticsTest, TheProcessWasStartedBeforeNowAndAfterTheMachine) {
  const double start = Values()[Metric::kProcessStartTime];
  // The kernel rounds the time of its own start to seconds.
  EXPECT_LE(start, absl::ToDoubleSeconds(absl::Now() - absl::UnixEpoch()) + 2);
  EXPECT_GT(start, 0);
}

TEST(ProcessStatisticsTest, WorkTakesTime) {
  const double before = Values()[Metric::kProcessCpu];
  volatile uint64_t sum = 0;
  // Until the kernel has counted a tick, which may take long on a busy machine.
  while (Values()[Metric::kProcessCpu] == before) {
    for (int i = 0; i < 100'000; ++i) sum = sum + i;
  }
  EXPECT_GT(Values()[Metric::kProcessCpu], before);
}

}  // namespace
}  // namespace paramshard::server
