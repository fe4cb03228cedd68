"""The curated dataset: cleaned, deduplicated, split, and judged before it is trained on."""

from collections.abc import Iterator

import dagster as dg

from assets.versions import dataset_origin, model_origin, newest_version, version
from resources.recipe import Recipe
from resources.store import StoreResource
from strongroom.custody.inputs import Dataset, prepare_dataset
from strongroom.data.quality import CHECKS


@dg.asset(
    group_name="strongroom",
    kinds={"greatexpectations"},
    deps=["base_model"],
    check_specs=[
        dg.AssetCheckSpec(name=name, asset="curated_dataset", blocking=True) for name in CHECKS
    ],
    output_required=False,
    description="Train and held-out rows, judged by Great Expectations and stored by digest.",
)
def curated_dataset(
    context: dg.AssetExecutionContext, store: StoreResource, recipe: Recipe
) -> Iterator[dg.AssetCheckResult | dg.MaterializeResult]:
    config, base_dir = recipe.load(), recipe.base_dir
    base = newest_version(context.instance, "base_model", model_origin(config))
    dataset = prepare_dataset(store.custody(), config.data, base_model=base, base_dir=base_dir)
    if dataset.quality.passed:
        origin = dataset_origin(config, base_dir, base)
        yield version(dataset.digest, origin, metrics=_measured(dataset))
    for check in dataset.quality.checks:
        yield dg.AssetCheckResult(
            check_name=check.name, passed=check.passed, metadata=check.observed
        )


def _measured(dataset: Dataset) -> dict[str, float | None]:
    sources = dataset.curation.sources
    return {
        "num_train": dataset.curation.num_train,
        "num_held_out": dataset.curation.num_held_out,
        "num_broken": sum(source.num_broken for source in sources),
        "num_duplicates": sum(source.num_duplicates for source in sources),
        "num_too_long": sum(source.num_too_long for source in sources),
    }
