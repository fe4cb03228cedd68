"""Which version of an input a recipe asks for.

Every input is stored by digest and materialised with the digest of what it was made from. Dagster
remembers which digest came of which origin, so two recipes in one deployment never mix inputs.
"""

from collections.abc import Mapping
from pathlib import Path

import dagster as dg

from assets.metadata import numbers
from assets.registration import DATA_VERSION_TAG
from strongroom import canonical
from strongroom.canonical import JsonObject
from strongroom.errors import UnknownNameError
from strongroom.names import Digest
from strongroom.training.config import RunConfig

ORIGIN = "origin"
MAX_VERSIONS = 1000
"""How many past materialisations are looked through."""


def model_origin(config: RunConfig) -> JsonObject:
    """What the base model is made from."""
    return {"source": config.model.source}


def dataset_origin(config: RunConfig, base_dir: Path, base_model: Digest) -> JsonObject:
    """What the curated dataset is made from; relative sources start at `base_dir`."""
    data = config.to_json()["data"]
    return {"data": data, "base_dir": str(base_dir), "base_model": str(base_model)}


def tokenizer_origin(base_model: Digest, dataset: Digest) -> JsonObject:
    """What the tokenizer is made from."""
    return {"base_model": str(base_model), "dataset": str(dataset)}


def version(
    digest: Digest,
    origin: JsonObject,
    *,
    metrics: Mapping[str, float | None],
    facts: Mapping[str, dg.MetadataValue | str] | None = None,
) -> dg.MaterializeResult:
    """Return the materialisation of an input: its digest, its origin, its numbers."""
    return dg.MaterializeResult(
        data_version=dg.DataVersion(str(digest)),
        metadata={
            "digest": str(digest),
            ORIGIN: str(canonical.digest(origin)),
            **numbers(metrics),
            **(facts or {}),
        },
    )


def newest_version(instance: dg.DagsterInstance, asset: str, origin: JsonObject) -> Digest:
    """Return the digest of the newest materialisation of `asset` that was made from `origin`.

    Raises:
        UnknownNameError: it was never materialised from that.
    """
    wanted = str(canonical.digest(origin))
    found = instance.fetch_materializations(dg.AssetKey(asset), limit=MAX_VERSIONS)
    for record in found.records:
        event = record.asset_materialization
        made_from = None if event is None else event.metadata.get(ORIGIN)
        if event is not None and made_from is not None and made_from.value == wanted:
            return Digest.parse((event.tags or {})[DATA_VERSION_TAG])
    raise UnknownNameError(
        f"{asset}: Dagster knows no materialisation of it for this recipe; materialise {asset} "
        "with the same config_path first, or run the job `finetune`, which does"
    )
