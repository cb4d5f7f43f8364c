"""Run folders and checkpoints."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any, Iterator, Mapping, NamedTuple

import numpy as np
import numpy.typing as npt

from ._formats import Array, array_of
from ._server import server


class Series(NamedTuple):
    """Values by step. NaN marks a value that is missing or not finite."""

    steps: npt.NDArray[np.int64]
    values: npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Checkpoint(Mapping[str, Array]):
    """The tensors of a checkpoint, or of a model folder in Hugging Face's layout, by name.

    It reads a tensor when it is asked for, from the files as they then are.

    Attributes:
        path: The folder.
        config: config.json, the shape of the model.
        state: state.json: step, data position, random state; None of a model folder.
        dtypes: The storage format of each tensor, by name. Names begin with ``model/`` or
            ``optimizer/``.
        shapes: The shape of each tensor.
    """

    path: str
    config: dict[str, Any] = field(repr=False)
    state: dict[str, Any] | None = field(repr=False)
    dtypes: dict[str, str] = field(repr=False)
    shapes: dict[str, tuple[int, ...]] = field(repr=False)

    def __iter__(self) -> Iterator[str]:
        return iter(self.dtypes)

    def __len__(self) -> int:
        return len(self.dtypes)

    def __contains__(self, name: object) -> bool:
        return name in self.dtypes

    def __eq__(self, other: object) -> bool:  # a mapping's would read all tensors
        return self is other

    __hash__ = object.__hash__

    def __getitem__(self, name: str) -> Array:
        """Return a tensor as it is stored: codes of FP8, see :func:`octet.cast`."""
        if name not in self.dtypes:
            raise KeyError(name)
        reply, (raw,) = server().call("tensor", path=self.path, name=name, values=False)
        return array_of(raw, reply["dtype"], tuple(reply["shape"]))

    def weight(self, name: str) -> npt.NDArray[np.float32]:
        """Return a tensor of the model as float32; FP8 values are multiplied by their scale_inv."""
        if not name.startswith("model/"):
            raise ValueError(f"{name!r} is not a tensor of the model: its name begins with 'model/'")
        reply, (raw,) = server().call("tensor", path=self.path, name=name, values=True)
        return raw.view(np.float32).reshape(tuple(reply["shape"]))


@dataclass(frozen=True, eq=False)
class Run:
    """A run folder as it was when it was opened.

    Attributes:
        path: The folder.
        config: The configuration: ``config["optimizer.lr"]``, as text.
        state: ``"done"``, ``"failed"``, ``"stopped"``, or ``"not done"``.
        step: The last step with metrics.
        steps: The steps of the configuration.
        backend: The backend of the last start.
        version: The version of Octet at the last start.
        metrics: A Series for each field of metrics.jsonl: ``metrics["loss"]``.
        timing: A Series for each field of timing.jsonl: ``timing["tokens_per_s"]``.
        casts: For each cast a Series for each field.
        channels: For each MLP a Series for each field.
        alarms: Warnings and errors of run.log: step and text.
        problems: One sentence per damaged file.
        damaged: Checkpoints that cannot be opened, with the reason.
    """

    path: str
    config: dict[str, str] = field(repr=False)
    state: str
    step: int
    steps: int
    backend: str
    version: str
    metrics: dict[str, Series] = field(repr=False)
    timing: dict[str, Series] = field(repr=False)
    casts: dict[str, dict[str, Series]] = field(repr=False)
    channels: dict[str, dict[str, Series]] = field(repr=False)
    alarms: list[tuple[int, str]] = field(repr=False)
    problems: list[str] = field(repr=False)
    damaged: dict[str, str] = field(repr=False)
    _checkpoints: dict[int, str] = field(repr=False)

    @property
    def checkpoints(self) -> list[int]:
        """The steps of the undamaged checkpoints, in order."""
        return sorted(self._checkpoints)

    def checkpoint(self, step: int | None = None) -> Checkpoint:
        """Open the checkpoint of a step, the newest one by default, and verify its checksums."""
        if not self._checkpoints:
            raise FileNotFoundError(f"{self.path} has no checkpoint")
        if step is None:
            step = max(self._checkpoints)
        if step not in self._checkpoints:
            raise ValueError(f"{self.path} has no checkpoint of step {step}: it has {self.checkpoints}")
        return open_checkpoint(self._checkpoints[step])


def open_checkpoint(path: str | os.PathLike[str]) -> Checkpoint:
    """Open the folder of a checkpoint, and verify its checksums, or that of a model.

    A model is one in Hugging Face's layout that ``octet train`` can start from: a Llama, Qwen2.5
    or Qwen3, whose FP8 tensors, if it has any, have one scale each.

    Raises:
        FileNotFoundError: There is no such folder, or it has no config.json.
        octet.Error: The checkpoint is damaged, or the model is of another kind.
    """
    full = os.path.abspath(os.fsdecode(path))
    r, _ = server().call("checkpoint", path=full)
    return Checkpoint(
        full, r["config"], r.get("state"),
        {t["name"]: t["dtype"] for t in r["tensors"]}, {t["name"]: tuple(t["shape"]) for t in r["tensors"]},
    )


def open(path: str | os.PathLike[str]) -> Run:  # noqa: A001
    """Open a run folder. It may belong to a run in progress: open it again for newer steps.

    Raises:
        FileNotFoundError: There is no such folder, or it has no configuration.
    """
    r, buffers = server().call("run", path=os.path.abspath(os.fsdecode(path)))
    tables: dict[str, dict[str, Any]] = {"metrics": {}, "timing": {}, "casts": {}, "channels": {}}
    for i, s in enumerate(r["series"]):
        series = Series(buffers[2 * i].view(np.float64).astype(np.int64), buffers[2 * i + 1].view(np.float64))
        table = tables[s["table"]]
        if "name" in s:
            table = table.setdefault(s["name"], {})
        table[s["field"]] = series
    whole = {c["step"]: c["path"] for c in r["checkpoints"] if "damage" not in c}
    return Run(
        r["path"], r["config"], r["state"], r["step"], r["steps"], r["backend"], r["version"], **tables,
        alarms=[(a["step"], a["text"]) for a in r["alarms"]], problems=r["problems"],
        damaged={c["path"]: c["damage"] for c in r["checkpoints"] if "damage" in c}, _checkpoints=whole,
    )
