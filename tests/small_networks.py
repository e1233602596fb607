"""Checkpoints of small classification networks, for tests that need some network and not a good one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import timm
import torch
from safetensors.torch import save_file
from torchvision.models import get_model

PACS_CLASSES = ("dog", "elephant", "giraffe", "guitar", "horse", "house", "person")


def resnet18(classes: int = 7) -> Any:
    """torchvision's ResNet-18 with random weights."""
    torch.manual_seed(0)
    return get_model("resnet18", weights=None, num_classes=classes).eval()


def timm_network(name: str = "test_resnet", classes: int = 7) -> Any:
    """One of timm's networks for tests: a few thousand weights."""
    torch.manual_seed(0)
    return timm.create_model(name, pretrained=False, num_classes=classes).eval()


def saved(network: Any, path: Path) -> str:
    """Its weights as a file, .safetensors or .pth."""
    if path.suffix == ".safetensors":
        save_file(network.state_dict(), path)
    else:
        torch.save(network.state_dict(), path)
    return str(path)
