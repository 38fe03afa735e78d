#ifndef PARAMSHARD_CLIENT_EXAMPLES_VALUES_H_
#define PARAMSHARD_CLIENT_EXAMPLES_VALUES_H_

#include <vector>

namespace paramshard::examples {

// The parameters of one unit, or their gradients: row-major, one vector for each parameter, in the unit's order.
using Values = std::vector<std::vector<float>>;

}  // namespace paramshard::examples

#endif  // PARAMSHARD_CLIENT_EXAMPLES_VALUES_H_
