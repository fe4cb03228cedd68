"""The base model, as an input: stored by digest, named by every checkpoint trained on it."""

import dagster as dg

from assets.versions import model_origin, version
from resources.recipe import Recipe
from resources.store import StoreResource
from strongroom.custody.inputs import prepare_model


@dg.asset(
    group_name="strongroom",
    kinds={"huggingface", "safetensors"},
    description="The frozen base model, in the store by digest.",
)
def base_model(store: StoreResource, recipe: Recipe) -> dg.MaterializeResult:
    source = recipe.load().model.source
    digest = prepare_model(store.custody(create=True), source)
    return version(digest, model_origin(recipe.load()), metrics={}, facts={"source": source})
