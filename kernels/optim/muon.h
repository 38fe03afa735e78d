// The phases of Muon's step that go element by element, besides the master's, which is a FusedStep() with the
// orthogonalized update as its gradient.
//
//   StepMuonMomentum(step, gradient, old_momentum, momentum, rows, cols);
//   MakeMuonUpdate(step, gradient, momentum, rows, cols, update);
//   orthogonalizer.Run(iteration, matrices_of_update);
//   FusedStep(step, {update, GradientType::kBF16}, state, rows, cols, ...);
//
// The first two can be repeated for any rows as long as the gradient and either momentum are there: the update of a
// matrix that is half stepped has the same bytes.

#ifndef PARAMSHARD_KERNELS_OPTIM_MUON_H_
#define PARAMSHARD_KERNELS_OPTIM_MUON_H_

#include <cstdint>
#include <vector>

#include "kernels/optim/moment.h"
#include "kernels/optim/optimizer_step.h"
#include "kernels/optim/orthogonalizer.h"
#include "kernels/reduce/gradient.h"

namespace paramshard {

// The matrices of an extent that Muon steps: each is orthogonalized by itself. Together they are the whole extent.
struct MuonMatrices {
  // A part of the extent, as it is stored.
  struct Part {
    int64_t row = 0;
    int64_t column = 0;
    int64_t rows = 0;
    int64_t columns = 0;
  };

  std::vector<Part> parts;
  std::vector<NewtonSchulzStep> steps;
};

// Returns the matrices in the update of an extent of `columns` columns, which lies at `update`.
std::vector<BFloat16Matrix> MatricesOf(const MuonMatrices& muon, uint16_t* update, int64_t columns);

// Steps the momentum of rows x cols elements from `old` to `fresh`, which is the same place or has nothing in common
// with it.
void StepMuonMomentum(const OptimizerStep& step, ConstGradient gradient, const MutableMoment& old,
                      const MutableMoment& fresh, int64_t rows, int64_t cols);

// Makes the BF16 elements to orthogonalize, from the momentum after StepMuonMomentum().
void MakeMuonUpdate(const OptimizerStep& step, ConstGradient gradient, const MutableMoment& momentum, int64_t rows,
                    int64_t cols, uint16_t* update);

// The same from the momentum before it, which stays.
void MakeMuonUpdateFromOld(const OptimizerStep& step, ConstGradient gradient, const MutableMoment& old, int64_t rows,
                           int64_t cols, uint16_t* update);

}  // namespace paramshard

#endif  // PARAMSHARD_KERNELS_OPTIM_MUON_H_
