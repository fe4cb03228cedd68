"""The tokenizer to train with: the base model's, measured on the dataset's languages."""

from dataclasses import asdict

import dagster as dg

from assets.versions import (
    dataset_origin,
    model_origin,
    newest_version,
    tokenizer_origin,
    version,
)
from resources.recipe import Recipe
from resources.store import StoreResource
from strongroom.custody.inputs import prepare_tokenizer


@dg.asset(
    group_name="strongroom",
    kinds={"huggingface"},
    deps=["base_model", "curated_dataset"],
    description="The base model's tokenizer, measured on the curated rows and stored by digest.",
)
def adapted_tokenizer(
    context: dg.AssetExecutionContext, store: StoreResource, recipe: Recipe
) -> dg.MaterializeResult:
    config, instance = recipe.load(), context.instance
    base = newest_version(instance, "base_model", model_origin(config))
    origin = dataset_origin(config, recipe.base_dir, base)
    dataset = newest_version(instance, "curated_dataset", origin)
    tokenizer = prepare_tokenizer(store.custody(), base_model=base, dataset=dataset)
    metrics = {
        f"{name}_{language}": value
        for language, fertility in tokenizer.report.fertility.items()
        for name, value in asdict(fertility).items()
    }
    return version(tokenizer.digest, tokenizer_origin(base, dataset), metrics=metrics)
