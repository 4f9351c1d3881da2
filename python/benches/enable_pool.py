"""A plug-in of pytest that gives PyTorch the pool before tests are collected: ``pytest -p enable_pool test_cuda.py``."""

from __future__ import annotations

import bursar.torch

bursar.torch.enable()
