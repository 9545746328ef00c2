# SPDX-License-Identifier: Apache-2.0
"""Callbacks for other people's trainers: crun.integrations.lightning, crun.integrations.huggingface."""
