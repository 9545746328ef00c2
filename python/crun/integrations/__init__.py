# SPDX-License-Identifier: Apache-2.0
"""Callbacks for other people's trainers: crun.integrations.lightning, crun.integrations.huggingface; and crun.integrations.torchrun, by
which torchrun's nodes meet over a rendezvousd."""
