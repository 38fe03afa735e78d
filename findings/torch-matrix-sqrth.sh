#!/usr/bin/env bash
# torch 2.15.0: linalg.matrix_sqrth takes negative eigenvalues for 0, without an error: the root of -1 is 0, and the
# root of diag(4, -9) diag(2, 0). Its gradient at a singular matrix is NaN. For such matrices cholesky raises an error,
# SciPy's sqrtm gives a complex root, and sqrt of the number NaN.
source "$(dirname "$0")/environment.sh" torch==2.15.0 scipy==1.17.1 numpy==2.4.6
now=$("$python" -W ignore - <<'END'
import numpy as np
import scipy
import torch

matrix = torch.diag(torch.tensor([4.0, -9.0]))
print(torch.linalg.matrix_sqrth(matrix).tolist(), torch.linalg.matrix_sqrth(torch.tensor([[-1.0]])).item())
print(np.round(scipy.linalg.sqrtm(matrix.numpy()), 3).tolist(), torch.tensor(-1.0).sqrt().item())
try:
    torch.linalg.cholesky(matrix)
except torch.linalg.LinAlgError:
    print("cholesky: LinAlgError")
singular = torch.diag(torch.tensor([1.0, 0.0])).requires_grad_()
torch.linalg.matrix_sqrth(singular).sum().backward()
print(singular.grad.tolist())
END
)
seen='[[2.0, 0.0], [0.0, 0.0]] 0.0
[[(2+0j), 0j], [0j, 3j]] nan
cholesky: LinAlgError
[[nan, nan], [nan, inf]]'
conclude "$seen" "$now" "torch 2.15.0: linalg.matrix_sqrth of -1 is 0"
