# SPDX-License-Identifier: Apache-2.0
"""In the place of torch.distributed.launcher.api: its LaunchConfig and elastic_launch, with crun below.

    from crun.integrations.torch_launcher import LaunchConfig, elastic_launch
    losses = elastic_launch(LaunchConfig(min_nodes=1, max_nodes=1, nproc_per_node=4, run_id="job"), train)(config)

install() puts both into PyTorch's own module, for callers that import them from there, as Accelerate's notebook_launcher does.
The functions' values, LaunchError and ValueError are those of crun.launch(). What crun does by itself, or has no such thing as
(monitor_interval, start_method, metrics_cfg, event_log_handler, numa_options, log filters), has no effect, and is said where
it was given.
"""
from __future__ import annotations

import subprocess
import sys
import warnings
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, Callable, Dict, List, Optional, Union

from .. import _launch

NO_EFFECT = ("logs_specs", "monitor_interval", "metrics_cfg", "event_log_handler", "numa_options", "duplicate_stdout_filters",
             "duplicate_stderr_filters", "log_line_prefix_template")


@dataclass
class LaunchConfig:
    """As PyTorch's."""

    min_nodes: int
    max_nodes: int
    nproc_per_node: int
    logs_specs: Any = None
    run_id: str = ""
    role: str = "default_role"
    rdzv_endpoint: str = ""
    rdzv_backend: str = "c10d"
    rdzv_configs: Dict[str, Any] = field(default_factory=dict)
    rdzv_timeout: int = -1
    max_restarts: int = 3
    monitor_interval: float = 0.1
    start_method: str = "spawn"
    log_line_prefix_template: Optional[str] = None
    metrics_cfg: Dict[str, str] = field(default_factory=dict)
    local_addr: Optional[str] = None
    event_log_handler: str = "null"
    numa_options: Any = None
    signals_to_handle: str = "SIGTERM,SIGINT,SIGHUP,SIGQUIT"
    duplicate_stdout_filters: Optional[List[str]] = None
    duplicate_stderr_filters: Optional[List[str]] = None
    virtual_local_rank: bool = False
    shutdown_timeout: Optional[int] = None

    def ignored(self) -> List[str]:
        """What was given and has no effect."""
        def default(of: Any) -> Any:
            return of.default if of.default is not MISSING else of.default_factory()
        return [f.name for f in fields(self) if f.name in NO_EFFECT and getattr(self, f.name) != default(f)]

    def options(self) -> Dict[str, Any]:
        """Of crun.launch()."""
        several = self.max_nodes > 1
        configs = dict(self.rdzv_configs)
        if self.rdzv_timeout != -1:
            configs.setdefault("timeout", self.rdzv_timeout)
        endpoint = self.rdzv_endpoint if several else ""  # one node needs none
        return {
            "nnodes": f"{self.min_nodes}:{self.max_nodes}", "max_restarts": self.max_restarts, "role": self.role, "run_id": self.run_id or None,
            "rdzv_endpoint": endpoint or None, "rdzv_backend": self.rdzv_backend if endpoint and self.rdzv_backend != "etcd" else None,
            "rdzv_conf": ",".join(f"{k}={v}" for k, v in configs.items()) or None if endpoint else None, "local_addr": self.local_addr,
            "signals_to_handle": self.signals_to_handle, "virtual_local_rank": self.virtual_local_rank or None,
            "shutdown_timeout": self.shutdown_timeout,
        }


class elastic_launch:  # PyTorch's name
    """elastic_launch(config, function)(*args): -> {rank: value}. A command instead of a function: crun runs it, and there are no values."""

    def __init__(self, config: Any, entrypoint: Union[Callable[..., Any], str, None], health_check_server: Any = None):
        if entrypoint is None:
            raise ValueError("elastic_launch: entrypoint None: expected a function or a command")
        own = {f.name for f in fields(LaunchConfig)}
        self.config = LaunchConfig(**{name: value for name, value in vars(config).items() if name in own})
        self.entrypoint = entrypoint

    def __call__(self, *args: Any) -> Dict[int, Any]:
        ignored = self.config.ignored()
        if ignored:
            warnings.warn(f"elastic_launch: without effect under crun: {', '.join(ignored)}", RuntimeWarning, stacklevel=2)
        options = self.config.options()
        if callable(self.entrypoint):
            values: Dict[int, Any] = _launch.launch(self.entrypoint, args, nproc=self.config.nproc_per_node, **options)
            return values
        words = [_launch.find_program(), f"--nproc-per-node={self.config.nproc_per_node}", *_launch._words(options), self.entrypoint, *map(str, args)]
        code = subprocess.call(words)
        if code != 0:
            raise _launch.LaunchError(code if code >= 0 else 128 - code, [])
        return {}


def install() -> None:
    """Who imports LaunchConfig or elastic_launch from torch.distributed.launcher(.api) after this gets ours."""
    import torch.distributed.launcher
    import torch.distributed.launcher.api
    for module in (sys.modules["torch.distributed.launcher"], sys.modules["torch.distributed.launcher.api"]):
        for ours in (LaunchConfig, elastic_launch):
            setattr(module, ours.__name__, ours)
