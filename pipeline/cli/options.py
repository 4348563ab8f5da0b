"""The arguments that commands share."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, reduce, wraps
from pathlib import Path
from typing import Any

import click

from aoq.pipeline.cli.looking import table_folder
from aoq.pipeline.cli.naming import EXPERIMENT, with_override

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

PATH = click.Path(path_type=Path)
COUNT = click.IntRange(min=1)
with_default = partial(click.option, show_default=True)

as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
normalise = click.option("--normalise", is_flag=True, help="Divide every vector by its norm, as a cosine does.")
_IDS = "A text file, one id a line, or FILE::COLUMN of Parquet, Arrow or a data set."
image_ids = click.option("--image-ids", help=f"The images' ids. {_IDS}")
caption_ids = click.option("--caption-ids", help="The captions' ids, given likewise.")
texts = click.option("--texts", type=PATH, help="The captions' texts, one a line.")
"""--captions was its name in some commands, where it works still; in others that names vectors."""
texts_or_captions = click.option("--texts", "--captions", "texts", type=PATH, help="The captions' texts, one a line.")
data = click.option("--data", type=PATH, help="The dataset folder that has captions, ids and pictures.")
split = with_default("--split", default="train", help="Which of its splits.")
image_root = click.option("--image-root", type=PATH, help="The folder of the pictures; an image's file is its id.")
own_view = click.option("--view", type=PATH, help="A view made by `aoq screen`; default: the experiment's own screen.")
override = click.option(
    "--override", default="", help="Changes to the experiment, such as: seed=1, second_round.epochs=4"
)


def refuse_beside_data(data: Path | None, **given: object) -> None:
    """Refuse options for what --data has."""
    named = " and ".join(f"--{option.replace('_', '-')}" for option, value in given.items() if value is not None)
    if data is not None and named:
        raise click.UsageError(f"--data has captions and image ids; leave out {named}")


def _together(*options: Decorator) -> Decorator:
    return lambda command: reduce(lambda decorated, option: option(decorated), reversed(options), command)


def _root(name: str, about: str) -> Decorator:
    """A folder: the one that is given, else the one [paths] names."""
    return click.option(
        f"--{name.replace('_', '-')}",
        default="",
        callback=lambda _, __, given: _configured(name, given),
        help=f"{about}; default: [paths] in luigi.cfg.",
    )


def _configured(name: str, given: str) -> Path:
    from aoq.pipeline.settings import configured_path  # loads Luigi, which help does not need

    return configured_path(name, given)


roots = _together(
    _root("data_root", "The folder of dataset folders"), _root("artifact_root", "Where artefacts are kept")
)


def experiment_chain(command: Callable[..., Any]) -> Callable[..., Any]:
    """Take EXPERIMENT, --override, --data-root and --artifact-root, and call the command with the chain."""

    @click.argument("experiment", type=EXPERIMENT)
    @override
    @roots
    @wraps(command)
    def with_chain(experiment: str, override: str, data_root: Path, artifact_root: Path, **options: Any) -> Any:
        from aoq.pipeline.planning.planner import plan

        _require_experiment(experiment)
        experiment, override = with_override(experiment, override)
        chain = plan(experiment, override=override, data_root=data_root, artifact_root=artifact_root)
        return command(chain, **options)

    return with_chain


def _require_experiment(named: str) -> None:
    from aoq.pipeline.config.named_files import names_in

    if table_folder(named) is not None and named not in names_in():
        command = click.get_current_context().info_name
        raise ValueError(
            f"{named} is a table's folder, which has no data and no model; `aoq {command}` needs the experiment that "
            "they belong to."
        )


pairing_options = _together(
    click.option(
        "--pairs",
        type=PATH,
        help="The true pairs: a .npy file with the image of each caption (-1 for none) or with rows image, caption; or "
        "Parquet, CSV, TSV, JSONL or TREC's judgements, of rows or ids.",
    ),
    click.option(
        "--min-grade",
        type=float,
        help="Graded pairs of at least this grade are positives, the others are candidates; default: 1.",
    ),
    click.option("--per-image", type=COUNT, help="Consecutive captions that belong to each image."),
    click.option("--unpaired", is_flag=True, help="No caption belongs to any image."),
)


def cluster_options(who: str) -> Decorator:
    """Take --backend, which says who does the work, and --ray-address."""
    return _together(
        with_default("--backend", default="inprocess", type=click.Choice(["inprocess", "ray"]), help=who),
        click.option("--ray-address", default="", help="HOST:PORT of a Ray cluster, or auto; default: start Ray here."),
    )


mining_options = _together(
    pairing_options,
    image_ids,
    caption_ids,
    with_default("--h-captions", default=300, type=COUNT, help="Negatives per image; in one set, per item."),
    with_default("--h-images", default=60, type=COUNT, help="Negatives per caption."),
    with_default(
        "--metric",
        default="cosine",
        type=click.Choice(["cosine", "dot"]),
        help="cosine divides vectors by their norms; dot takes them as they are.",
    ),
    normalise,
    with_default(
        "--search", default="auto", help="auto takes the fastest exact one; `aoq list searches` describes all."
    ),
    with_default(
        "--recall-floor",
        default=0.95,
        type=click.FloatRange(min=0, max=1, min_open=True),
        help="Fraction of the true lists that an approximate search must find.",
    ),
    with_default(
        "--memory-mb", default=1500, type=click.IntRange(min=100), help="Approximate memory beyond the vectors."
    ),
    click.option("--threads", default=0, type=click.IntRange(min=0), help="0: as many as this process may use."),
)
"""Options of `aoq mine` and `aoq estimate`: pairs, lengths of lists, metric, search, memory, threads."""
