"""One of two PyTorch programs that each take 90 % of what they believe to be the card."""

import trial
from trial import check, gib

trial.begin()
try:
    import torch
except ImportError:
    trial.without("torch")

total = torch.cuda.mem_get_info()[1]
trial.is_share(total)
try:
    block = torch.empty(int(total * 0.9), dtype=torch.uint8, device="cuda")
    block[:: 1 << 20] = 7
    torch.cuda.synchronize()
    check(int(block[0]) == 7, "90 % of what there is", gib(block.numel()))
except RuntimeError as error:
    check(False, "90 % of what there is", str(error).splitlines()[0])
# Both are here before either goes on.
charged_here = trial.mark("both hold")[2]
check(charged_here >= int(total * 0.9), "and is charged for it", charged_here)
square = torch.randn(2048, 2048, device="cuda")
check(bool(torch.isfinite(square @ square).all()), "and works")
trial.end()
