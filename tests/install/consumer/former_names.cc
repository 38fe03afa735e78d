// Headers by the paths that they had before, which forward for one version.

#include "client/client.h"
#include "proto/model/model_spec.h"
#include "proto/model/phase.h"
#include "proto/model/tensor_kind.h"

int main() { return paramshard::ModelSpec{.name = "m"}.name == "m" ? 0 : 1; }
