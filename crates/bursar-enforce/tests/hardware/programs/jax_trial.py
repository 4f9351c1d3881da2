"""JAX in a share, with its preallocation: three quarters of what it believes to be the card."""

import trial
from trial import GIB, MIB, check, gib, see

trial.begin()
try:
    import jax
    import jax.numpy as jnp
except ImportError:
    trial.without("jax")
try:
    device = jax.devices("gpu")[0]
except RuntimeError as error:
    trial.skip("jax", f"it finds no device: {error}")
    trial.end()

values = jnp.arange(1 << 20, dtype=jnp.float32)
check(float((values * 2).sum()) == float(values.sum()) * 2, "it computes")
gradient = jax.jit(jax.grad(lambda weights, data: jnp.mean((data @ weights - data) ** 2)))
data, weights = jnp.ones((256, 256)), jnp.zeros((256, 256))
check(bool(jnp.isfinite(gradient(weights, data)).all()), "a gradient is compiled and runs")

limit = (device.memory_stats() or {}).get("bytes_limit", 0)
see("bytes_limit", gib(limit))
if not check(0.6 * trial.SHARE <= limit <= 0.76 * trial.SHARE, "it takes three quarters of the share", f"{gib(limit)} of {gib(trial.SHARE)}"):
    trial.end()
trial.mark("preallocated")

pieces, piece, last = [], None, None
while len(pieces) < 1000:
    try:
        piece = jnp.ones(256 * MIB, dtype=jnp.uint8)
        piece.block_until_ready()
        pieces.append(piece)
    except Exception as error:
        # The error itself would keep arrays alive.
        last = f"{type(error).__name__}: {str(error)[:200]}"
        break
see("its error", str(last).split(":")[0])
check("RESOURCE_EXHAUSTED" in str(last) or "out of memory" in str(last).lower(), "memory runs out in JAX's own way", last)
taken = len(pieces) * 256 * MIB
check(taken + GIB >= limit, "what it preallocated could be had", f"{gib(taken)} of {gib(limit)}")
trial.mark_full(taken)
del piece, pieces
after = jnp.ones(GIB, dtype=jnp.uint8)
check(int(after[-1]) == 1, "it goes on afterwards")
trial.end()
