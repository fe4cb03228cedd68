"""The recipe of a run: the YAML file that says which rows, which model, how to train and save."""

from pathlib import Path

import dagster as dg
from pydantic import Field

from resources.store import ROOT
from strongroom.training.config import RunConfig, load_config

DEFAULT_CONFIG = "configs/smollm2-chat.yaml"


class Recipe(dg.ConfigurableResource):
    """Reads a run's configuration; one file for all the assets of a run."""

    config_path: str = Field(
        default=DEFAULT_CONFIG,
        description="YAML file of the run's configuration; relative paths start at the repository.",
    )

    @property
    def path(self) -> Path:
        """The file, absolute."""
        return ROOT / self.config_path

    @property
    def base_dir(self) -> Path:
        """Where relative sources in the configuration start."""
        return self.path.parent

    def load(self) -> RunConfig:
        """Read the file.

        Raises:
            ConfigError: unreadable or wrong; the message lists every fault.
        """
        return load_config(self.path)
