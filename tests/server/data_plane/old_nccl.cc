// An NCCL that is too old.
extern "C" int ncclGetVersion(int* version) {
  *version = 21805;
  return 0;
}
