"""Callbacks for other people's trainers: crun.integrations.lightning, crun.integrations.huggingface."""
