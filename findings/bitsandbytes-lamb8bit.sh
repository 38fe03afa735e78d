#!/usr/bin/env bash
# bitsandbytes 0.50.2 on CPUs: LAMB8bit and LARS8bit leave out the trust ratio that makes LAMB of Adam and LARS of SGD:
# from 4,096 elements on they give the weights of Adam8bit and SGD8bit, to the bit. LAMB and LARS, whose state has 32
# bits, differ from Adam and SGD.
source "$(dirname "$0")/environment.sh" torch==2.15.0 bitsandbytes==0.50.2 numpy==2.4.6
now=$("$python" -W ignore - <<'END' 2>/dev/null
import torch
from bitsandbytes import optim


def train(name, options):
    torch.manual_seed(0)
    weight = torch.nn.Parameter(torch.ones(4096))
    optimizer = getattr(optim, name)([weight], lr=0.01, **options)
    for _ in range(3):
        weight.grad = torch.randn(4096)
        optimizer.step()
    return weight.detach()


for names, options in ((("LAMB8bit", "Adam8bit"), {}), (("LARS8bit", "SGD8bit"), {"momentum": 0.9}),
                       (("LAMB", "Adam"), {}), (("LARS", "SGD"), {"momentum": 0.9})):
    ours, theirs = (train(name, options) for name in names)
    print(*names, ours.equal(theirs), f"{((ours - 1).norm() / (theirs - 1).norm()).item():.2f}")
END
)
seen='LAMB8bit Adam8bit True 1.00
LARS8bit SGD8bit True 1.00
LAMB Adam False 0.33
LARS SGD False 0.02'
conclude "$seen" "$now" "bitsandbytes 0.50.2: LAMB8bit gives Adam8bit's weights, and LARS8bit SGD8bit's, on CPUs"
