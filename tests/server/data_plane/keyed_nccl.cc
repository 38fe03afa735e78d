// An NCCL as LoadNccl sees one, which moves nothing. With PARAMSHARD_TEST_KEYS it takes keys, as 2.32 does, and shows
// them in the environment.
#include <cstdlib>
#include <cstring>

extern "C" {

int ncclGetVersion(int* version) {
#ifdef PARAMSHARD_TEST_KEYS
  *version = 23203;
#else
  *version = 22809;
#endif
  return 0;
}
const char* ncclGetErrorString(int) { return "an error"; }
const char* ncclGetLastError(void*) { return "the reason"; }
int ncclGetUniqueId(void*) { return 0; }
int ncclCommInitRankConfig() { return 3; }
int ncclCommGetAsyncError() { return 3; }
int ncclCommAbort() { return 3; }
int ncclGroupStart() { return 3; }
int ncclGroupEnd() { return 3; }
int ncclSend() { return 3; }
int ncclRecv() { return 3; }

#ifdef PARAMSHARD_TEST_KEYS
struct Config {
  size_t size;
  unsigned int magic;
  unsigned int version;
  int mode;
  const char* psk;
};

int ncclSetEncryption(const Config* config) {
  const bool is_known = config->size == sizeof(Config) && config->magic == 0xcafebeefu && config->version == 23203;
  if (!is_known || config->mode != 1 || std::strlen(config->psk) < 32) return 4;
  return setenv("PARAMSHARD_TEST_NCCL_KEY", config->psk, 1);
}
#endif
}
